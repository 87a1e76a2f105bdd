package consuming

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

func (w *world) read(query string) reply {
	w.t.Helper()
	return w.do(context.Background(), "GET", "/v1/topic/t/partitions/1/records?"+query, "", "")
}

// pageOf is an answer to a read; what is left of a record is its value.
type pageOf struct {
	Topic         string
	Partition     int
	Start         int
	HighWatermark int
	Next          int
	Damaged       []struct{ From, To int }
	Records       []struct {
		Offset int
		Value  json.RawMessage
	}
}

func (w *world) page(query string) pageOf {
	w.t.Helper()
	r := w.read(query)
	var p pageOf
	if err := json.Unmarshal(r.body, &p); err != nil || r.status != 200 || r.header.Get("Content-Type") != "application/json" {
		w.t.Fatalf("%s: %d %s: %v", query, r.status, r.body, err)
	}
	for i, rec := range p.Records {
		if i > 0 && rec.Offset <= p.Records[i-1].Offset {
			w.t.Errorf("%s: offsets are not in order: %s", query, r.body)
		}
	}
	return p
}

// docs/design.md, section 7: reads without a group, by offset, time and from the end.
func TestReadsWithoutAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 3)
		began := time.Now()
		for i := range 6 {
			w.produce(topic, 1, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
			time.Sleep(time.Minute)
		}
		if err := w.logs.SetStart(topic.Log(1), 2); err != nil {
			t.Fatal(err)
		}
		for query, want := range map[string]struct{ first, count, next int }{
			"":                           {2, 10, 12},
			"offset=2":                   {2, 10, 12},
			"offset=7&maxRecords=3":      {7, 3, 10},
			"offset=7&maxBytes=1":        {7, 1, 8},
			"last=3":                     {9, 3, 12},
			"last=1000000":               {2, 10, 12},
			"last=9223372036854775807":   {2, 10, 12},
			"offset=12":                  {-1, 0, 12},
			"last=0":                     {-1, 0, 12},
			"maxRecords=1":               {2, 1, 3},
			"maxRecords=999999999999999": {2, 10, 12},
			"time=" + began.Add(3*time.Minute).UTC().Format(time.RFC3339):  {6, 6, 12},
			fmt.Sprint("time=", began.Add(150*time.Second).UnixMilli()):    {6, 6, 12},
			"time=" + began.Add(-time.Hour).UTC().Format(time.RFC3339):     {2, 10, 12},
			"time=" + began.Add(99*time.Hour).UTC().Format(time.RFC3339):   {-1, 0, 12},
			"maxRecords=2&time=" + fmt.Sprint(began.UnixMilli()+5*60*1000): {10, 2, 12},
		} {
			p := w.page(query)
			first := -1
			if len(p.Records) > 0 {
				first = p.Records[0].Offset
				if string(p.Records[0].Value) != fmt.Sprint(first) {
					t.Errorf("%s: offset %d holds %s", query, first, p.Records[0].Value)
				}
			}
			if first != want.first || len(p.Records) != want.count || p.Next != want.next || p.Start != 2 || p.HighWatermark != 12 {
				t.Errorf("%s: from %d %d records, next %d, bounds %d to %d; want %+v", query, first, len(p.Records), p.Next, p.Start, p.HighWatermark, want)
			}
		}
		for _, query := range []string{"offset=1", "offset=13", "offset=9223372036854775807"} {
			r := w.read(query)
			var p struct{ Start, HighWatermark int }
			if err := json.Unmarshal(r.body, &p); err != nil || r.status != 416 || p.Start != 2 || p.HighWatermark != 12 {
				t.Errorf("%s: %d %s", query, r.status, r.body)
			}
		}
		for _, query := range []string{"offset=-1", "offset=x", "time=yesterday", "last=-1", "offset=1&last=1", "maxRecords=0", "wait=-5", "offset="} {
			if r := w.read(query); r.status != 400 {
				t.Errorf("%s: %d %s", query, r.status, r.body)
			}
		}
		for path, status := range map[string]int{
			"/v1/topic/unknown/partitions/0/records": 404, "/v1/topic/t/partitions/3/records": 400, "/v1/topic/t/partitions/-1/records": 400,
			"/v1/topic/t/partitions/x/records": 400, "/v1/topic/a%2fb/partitions/0/records": 400, "/v1/topic/__topics/partitions/11/records": 200,
			"/v1/topic/__other/partitions/0/records": 404,
		} {
			if r := w.do(context.Background(), "GET", path, "", ""); r.status != status {
				t.Errorf("%s: %d %s, want %d", path, r.status, r.body, status)
			}
		}
	})
}

func TestReadsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 3)
		started := time.Now()
		got := make(chan pageOf, 1)
		go func() { got <- w.page("wait=20s") }()
		synctest.Wait()
		time.Sleep(5 * time.Second)
		w.produce(topic, 0, `0`) // another partition
		time.Sleep(5 * time.Second)
		w.produce(topic, 1, `1`)
		if p := <-got; len(p.Records) != 1 || time.Since(started) != 10*time.Second {
			t.Errorf("%+v after %s", p, time.Since(started))
		}
		started = time.Now()
		if p := w.page("offset=1&wait=3s"); len(p.Records) != 0 || p.Next != 1 || time.Since(started) != 3*time.Second {
			t.Errorf("%+v after %s", p, time.Since(started))
		}
		if n := w.s.readers.waiting.Load(); n != 0 || len(w.s.readers.byLog) != 0 {
			t.Errorf("%d reads still wait", n)
		}
	})
}

func TestReadsNameDamage(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 3)
	w.produce(topic, 1, `0`)
	w.produce(topic, 1, `1`, `2`)
	w.produce(topic, 1, `3`)
	w.logs.damage(topic.Log(1), 1)
	p := w.page("")
	if len(p.Records) != 2 || p.Next != 4 || len(p.Damaged) != 1 || p.Damaged[0].From != 1 || p.Damaged[0].To != 3 {
		t.Errorf("%+v", p)
	}
}

// Chunks are handed out as they are stored.
func TestReadsOfChunks(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 3)
	for range 3 {
		w.produce(topic, 1, strings.Repeat("x", 200), "y")
	}
	target := "/v1/topic/t/partitions/1/records?maxRecords=5&offset=1"
	r := w.do(context.Background(), "GET", target, batchType, "")
	if r.status != 200 || r.header.Get("Content-Type") != batchType || r.header.Get("Skein-Next-Offset") != "4" {
		t.Fatalf("%d %v", r.status, r.header)
	}
	var d recordbatch.Decoder
	next := topology.Offset(0)
	for b := r.body; len(b) > 0; {
		h, err := recordbatch.Check(b)
		if err != nil || h.BaseOffset != next {
			t.Fatalf("chunk at %d: %v", h.BaseOffset, err)
		}
		records, err := d.Decode(b)
		if err != nil || len(records) != 2 {
			t.Fatalf("%d records: %v", len(records), err)
		}
		next = h.Next()
		b = b[h.Size():]
	}
	if next != 4 {
		t.Errorf("chunks up to %d, want 4: no chunk is cut", next)
	}
}
