package cli

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
)

// maxFollowed bounds the partitions that are followed at once: each holds a request open.
const maxFollowed = 256

// partitionReader reads one partition without a group.
type partitionReader struct {
	r         *consumer
	topic     string
	partition int
	index     int // among the readers
	limit     int // records in a page
	from      api.Place
	end       int64 // where the log ended when reading began: as far as the run goes without --follow
	page      []api.Record
	next      int64
}

// readDirect reads partitions by offset: first what is stored, merged by time, then with --follow what comes.
func (r *consumer) readDirect(ctx context.Context) error {
	readers, err := r.openPartitions(ctx)
	if err != nil {
		return err
	}
	if r.flags.follow && len(readers) > maxFollowed {
		return fmt.Errorf("--follow takes at most %d partitions without a group, these are %d; name some with --partition, or give --group", maxFollowed, len(readers))
	}
	if err := r.merge(ctx, readers); err != nil {
		return err
	}
	if !r.flags.follow {
		return nil
	}
	return r.followAll(ctx, readers)
}

// openPartitions finds the partitions to read and where each read begins and ends.
func (r *consumer) openPartitions(ctx context.Context) ([]*partitionReader, error) {
	var readers []*partitionReader
	for _, topic := range r.topics {
		info, _, err := r.client.Topic(ctx, topic)
		if err != nil {
			return nil, err
		}
		wanted := map[int]bool{}
		for _, p := range r.flags.partitions {
			if p < 0 || p >= info.Partitions {
				return nil, fmt.Errorf("topic %s has no partition %d; it has 0 to %d", topic, p, info.Partitions-1)
			}
			wanted[p] = true
		}
		for _, log := range info.Logs {
			if len(wanted) > 0 && !wanted[log.Partition] {
				continue
			}
			p := &partitionReader{r: r, topic: topic, partition: log.Partition, end: log.HighWatermark}
			p.from = r.place(topic, log)
			readers = append(readers, p)
		}
	}
	limit := r.pageLimit(len(readers))
	for i, p := range readers {
		p.index, p.limit = i, limit
	}
	return readers, nil
}

// pageLimit is how many records to fetch at once of each of n partitions: fewer where there are many, since a page of
// each is held.
func (r *consumer) pageLimit(n int) int {
	limit := max(10, r.flags.maxRecords*16/max(16, n))
	if r.flags.number > 0 {
		limit = int(min(int64(limit), r.flags.number))
	}
	return min(limit, r.flags.maxRecords)
}

// place is where a read of a log begins. An offset that is not there is moved to the nearest that is, and that is said.
func (r *consumer) place(topic string, log api.LogInfo) api.Place {
	s, offset := r.start, log.Start
	switch {
	case s.time != nil:
		return api.Place{Time: s.time}
	case s.latest:
		offset = log.HighWatermark
	case s.offset != nil && *s.offset < 0:
		offset = max(log.Start, log.HighWatermark+*s.offset)
	case s.offset != nil:
		offset = min(max(*s.offset, log.Start), log.HighWatermark)
		if offset != *s.offset {
			r.note("Partition %d of %s %s; reading begins at %d.", log.Partition, topic, extent(log), offset)
		}
	}
	return api.Place{Offset: &offset}
}

// extent says which offsets a log has.
func extent(log api.LogInfo) string {
	if log.Start == log.HighWatermark {
		return fmt.Sprintf("has no records, the next is %d", log.HighWatermark)
	}
	return fmt.Sprintf("has the offsets %d to %d", log.Start, log.HighWatermark-1)
}

// fetch gets the next page, waiting for records at the end for so long.
func (p *partitionReader) fetch(ctx context.Context, wait time.Duration) error {
	answer, err := p.r.client.Records(ctx, api.RecordsRequest{
		Topic: p.topic, Partition: p.partition, From: p.from, MaxRecords: p.limit, Wait: wait,
	})
	if err != nil {
		return p.outOfRange(err)
	}
	for _, d := range answer.Damaged {
		p.r.note("Records %d to %d of %s partition %d are damaged on disk and left out.", d.From, d.To-1, p.topic, p.partition)
	}
	p.page, p.next = answer.Records, answer.Next
	p.from = api.Place{Offset: &p.next}
	return nil
}

