package cli

import (
	"math/rand/v2"
	"time"
)

// backoff gives growing pauses: doubled each time, at least what the broker asks for, spread by a quarter so that many
// clients do not come back at once.
type backoff struct {
	first, most time.Duration
	last        time.Duration
}

func (b *backoff) next(asked time.Duration) time.Duration {
	switch {
	case b.last == 0:
		b.last = b.first
	default:
		b.last = min(2*b.last, b.most)
	}
	wait := max(b.last, asked)
	return wait + time.Duration(rand.Int64N(int64(wait)/4+1))
}

func (b *backoff) reset() { b.last = 0 }
