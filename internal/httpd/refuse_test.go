package httpd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// The statuses of docs/design.md, section 6.
func TestRefuseError(t *testing.T) {
	for _, tc := range []struct {
		name          string
		err           error
		status        int
		retry, reason string
	}{
		{"wrong name", topology.CheckTopicName("..", false), 400, "", ""},
		{"no topic", topology.ErrUnknownTopic, 404, "", ""},
		{"no group", topology.ErrUnknownGroup, 404, "", ""},
		{"slow body", httpd.ErrBodyTimeout, 408, "", ""},
		{"other settings", topology.ErrConflict, 409, "", ""},
		{"too large", topology.ErrTooLarge, 413, "", ""},
		{"encoding", httpd.ErrEncoding, 415, "", ""},
		{"no leader", topology.ErrNotLeader, 421, "", ""},
		{"budget", topology.ErrBusy, 429, "1", "busy"},
		{"unavailable", topology.ErrUnavailable, 503, "1", "unavailable"},
		{"stopping", topology.ErrShuttingDown, 503, "1", "shutting-down"},
		{"disk", topology.ErrDiskFull, 507, "10", "disk-full"},
		{"unknown outcome", topology.ErrOutcomeUnknown, 504, "", ""},
		{"what made the outcome unknown does not count", fmt.Errorf("%w: %w", topology.ErrOutcomeUnknown, topology.ErrUnavailable), 504, "", ""},
		{"given up", context.Canceled, 504, "", ""},
		{"anything else", errors.New("pq: password is hunter2"), 500, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			httpd.RefuseError(w, fmt.Errorf("append to t/3: %w", tc.err))
			if w.Code != tc.status {
				t.Fatalf("status %d, want %d", w.Code, tc.status)
			}
			if got := w.Header().Get("Retry-After"); got != tc.retry {
				t.Errorf("Retry-After is %q, want %q", got, tc.retry)
			}
			if got := w.Header().Get("Skein-Reason"); got != tc.reason {
				t.Errorf("Skein-Reason is %q, want %q", got, tc.reason)
			}
			if got := w.Header().Get("Content-Length"); got != strconv.Itoa(w.Body.Len()) {
				t.Errorf("Content-Length is %q of %d bytes", got, w.Body.Len())
			}
			if p := problemOf(t, w); strings.Contains(p.Detail, "hunter2") {
				t.Errorf("the detail tells what it should not: %q", p.Detail)
			}
		})
	}
}

func TestRefuseRetryRoundsUp(t *testing.T) {
	for after, want := range map[time.Duration]string{0: "1", -time.Second: "1", time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", time.Minute: "60"} {
		w := httptest.NewRecorder()
		httpd.RefuseRetry(w, 503, "x", after, "")
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("Retry-After of %s is %q, want %q", after, got, want)
		}
	}
}

func TestRefuseWith(t *testing.T) {
	w := httptest.NewRecorder()
	httpd.RefuseWith(w, 416, "offset 7 is out of range", map[string]any{"start": 10, "highWatermark": 20, "status": 1})
	problemOf(t, w)
	var p map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if p["start"] != 10.0 || p["highWatermark"] != 20.0 {
		t.Errorf("problem %v", p)
	}
}

func TestWriteJSON(t *testing.T) {
	w := httptest.NewRecorder()
	httpd.WriteJSON(w, 201, map[string]string{"a": "<&>"})
	if got := w.Body.String(); got != "{\"a\":\"<&>\"}\n" || w.Code != 201 || w.Header().Get("Content-Length") != "12" {
		t.Errorf("%d %q %v", w.Code, got, w.Header())
	}
	w = httptest.NewRecorder()
	httpd.WriteJSON(w, 200, math.NaN())
	if w.Code != 500 {
		t.Errorf("what does not marshal is answered with %d", w.Code)
	}
	problemOf(t, w)
}

func TestParseWait(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": 0, "500": 500 * time.Millisecond, "10s": 10 * time.Second, "1m30s": 90 * time.Second, "250ms": 250 * time.Millisecond} {
		if got, err := httpd.ParseWait(s); err != nil || got != want {
			t.Errorf("ParseWait(%q) = %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "-1", "-1s", "x", "9223372036854775807", "1d", "1.5", "99999999999h"} {
		if _, err := httpd.ParseWait(s); !errors.Is(err, topology.ErrInvalid) || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("ParseWait(%q): %v", s, err)
		}
	}
}

func TestParseTime(t *testing.T) {
	want := time.Date(2026, 1, 31, 12, 0, 0, 500e6, time.UTC)
	for _, s := range []string{"2026-01-31T12:00:00.5Z", "2026-01-31T13:00:00.500+01:00", strconv.FormatInt(want.UnixMilli(), 10)} {
		if got, err := httpd.ParseTime(s); err != nil || !got.Equal(want) {
			t.Errorf("ParseTime(%q) = %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "yesterday", "2026-01-31", "1e9"} {
		if _, err := httpd.ParseTime(s); !errors.Is(err, topology.ErrInvalid) {
			t.Errorf("ParseTime(%q): %v", s, err)
		}
	}
}