// outOfRange says what can be read instead.
func (p *partitionReader) outOfRange(err error) error {
	var refused *api.Error
	if errors.As(err, &refused) && refused.Status == http.StatusRequestedRangeNotSatisfiable && refused.Start != nil && refused.HighWatermark != nil {
		return fmt.Errorf("%s partition %d has the offsets %d to %d: %w", p.topic, p.partition, *refused.Start, *refused.HighWatermark-1, err)
	}
	return err
}

// head is the next record below end, fetching a page where needed; nil at the end.
func (p *partitionReader) head(ctx context.Context) (*api.Record, error) {
	for len(p.page) == 0 {
		before := p.from.Offset
		if before != nil && *before >= p.end {
			return nil, nil
		}
		if err := p.fetch(ctx, 0); err != nil {
			return nil, err
		}
		if len(p.page) == 0 && before != nil && p.next <= *before {
			return nil, nil
		}
	}
	if p.page[0].Offset >= p.end {
		return nil, nil
	}
	return &p.page[0], nil
}

// heads is a heap of partitions by the timestamp of their next record.
type heads []*partitionReader

func (h heads) Len() int      { return len(h) }
func (h heads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h heads) Less(i, j int) bool {
	a, b := h[i], h[j]
	if d := a.page[0].Timestamp - b.page[0].Timestamp; d != 0 {
		return d < 0
	}
	return a.index < b.index
}
func (h *heads) Push(x any) { *h = append(*h, x.(*partitionReader)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// merge prints what is stored, always the oldest of the next records of all partitions.
func (r *consumer) merge(ctx context.Context, readers []*partitionReader) (err error) {
	defer func() { err = errors.Join(err, r.flush()) }()
	var h heads
	for _, p := range readers {
		record, err := p.head(ctx)
		if err != nil {
			return err
		}
		if record != nil {
			h = append(h, p)
		}
	}
	heap.Init(&h)
	for len(h) > 0 {
		p := h[0]
		if err := r.print(p.topic, p.partition, &p.page[0]); err != nil {
			return err
		}
		p.page = p.page[1:]
		record, err := p.head(ctx)
		if err != nil {
			return err
		}
		if record == nil {
			heap.Pop(&h)
		} else {
			heap.Fix(&h, 0)
		}
	}
	return nil
}

// followAll prints what comes in any partition, one long poll for each.
func (r *consumer) followAll(ctx context.Context, readers []*partitionReader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var printing sync.Mutex
	var group sync.WaitGroup
	failed := make(chan error, len(readers))
	for _, p := range readers {
		group.Go(func() {
			if err := p.follow(ctx, &printing); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (p *partitionReader) follow(ctx context.Context, printing *sync.Mutex) error {
	pause := backoff{first: 200 * time.Millisecond, most: 5 * time.Second}
	for ctx.Err() == nil {
		if len(p.page) > 0 {
			if err := p.printPage(ctx, printing); err != nil {
				return err
			}
		}
		err := p.fetch(ctx, followWait)
		switch {
		case err == nil:
			pause.reset()
		case ctx.Err() != nil:
			return nil
		case retriable(err):
			p.r.wait(ctx, &pause, err)
		default:
			return err
		}
	}
	return nil
}

func (p *partitionReader) printPage(ctx context.Context, printing *sync.Mutex) error {
	printing.Lock()
	defer printing.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	for i := range p.page {
		if err := p.r.print(p.topic, p.partition, &p.page[i]); err != nil {
			return errors.Join(err, p.r.flush())
		}
	}
	p.page = nil
	return p.r.flush()
}
