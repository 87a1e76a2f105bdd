package consuming

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// batchType is the form of a read that hands out chunks as they are stored, back to back (docs/formats.md, "Chunk").
const batchType = "application/vnd.skein.recordbatch"

// handleRead serves reads of a partition without a group. They need no lease: what was read once stays (P8).
func (s *Service) handleRead(w http.ResponseWriter, r *http.Request) {
	err := s.serveRead(w, r)
	var out *data.OutOfRange
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		httpd.Refuse(w, http.StatusServiceUnavailable, "the client is gone") // nobody reads it
	case errors.As(err, &out):
		httpd.RefuseWith(w, http.StatusRequestedRangeNotSatisfiable, err.Error(),
			map[string]any{"start": out.Start, "highWatermark": out.End})
	default:
		refuse(w, err)
	}
}

func (s *Service) serveRead(w http.ResponseWriter, r *http.Request) error {
	t, p, err := s.partition(r.PathValue("topic"), r.PathValue("partition"))
	if err != nil {
		return err
	}
	values, err := parseQuery(r)
	if err != nil {
		return err
	}
	q, err := parseRead(values, &s.cfg)
	if err != nil {
		return err
	}
	log := t.Log(p)
	from, err := s.place(log, &q)
	if err != nil {
		return fmt.Errorf("read %s/%d: %w", t.Name, p, err)
	}
	if err := s.waitFor(r.Context(), log, from, q.wait); err != nil {
		return err
	}
	page := page{buffer: getBuffer(), topic: &t, partition: p, next: from}
	defer putBuffer(page.buffer)
	if firstType(r.Header.Get("Accept")) == batchType {
		page.contentType = batchType
	}
	if err := s.readPage(&page, log, &q); err != nil {
		return fmt.Errorf("read %s/%d at %d: %w", t.Name, p, page.next, err)
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	for _, d := range page.damaged {
		h.Add(damagedHeader, fmt.Sprintf("%s/%d:%d-%d", t.Name, p, d.From, d.To))
	}
	h.Set("Skein-Next-Offset", strconv.FormatInt(int64(page.next), 10))
	_ = s.writeAnswer(w, r, &page) // a client that is gone is no error of ours
	return nil
}

// partition finds a partition by the segments of a path.
func (s *Service) partition(topic, partition string) (topology.Topic, topology.Partition, error) {
	if err := topology.CheckTopicName(topic, true); err != nil {
		return topology.Topic{}, 0, err
	}
	t, ok := s.cfg.Topics.Lookup(topic)
	if !ok && topic == topology.TopicsTopic.Name {
		t, ok = topology.TopicsTopic, true
	}
	if !ok {
		return topology.Topic{}, 0, fmt.Errorf("%w: %q", topology.ErrUnknownTopic, topic)
	}
	n, err := strconv.ParseUint(partition, 10, 31)
	if err != nil || int(n) >= t.Partitions {
		return topology.Topic{}, 0, fmt.Errorf("%w partition: %q; topic %q has 0 to %d", topology.ErrInvalid, partition, topic, t.Partitions-1)
	}
	return t, topology.Partition(n), nil
}

// place is the offset where a read begins. An offset outside the log is *data.OutOfRange; the end is inside.
func (s *Service) place(log topology.LogID, q *readQuery) (topology.Offset, error) {
	info := s.cfg.Logs.Info(log)
	switch q.from {
	case fromOffset:
		if q.offset < info.Start || q.offset > info.HighWatermark {
			return 0, fmt.Errorf("offset %d: %w", q.offset, &data.OutOfRange{Start: info.Start, End: info.HighWatermark})
		}
		return q.offset, nil
	case fromTime:
		at, err := s.cfg.Logs.OffsetForTime(log, q.time)
		return min(at, info.HighWatermark), err
	case fromLast:
		return max(info.Start, info.HighWatermark-topology.Offset(min(q.last, int64(info.HighWatermark)))), nil
	}
	return info.Start, nil
}

// readPage fills p from p.next on until the bounds of q or the high watermark.
func (s *Service) readPage(p *page, log topology.LogID, q *readQuery) error {
	work := getScratch()
	defer putScratch(work)
	bytes, records := s.grant(q.maxBytes), q.maxRecords
	p.info = s.cfg.Logs.Info(log)
	for records > 0 && bytes > 0 && p.next < p.info.HighWatermark {
		r, buf, err := s.cfg.Logs.Read(log, p.next, min(bytes, 256<<10), work.read)
		work.read = buf
		if err != nil {
			return err
		}
		before := p.next
		p.damaged = append(p.damaged, r.Damaged...)
		for i := range r.Chunks {
			if p.full = !p.take(&r.Chunks[i], &work.decoder, &bytes, &records); p.full {
				return nil
			}
		}
		p.next = max(p.next, r.Next)
		if p.next == before {
			return nil
		}
	}
	return nil
}

// page is the answer to a read: a form for writeAnswer.
type page struct {
	*buffer
	contentType string // batchType, or "" for JSON
	topic       *topology.Topic
	partition   topology.Partition
	info        data.LogInfo
	next        topology.Offset // where to go on
	damaged     []data.OffsetRange
	count       int // records
	full        bool
}

// take adds the records of a chunk from p.next on, and tells whether all of them fit. At least one record fits.
func (p *page) take(c *data.Chunk, d *recordbatch.Decoder, bytes, records *int) bool {
	if p.contentType == batchType {
		if p.count > 0 && (int(c.Header.Records) > *records || len(c.Bytes) > *bytes) {
			return false
		}
		p.b = append(p.b, c.Bytes...)
		p.count += int(c.Header.Records)
		*records -= int(c.Header.Records)
		*bytes -= len(c.Bytes)
		p.next = c.Header.Next()
		return true
	}
	list, err := d.Decode(c.Bytes)
	if err != nil {
		p.damaged = append(p.damaged, data.OffsetRange{From: max(p.next, c.Header.BaseOffset), To: c.Header.Next()})
		p.next = c.Header.Next()
		return true
	}
	for i := range list {
		r := &list[i]
		if r.Offset < p.next {
			continue
		}
		cost := r.Bytes() + recordOverhead
		if p.count > 0 && (*records <= 0 || cost > *bytes) {
			return false
		}
		if p.count > 0 {
			p.b = append(p.b, ',')
		}
		p.b = appendRecord(p.b, r)
		p.count++
		*records--
		*bytes -= cost
		p.next = r.Offset + 1
	}
	return true
}

// finish makes the records an object:
//
//	{"topic","partition","start","highWatermark","next","damaged":[{"from","to"}],"records":[…]}
func (p *page) finish() (string, [][]byte) {
	if p.contentType == batchType {
		return batchType, [][]byte{p.b}
	}
	h := make([]byte, 0, 256)
	h = append(h, `{"topic":`...)
	h = appendString(h, []byte(p.topic.Name))
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"partition", int64(p.partition)}, {"start", int64(p.info.Start)}, {"highWatermark", int64(p.info.HighWatermark)}, {"next", int64(p.next)},
	} {
		h = append(h, `,"`...)
		h = append(h, f.name...)
		h = append(h, `":`...)
		h = strconv.AppendInt(h, f.value, 10)
	}
	h = append(h, `,"damaged":[`...)
	for i, d := range p.damaged {
		if i > 0 {
			h = append(h, ',')
		}
		h = fmt.Appendf(h, `{"from":%d,"to":%d}`, d.From, d.To)
	}
	h = append(h, `],"records":[`...)
	p.b = append(p.b, "]}\n"...)
	return "application/json", [][]byte{h, p.b}
}

