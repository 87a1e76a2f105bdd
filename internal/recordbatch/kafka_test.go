package recordbatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// TestParsedByKmsg reads our batches with the parser of franz-go, field by field.
func TestParsedByKmsg(t *testing.T) {
	unzstd, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer unzstd.Close()
	rapid.Check(t, func(t *rapid.T) {
		var b Builder
		b.Reset(rapid.Int64().Draw(t, "base timestamp"))
		b.SetProducer(rapid.Int64().Draw(t, "producer"), 7, rapid.Int32().Draw(t, "sequence"))
		records := rapid.SliceOfN(rapid.Custom(drawRecord), 1, 20).Draw(t, "records")
		for i := range records {
			b.Append(&records[i])
		}
		sealed := b.Seal(nil)
		SetPosition(sealed, 1234, 5)
		h, err := Check(sealed)
		if err != nil {
			t.Fatal(err)
		}
		var k kmsg.RecordBatch
		if err := k.ReadFrom(sealed); err != nil {
			t.Fatal(err)
		}
		other := Header{
			BaseOffset: topology.Offset(k.FirstOffset), Length: k.Length, Version: topology.Version(k.PartitionLeaderEpoch), CRC: uint32(k.CRC),
			Attributes: k.Attributes, LastOffsetDelta: k.LastOffsetDelta, BaseTimestamp: k.FirstTimestamp, MaxTimestamp: k.MaxTimestamp,
			ProducerID: k.ProducerID, ProducerEpoch: k.ProducerEpoch, BaseSequence: k.FirstSequence, Records: k.NumRecords,
		}
		if other != h || k.Magic != magic {
			t.Fatalf("kmsg reads\n%+v, we\n%+v", other, h)
		}
		raw := k.Records
		if h.Compressed() {
			if raw, err = unzstd.DecodeAll(raw, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range records {
			length, n := binary.Varint(raw)
			var r kmsg.Record
			if err := r.ReadFrom(raw[:n+int(length)]); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
			raw = raw[n+int(length):]
			got := Record{Timestamp: h.BaseTimestamp + r.TimestampDelta64, Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				got.Headers = append(got.Headers, RecordHeader{Key: h.Key, Value: h.Value})
			}
			if int(r.OffsetDelta) != i || !equal(&got, &records[i]) {
				t.Fatalf("record %d: kmsg reads %+v, it was %+v", i, got, records[i])
			}
		}
		if len(raw) != 0 {
			t.Fatalf("%d bytes left", len(raw))
		}
	})
}

// TestReadByKafkaClient hands our bytes to a Kafka broker (kfake) as they are and reads them with a Kafka client (kgo).
func TestReadByKafkaClient(t *testing.T) {
	const topic = "stored"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	var want []Record
	for _, compressed := range []bool{false, true} {
		var b Builder
		b.Reset(1_700_000_000_000)
		b.SetCompression(compressed)
		b.SetIdempotent() // a bit of ours, which readers pass over
		for i := range 500 {
			r := goldenRecords()[i%4]
			r.Timestamp += int64(i)
			b.Append(&r)
			want = append(want, r)
		}
		produceRaw(ctx, t, client, topic, b.Seal(nil))
	}
	var got []*kgo.Record
	for len(got) < len(want) {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", len(got), err)
		}
		got = append(got, fetches.Records()...)
	}
	for i, r := range got {
		same := Record{Offset: topology.Offset(r.Offset), Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			same.Headers = append(same.Headers, RecordHeader{Key: h.Key, Value: h.Value})
		}
		want[i].Offset = topology.Offset(i)
		if !equal(&same, &want[i]) {
			t.Fatalf("record %d: kgo reads %+v, it was %+v", i, same, want[i])
		}
	}
}

// produceRaw stores batch in partition 0 of topic, byte for byte.
func produceRaw(ctx context.Context, t *testing.T, client *kgo.Client, topic string, batch []byte) {
	t.Helper()
	request := kmsg.NewPtrProduceRequest()
	request.Acks, request.TimeoutMillis = -1, 5000
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = batch
	into := kmsg.NewProduceRequestTopic()
	into.Topic, into.TopicID = topic, topicID(ctx, t, client, topic)
	into.Partitions = append(into.Partitions, part)
	request.Topics = append(request.Topics, into)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	if p := response.Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatalf("the batch is refused: %d %s", p.ErrorCode, deref(p.ErrorMessage))
	}
}

// topicID looks the id of topic up: newer versions of the produce request name topics by it.
func topicID(ctx context.Context, t *testing.T, client *kgo.Client, topic string) [16]byte {
	t.Helper()
	request := kmsg.NewPtrMetadataRequest()
	named := kmsg.NewMetadataRequestTopic()
	named.Topic = kmsg.StringPtr(topic)
	request.Topics = append(request.Topics, named)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	return response.Topics[0].TopicID
}

func deref(s *string) string {
	if s == nil {
		return fmt.Sprint(nil)
	}
	return *s
}
