package producing

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// LogReader reads logs; data.Store satisfies it.
type LogReader interface {
	// Info tells the bounds of a log.
	Info(log topology.LogID) data.LogInfo
	// OffsetForTime is the first chunk appended at t or later, or the end of the log.
	OffsetForTime(log topology.LogID, t time.Time) (topology.Offset, error)
	// Read reads whole chunks from an offset on, at least one. buf is grown and handed back.
	Read(log topology.LogID, from topology.Offset, maxBytes int, buf []byte) (data.ReadResult, []byte, error)
}

// idemScan is how far the keys of a log have been read. It goes on where an attempt that took too long stopped.
type idemScan struct {
	begun    bool
	next, to topology.Offset
	order    []idemAge
	partial  map[digest]idemEntry // requests of which the first records were read, not yet all
}

const (
	scanBytes = 1 << 20 // read at once
	// clockSlack is how far the clock may have been set back before this run without a key of an earlier run being missed.
	clockSlack = time.Minute
)

// load reads the keys of t from its log, or waits for who does. It is called with d.mu held and returns without it.
func (d *idempotency) load(ctx context.Context, t *idemTable) error {
	if loading := t.loading; loading != nil {
		d.mu.Unlock()
		timer := time.NewTimer(d.cfg.LoadWait)
		defer timer.Stop()
		select {
		case <-loading:
			return nil
		case <-timer.C:
		case <-ctx.Done():
		}
		return d.notLoaded(t)
	}
	t.loading = make(chan struct{})
	scan := t.scan
	full, epoch := t.rescan, t.epoch
	d.mu.Unlock()

	found, err := d.read(ctx, t.log, &scan, full)

	d.mu.Lock()
	defer d.mu.Unlock()
	close(t.loading)
	t.loading = nil
	if t.epoch != epoch {
		return d.notLoaded(t) // what was read may not be all by now
	}
	for _, f := range found {
		if _, newer := t.entries[f.key]; !newer {
			d.add(t, f.key, f.entry)
		}
		scan.order = append(scan.order, idemAge{f.key, f.entry.time})
	}
	t.scan = scan
	if err != nil {
		return err
	}
	if !scan.begun || scan.next < scan.to {
		return d.notLoaded(t)
	}
	t.order = append(scan.order, t.order[t.head:]...)
	t.head = 0
	t.scan = idemScan{}
	t.loaded = true
	d.prune(t)
	return nil
}

func (d *idempotency) notLoaded(t *idemTable) error {
	return fmt.Errorf("%w: the idempotency keys of partition %d are being read from its log", topology.ErrUnavailable, t.log.Partition)
}

type foundKey struct {
	key   digest
	entry idemEntry
}

// read goes on with a scan, until it is done, ctx ends or it has taken as long as a request may wait.
func (d *idempotency) read(ctx context.Context, log topology.LogID, s *idemScan, full bool) ([]foundKey, error) {
	if !s.begun {
		if err := d.begin(log, s, full); err != nil {
			return nil, fmt.Errorf("%w: the idempotency keys of partition %d could not be read: %w", topology.ErrUnavailable, log.Partition, err)
		}
		d.loads.Inc()
	}
	var found []foundKey
	var buf []byte
	var decoder recordbatch.Decoder
	until := time.Now().Add(d.cfg.LoadWait)
	for s.next < s.to && ctx.Err() == nil && time.Now().Before(until) {
		var res data.ReadResult
		var err error
		if res, buf, err = d.cfg.Logs.Read(log, s.next, scanBytes, buf); err != nil {
			return found, fmt.Errorf("%w: the idempotency keys of partition %d could not be read: %w", topology.ErrUnavailable, log.Partition, err)
		}
		for i := range res.Chunks {
			c := &res.Chunks[i]
			if c.Header.Idempotent() {
				found = s.take(found, c, &decoder)
			}
		}
		if res.Next <= s.next {
			return found, fmt.Errorf("%w: the log of partition %d does not go on at %d", topology.ErrUnavailable, log.Partition, s.next)
		}
		s.next = res.Next
	}
	return found, nil
}

// begin finds what of the log is to be read: what was written within the window and, unless full, before this run.
func (d *idempotency) begin(log topology.LogID, s *idemScan, full bool) error {
	info := d.cfg.Logs.Info(log)
	s.partial = map[digest]idemEntry{}
	s.next, s.to = info.HighWatermark, info.HighWatermark
	if info.HighWatermark <= info.Start {
		s.begun = true
		return nil
	}
	from, err := d.cfg.Logs.OffsetForTime(log, d.cfg.Now().Add(-d.cfg.Window))
	if err != nil {
		return err
	}
	if !full {
		if s.to, err = d.cfg.Logs.OffsetForTime(log, d.started.Add(clockSlack)); err != nil {
			return err
		}
		s.to = min(s.to, info.HighWatermark)
	}
	s.next = max(from, info.Start)
	s.begun = true
	return nil
}

// take collects the marks of one chunk. A request counts once all its records have been seen, one after the other.
func (s *idemScan) take(found []foundKey, c *data.Chunk, decoder *recordbatch.Decoder) []foundKey {
	records, err := decoder.Decode(c.Bytes)
	if err != nil {
		return found // what cannot be decoded is reported by the store
	}
	for i := range records {
		r := &records[i]
		value, ok := r.Hidden(idemHeader)
		if !ok {
			continue
		}
		p, ok := parseMark(value)
		if !ok {
			continue
		}
		offset := c.Header.BaseOffset + topology.Offset(i)
		here := min(len(records)-i, p.total-p.index)
		e := s.partial[p.key]
		if p.index == 0 {
			e = idemEntry{request: p.request, base: offset, version: c.Header.Version, time: p.time}
		} else if e.records != p.index || e.base+topology.Offset(p.index) != offset || e.request != p.request {
			delete(s.partial, p.key)
			continue
		}
		e.records += here
		if e.records < p.total {
			s.partial[p.key] = e
			continue
		}
		delete(s.partial, p.key)
		found = append(found, foundKey{p.key, e})
	}
	return found
}
