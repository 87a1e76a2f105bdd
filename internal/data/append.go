package data

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// prepare chooses the segment of a part, rolling where it is due, and opens it.
func (s *Store) prepare(p *part) error {
	l := p.l
	if l.failed != nil {
		return fmt.Errorf("append to %s: %w: being repaired: %w", l.id, topology.ErrUnavailable, l.failed)
	}
	version := topology.Version(0)
	for _, a := range p.appends {
		version = max(version, a.Version)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := s.load(l); err != nil {
		return fmt.Errorf("append to %s: %w: %w", l.id, topology.ErrUnavailable, err)
	}
	for _, a := range p.appends {
		if a.Version != version || version < l.stretches.last() {
			return fmt.Errorf("append to %s: %w: at version %d, the log is at %d", l.id, topology.ErrUnavailable, a.Version, l.stretches.last())
		}
	}
	if n := len(l.segs); n > 0 && !s.mustRoll(l, l.segs[n-1], p.size) {
		p.seg = l.segs[n-1]
		p.pos = p.seg.size
	} else {
		p.seg, p.isNew = &segment{base: l.end, first: noTime, max: noTime}, true
	}
	var err error
	if p.isNew {
		p.handle, err = s.create(l, p.seg, anew)
	} else {
		p.handle, err = s.acquire(l, p.seg, mustExist)
	}
	if err != nil {
		return notWritten(l, err)
	}
	return nil
}

// mustRoll says whether n more bytes go to a new segment. The caller holds l.mu.
func (s *Store) mustRoll(l *log, seg *segment, n int64) bool {
	if l.roll {
		return true
	}
	if seg.size == 0 {
		return false
	}
	bytes, age := s.segmentLimits(l.id.Topic)
	if seg.size+n > bytes {
		return true
	}
	first := l.last.first
	return first != noTime && s.cfg.Now().UnixMilli()-first >= age.Milliseconds()
}

// segmentLimits are the size and age at which segments of a topic roll. Retention removes whole segments, so they are kept
// to a quarter of what it keeps.
func (s *Store) segmentLimits(topic [16]byte) (int64, time.Duration) {
	const smallest = 64 << 10
	bytes, age := s.cfg.SegmentBytes, s.cfg.SegmentAge
	p, ok := s.cfg.Policy(topic)
	if !ok {
		return bytes, age
	}
	if p.SegmentBytes > 0 {
		bytes = min(p.SegmentBytes, maxSegmentBytes)
	}
	if p.SegmentAge > 0 {
		age = p.SegmentAge
	}
	if p.RetentionBytes > 0 {
		bytes = min(bytes, max(p.RetentionBytes/4, smallest))
	}
	if p.RetentionAge > 0 {
		age = min(age, max(p.RetentionAge/4, time.Second))
	}
	return bytes, age
}

// create makes the file of a new segment, and the directory of its log where there is none.
func (s *Store) create(l *log, seg *segment, mode openMode) (*handle, error) {
	seg.fresh = true
	if len(l.segs) == 0 {
		if err := s.fs.MkdirAll(s.paths.log(l.id)); err != nil {
			return nil, err
		}
		l.newDir = true
	}
	h, err := s.acquire(l, seg, mode)
	if err != nil {
		return nil, err
	}
	h.idx.mu.Lock()
	h.idx.loaded = true
	h.idx.mu.Unlock()
	return h, nil
}

// notWritten tells an append that failed before anything could count.
func notWritten(l *log, err error) error {
	if full(err) {
		return fmt.Errorf("append to %s: %w: %w", l.id, topology.ErrDiskFull, err)
	}
	return fmt.Errorf("append to %s: %w: %w", l.id, topology.ErrUnavailable, err)
}

// full says whether err means that the disk has no room.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// write gives the chunks of a part their offsets and writes them behind the last committed chunk of their segment. A
// chunk that fails here is not in the journal, so it counts as not written: what the file holds of it is cut off again.
func (s *Store) write(p *part) error {
	l := p.l
	l.mu.Lock()
	p.next = l.end
	l.mu.Unlock()
	for i, a := range p.appends {
		a.Base = p.next
		recordbatch.SetPosition(a.Batch, a.Base, a.Version)
		p.heads[i].BaseOffset, p.heads[i].Version = a.Base, a.Version
		p.next = p.heads[i].Next()
		p.bufs = append(p.bufs, a.Batch)
	}
	err := p.handle.WriteV(p.bufs, p.pos)
	if err == nil {
		return nil
	}
	s.metrics.failures.Inc()
	cut := p.handle.Truncate(p.pos)
	if cut != nil || !full(err) {
		s.fail(l, errors.Join(err, cut))
	}
	if cut != nil && s.cfg.Flush == FlushInterval {
		return fmt.Errorf("append to %s: %w: %w", l.id, topology.ErrOutcomeUnknown, err)
	}
	return notWritten(l, err)
}

// fail makes a log refuse appends until Repair has written it again and checked it.
func (s *Store) fail(l *log, err error) {
	if l.failed == nil {
		s.failing = append(s.failing, l)
		s.logger.Error().Err(err).Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).
			Msg("log failed: it takes no appends until it is repaired")
	}
	l.failed = err
	s.markDirty(l)
	nudge(s.mend)
}

// publish shows the chunks of a part to readers.
func (s *Store) publish(p *part) {
	l := p.l
	interval := int64(s.cfg.IndexInterval)
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.isNew {
		l.attach(p.seg)
		l.roll = false
	}
	p.handle.idx.mu.Lock()
	defer p.handle.idx.mu.Unlock()
	pos := p.pos
	for i, h := range p.heads {
		l.publish(p.seg, h, pos)
		p.handle.idx.add(indexEntry{offset: h.BaseOffset, pos: pos, time: max(p.seg.max, h.BaseTimestamp)}, interval)
		pos += int64(len(p.appends[i].Batch))
	}
	if p.isNew { // by our clock: a segment of old chunks shall not roll at once
		p.seg.first = max(p.seg.first, s.cfg.Now().UnixMilli())
		l.noteLast()
	}
	if n := len(l.segs); p.flushed && (n == 1 || !l.segs[n-2].dirty()) { // the dirty segments stay the last ones
		p.seg.synced = p.seg.size
		if p.seg.fresh {
			p.seg.fresh, l.newDir = false, false
		}
	}
	l.lsn = s.journal.lsn
	s.markDirty(l)
}