// waitFor returns when log has a record at from, or wait is over, or the server drains. Only the end of ctx is an error.
func (s *Service) waitFor(ctx context.Context, log topology.LogID, from topology.Offset, wait time.Duration) error {
	if wait <= 0 || s.cfg.Logs.Info(log).HighWatermark > from {
		return nil
	}
	wake, stop := s.readers.wait(log)
	defer stop()
	t := time.NewTimer(wait)
	defer t.Stop()
	for s.cfg.Logs.Info(log).HighWatermark <= from {
		select {
		case <-wake:
		case <-t.C:
			return nil
		case <-httpd.Draining(ctx):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// readers are the reads without a group that wait for records.
type readers struct {
	waiting atomic.Int64 // so that an advance looks for them only when there are some
	mu      sync.Mutex
	byLog   map[topology.LogID]map[chan struct{}]struct{} // under mu
}

// wait gives a channel that gets an element when log advances, until stop is called.
func (r *readers) wait(log topology.LogID) (wake <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	r.waiting.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byLog == nil {
		r.byLog = map[topology.LogID]map[chan struct{}]struct{}{}
	}
	if r.byLog[log] == nil {
		r.byLog[log] = map[chan struct{}]struct{}{}
	}
	r.byLog[log][c] = struct{}{}
	return c, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.byLog[log], c)
		if len(r.byLog[log]) == 0 {
			delete(r.byLog, log)
		}
		r.waiting.Add(-1)
	}
}

func (r *readers) advanced(log topology.LogID) {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.byLog[log] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// logDamage says once for a group and range that records are skipped.
func (s *Service) logDamage(group, topic string, p topology.Partition, r data.OffsetRange) {
	key := strings.Join([]string{group, topic, fmt.Sprintf("%d:%d-%d", p, r.From, r.To)}, "\x00")
	if !s.damage.first(key) {
		return
	}
	s.metrics.damaged(int64(r.To - r.From))
	s.log.Error().Str("group", group).Str("topic", topic).Int32("partition", int32(p)).Int64("from", int64(r.From)).
		Int64("to", int64(r.To)).Msg("damaged records are skipped: they are not delivered to the group")
}

// once remembers what was said already, up to a bound; then it forgets all.
type once struct {
	mu   sync.Mutex
	said map[string]struct{} // under mu
}

const onceMost = 10_000

func (o *once) first(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.said[key]; ok {
		return false
	}
	if o.said == nil || len(o.said) >= onceMost {
		o.said = map[string]struct{}{}
	}
	o.said[key] = struct{}{}
	return true
}
