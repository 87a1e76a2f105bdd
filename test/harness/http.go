package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Response is an answer, read to its end.
type Response struct {
	Status int
	Header http.Header
	Body   string
}

// Do sends one request on one of the ports and reads the answer. header alternates names and values.
func (b *Broker) Do(method string, port int, path string, body []byte, header ...string) (Response, error) {
	req, err := http.NewRequest(method, b.URL(port, path), bytes.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	r, err := b.client.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return Response{r.StatusCode, r.Header, string(text)}, err
}

// Must is Do that fails the test on any status but want.
func (b *Broker) Must(t testing.TB, want int, method string, port int, path string, body string, header ...string) Response {
	t.Helper()
	r, err := b.Do(method, port, path, []byte(body), header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if r.Status != want {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, r.Status, want, r.Body)
	}
	return r
}

// MustJSON is Must that decodes the answer into v.
func (b *Broker) MustJSON(t testing.TB, v any, method string, port int, path string, body string, header ...string) {
	t.Helper()
	r := b.Must(t, http.StatusOK, method, port, path, body, header...)
	if err := json.Unmarshal([]byte(r.Body), v); err != nil {
		t.Fatalf("%s %s: %v in %s", method, path, err, r.Body)
	}
}

// Produce sends one record and gives back the status, 0 when there was no answer.
func (b *Broker) Produce(topic, key, value string) (int, error) {
	r, err := b.Do("POST", ProducePort, "/v1/topic/"+topic+"/messages?partitionKey="+url.QueryEscape(key), []byte(value))
	return r.Status, err
}

// MustProduce is Produce that fails the test unless the record was stored.
func (b *Broker) MustProduce(t testing.TB, topic, key, value string) {
	t.Helper()
	b.Must(t, http.StatusOK, "POST", ProducePort, "/v1/topic/"+topic+"/messages?partitionKey="+url.QueryEscape(key), value)
}

// CreateTopic makes a topic; config is JSON, or empty.
func (b *Broker) CreateTopic(t testing.TB, name string, partitions int, config string) {
	t.Helper()
	if config == "" {
		config = "{}"
	}
	b.Must(t, http.StatusCreated, "POST", AdminPort, "/v1/topics", fmt.Sprintf(`{"name":%q,"partitions":%d,"config":%s}`, name, partitions, config))
}

// Topic is what GET /v1/topics/{topic} tells.
type Topic struct {
	Name       string    `json:"name"`
	ID         string    `json:"id"`
	Partitions int       `json:"partitions"`
	Logs       []LogInfo `json:"logs"`
}

// LogInfo is one partition of a topic.
type LogInfo struct {
	Partition     int    `json:"partition"`
	Token         string `json:"token"`
	Generation    int    `json:"generation"`
	Start         int64  `json:"start"`
	End           int64  `json:"end"`
	HighWatermark int64  `json:"highWatermark"`
	Bytes         int64  `json:"bytes"`
	Segments      int    `json:"segments"`
}

// Topic describes a topic.
func (b *Broker) Topic(t testing.TB, name string) Topic {
	t.Helper()
	var topic Topic
	b.MustJSON(t, &topic, "GET", AdminPort, "/v1/topics/"+name, "")
	return topic
}

// Record is a record as reads without a group show it.
type Record struct {
	Offset    int64           `json:"offset"`
	Timestamp int64           `json:"timestamp"`
	Key       json.RawMessage `json:"key"`
	Value     json.RawMessage `json:"value"`
}

// OffsetRange is [From, To).
type OffsetRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// ReadAnswer is what a read without a group answers.
type ReadAnswer struct {
	Topic         string        `json:"topic"`
	Partition     int           `json:"partition"`
	Start         int64         `json:"start"`
	HighWatermark int64         `json:"highWatermark"`
	Next          int64         `json:"next"`
	Damaged       []OffsetRange `json:"damaged"`
	Records       []Record      `json:"records"`
}

// ReadPartition reads a partition from an offset up to its high watermark. It gives back the records, what was reported
// as damaged, and where the next read would begin.
func (b *Broker) ReadPartition(t testing.TB, topic string, partition int, from int64) (records []Record, damaged []OffsetRange, next int64) {
	t.Helper()
	for next = from; ; {
		var a ReadAnswer
		b.MustJSON(t, &a, "GET", AdminPort, fmt.Sprintf("/v1/topic/%s/partitions/%d/records?offset=%d&maxBytes=4194304&maxRecords=100000", topic, partition, next), "")
		records = append(records, a.Records...)
		damaged = append(damaged, a.Damaged...)
		if a.Next < next || a.Next == next && a.Next < a.HighWatermark {
			t.Fatalf("a read of %s/%d at %d does not go on: next %d, high watermark %d", topic, partition, next, a.Next, a.HighWatermark)
		}
		next = a.Next
		if next >= a.HighWatermark {
			return records, damaged, next
		}
	}
}

// Register makes a consumer that begins at the earliest record where its group has no position.
func (b *Broker) Register(t testing.TB, consumer, group string, topics ...string) {
	t.Helper()
	if err := b.TryRegister(consumer, group, topics...); err != nil {
		t.Fatal(err)
	}
}

// TryRegister is Register for goroutines that may not end the test.
func (b *Broker) TryRegister(consumer, group string, topics ...string) error {
	q := url.Values{"consumerId": {consumer}, "group": {group}, "topic": topics, "onNewGroup": {"startFromEarliest"}}
	r, err := b.Do("PUT", ConsumePort, "/v1/consumer/register?"+q.Encode(), nil)
	if err == nil && r.Status != http.StatusOK {
		err = fmt.Errorf("register %s: %d %s", consumer, r.Status, r.Body)
	}
	return err
}

// PolledRecord is a record as a poll with Accept: application/vnd.skein.records+json shows it.
type PolledRecord struct {
	Topic     string
	Partition int
	Record
}

// Poll polls once with the given extra query ("wait=1s&ack=none") and gives back the records and the id of the answer.
// No records and no error: there was nothing to deliver.
func (b *Broker) Poll(consumer, query string) (records []PolledRecord, id string, err error) {
	path := "/v1/consumer/poll?consumerId=" + url.QueryEscape(consumer)
	if query != "" {
		path += "&" + query
	}
	r, err := b.Do("POST", ConsumePort, path, nil, "Accept", "application/vnd.skein.records+json")
	switch {
	case err != nil:
		return nil, "", err
	case r.Status == http.StatusNoContent:
		return nil, "", nil
	case r.Status != http.StatusOK:
		return nil, "", fmt.Errorf("poll of %s: status %d: %s", consumer, r.Status, r.Body)
	}
	var items []struct {
		Topic     string   `json:"topic"`
		Partition int      `json:"partition"`
		Records   []Record `json:"records"`
	}
	if err := json.Unmarshal([]byte(r.Body), &items); err != nil {
		return nil, "", fmt.Errorf("poll of %s: %w in %.200s", consumer, err, r.Body)
	}
	for _, item := range items {
		for _, rec := range item.Records {
			records = append(records, PolledRecord{item.Topic, item.Partition, rec})
		}
	}
	return records, r.Header.Get("Skein-Poll-Id"), nil
}

// Metric sums the samples of a metric over its labels; missing is 0.
func (b *Broker) Metric(t testing.TB, name string) float64 {
	t.Helper()
	r := b.Must(t, http.StatusOK, "GET", MetricsPort, "/metrics", "")
	var sum float64
	for line := range strings.Lines(r.Body) {
		sample, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if i := strings.IndexByte(sample, '{'); i >= 0 {
			sample, value, ok = line[:i], line[strings.LastIndexByte(line, ' ')+1:], true
		}
		if ok && sample == name {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatalf("metric %s: %v", line, err)
			}
			sum += v
		}
	}
	return sum
}

// Eventually waits until ok, or fails the test with what.
func Eventually(t testing.TB, timeout time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", timeout, what)
		}
	}
}
