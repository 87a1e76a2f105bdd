package producing

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// budget counts the bytes that requests and rounds hold.
type budget struct {
	limit   int64
	used    atomic.Int64
	waiting atomic.Int32 // goroutines in wait

	mu    sync.Mutex
	freed chan struct{} // under mu: closed when bytes are released while somebody waits
}

// reserve takes n bytes, or nothing and returns topology.ErrBusy. One request may always be held, however large.
func (b *budget) reserve(n int64) error {
	if used := b.used.Add(n); used > b.limit && used != n {
		b.release(n)
		return fmt.Errorf("%w: %d of %d bytes are held by requests in flight", topology.ErrBusy, used-n, b.limit)
	}
	return nil
}

// release gives n bytes back.
func (b *budget) release(n int64) {
	if n == 0 {
		return
	}
	b.used.Add(-n)
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	b.mu.Unlock()
}

// wait is reserve that waits up to limit for bytes to be released.
func (b *budget) wait(ctx context.Context, n int64, limit time.Duration) error {
	err := b.reserve(n)
	if err == nil {
		return nil
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		b.mu.Lock()
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		if err = b.reserve(n); err == nil {
			return nil
		}
		select {
		case <-freed:
		case <-timer.C:
			return err
		case <-ctx.Done():
			return err
		}
	}
}
