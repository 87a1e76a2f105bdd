//go:build faults

package faults

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random choices; 0 draws one")

func TestMain(m *testing.M) { harness.Main(m) }

// random is the source of the choices of one test. A failure prints its seed.
func random(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with -seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0)), seed
}
