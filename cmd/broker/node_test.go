package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// Layers stop against the arrows: each only after all above it have returned.
func TestLayersStopFromTheTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var stopped []string
		layer := func(name string) func(context.Context) error {
			return func(ctx context.Context) error {
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				stopped = append(stopped, name)
				return nil
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- layered(ctx, layer("disk"), layer("writer"), layer("consumers"), layer("doors")) }()
		synctest.Wait()
		if len(stopped) > 0 {
			t.Fatalf("%v stopped before the end", stopped)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if want := []string{"doors", "consumers", "writer", "disk"}; !slices.Equal(stopped, want) {
			t.Fatalf("stopped in order %v, want %v", stopped, want)
		}
	})
}

// A layer that fails stops all others, and its error is what is returned.
func TestAFailingLayerStopsAll(t *testing.T) {
	cause := errors.New("the disk is gone")
	wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
	fail := func(context.Context) error { return cause }
	for name, layers := range map[string][]func(context.Context) error{
		"at the bottom":  {fail, wait, wait},
		"in the middle":  {wait, fail, wait},
		"at the top":     {wait, wait, fail},
		"beside another": {wait, parallel(wait, fail), wait},
	} {
		if err := layered(t.Context(), layers...); !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
