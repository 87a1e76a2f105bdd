package cli

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/cli/clitest"
)

// stocked is a broker with a topic of two partitions' worth of records, whose timestamps interleave.
func stocked(t *testing.T) *clitest.Broker {
	b := clitest.New(t)
	b.Create("orders", 3)
	for i := range 4 {
		b.Add("orders", i%2, clitest.Record{
			Key: []byte(fmt.Sprintf("k%d", i%2)), Value: []byte(fmt.Sprintf(`{"n": %d}`, i)), Headers: [][2][]byte{{[]byte("a"), []byte("b")}, {[]byte("c"), []byte("\xff")}},
		})
	}
	b.Add("orders", 2, clitest.Record{Value: []byte("text")}, clitest.Record{Value: []byte("\xff\x00")}, clitest.Record{}, clitest.Record{Value: []byte{}})
	return b
}

func TestConsumeForms(t *testing.T) {
	b := stocked(t)
	for name, args := range map[string][]string{
		"values":  nil,
		"json":    {"--json"},
		"formats": {"-f", `%t|%p|%o|%k|%K|%v|%s|%S|%T|%h|%%|\x41\n`},
		"lengths": {"-f", "%R%s"},
	} {
		golden(t, "consume-"+name, mustRun(t, b, "", append([]string{"consume", "orders"}, args...)...))
	}
}

func TestConsumeDirect(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all in the order of time":      {nil, "0/0 1/0 0/1 1/1 2/0 2/1 2/2 2/3"},
		"the first three":               {[]string{"-n", "3"}, "0/0 1/0 0/1"},
		"more than there are":           {[]string{"-n", "99"}, "0/0 1/0 0/1 1/1 2/0 2/1 2/2 2/3"},
		"one partition":                 {[]string{"-p", "1"}, "1/0 1/1"},
		"two partitions from an offset": {[]string{"-p", "0,1", "-o", "1"}, "0/1 1/1"},
		"the last of each":              {[]string{"-o", "-1"}, "0/1 1/1 2/3"},
		"more than the last of each":    {[]string{"-p", "0", "-o", "-9"}, "0/0 0/1"},
		"the end":                       {[]string{"--from", "latest"}, ""},
		"a time":                        {[]string{"--from", "2026-03-01T08:00:00.004Z"}, "1/1 2/0 2/1 2/2 2/3"},
		"ms since the epoch":            {[]string{"--from", "1772352000007"}, "2/2 2/3"},
		"a while ago":                   {[]string{"--from", "1h"}, "0/0 1/0 0/1 1/1 2/0 2/1 2/2 2/3"},
		"a shorter while ago":           {[]string{"--from", "59m"}, ""},
		"in pages of one":               {[]string{"--max-records", "1"}, "0/0 1/0 0/1 1/1 2/0 2/1 2/2 2/3"},
	} {
		t.Run(name, func(t *testing.T) {
			out := mustRun(t, stocked(t), "", append([]string{"consume", "orders", "-f", "%p/%o "}, c.args...)...)
			if got := strings.TrimSpace(out); got != c.want {
				t.Errorf("printed %q, want %q", got, c.want)
			}
		})
	}
}

func TestConsumeSeveralTopics(t *testing.T) {
	b := stocked(t)
	b.Create("other", 1)
	b.Add("other", 0, clitest.Record{Value: []byte("x"), Timestamp: 1})
	if out := mustRun(t, b, "", "consume", "orders", "other", "-f", "%t ", "-n", "2"); out != "other orders " {
		t.Errorf("printed %q", out)
	}
}

func TestConsumeErrors(t *testing.T) {
	b := stocked(t)
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown topic":          {[]string{"consume", "nope"}, 1, "topic nope: unknown topic: nope (status 404)\nSee 'broker topics list', or create it with 'broker topics create nope'"},
		"unknown partition":      {[]string{"consume", "orders", "-p", "3"}, 1, "topic orders has no partition 3; it has 0 to 2"},
		"out of range":           {[]string{"consume", "orders", "-p", "0", "-o", "7"}, 0, "Partition 0 of orders has the offsets 0 to 1; reading begins at 2."},
		"group with an offset":   {[]string{"consume", "orders", "-g", "g", "-o", "1"}, 2, "move a group with 'broker groups seek'"},
		"two forms":              {[]string{"consume", "orders", "--json", "-f", "%v"}, 2, "exclude each other"},
		"unknown token":          {[]string{"consume", "orders", "-f", "%z"}, 2, "unknown token %z; known are"},
		"lone percent":           {[]string{"consume", "orders", "-f", "%"}, 2, "write %% for a percent sign"},
		"a wrong start":          {[]string{"consume", "orders", "--from", "monday"}, 2, `--from: "monday" is not earliest, latest or a time`},
		"an id without a group":  {[]string{"consume", "orders", "--consumer-id", "c"}, 2, "give --group too"},
		"a negative number":      {[]string{"consume", "orders", "-n", "-1"}, 2, "give 1 or more"},
		"a group with no name":   {[]string{"consume", "orders", "-g", "\x01"}, 2, "control character"},
		"no topic":               {[]string{"consume"}, 2, "requires at least 1 arg"},
		"an internal topic read": {[]string{"consume", "__topics"}, 1, "unknown topic"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, b, "", c.args...)
			if r.code != c.code || !strings.Contains(r.err, c.want) {
				t.Errorf("exit code %d, stderr %q, want %d and %q", r.code, r.err, c.code, c.want)
			}
		})
	}
}

// A group goes on where it stopped: what was printed is committed, and only that (docs/design.md, section 7).
func TestConsumeGroup(t *testing.T) {
	b := stocked(t)
	var got string
	for _, n := range []string{"3", "1", "99"} {
		got += mustRun(t, b, "", "consume", "orders", "-g", "g", "-n", n, "-f", "%p/%o ") + "| "
	}
	if want := "0/0 0/1 1/0 | 1/1 | 2/0 2/1 2/2 2/3 | "; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if members := b.Members("g"); len(members) != 0 {
		t.Errorf("members %q stayed in the group", members)
	}
	for p, want := range []int{2, 2, 4} {
		if at := b.Committed("g", "orders", p); at != want {
			t.Errorf("partition %d is committed to %d, want %d", p, at, want)
		}
	}
	if r := run(t, b, "", "consume", "orders", "-g", "g"); r.out != "" || r.code != 0 {
		t.Errorf("after the end: %q, exit code %d", r.out, r.code)
	}
}

func TestConsumeGroupStarts(t *testing.T) {
	b := stocked(t)
	if out := mustRun(t, b, "", "consume", "orders", "-g", "late", "--from", "latest"); out != "" {
		t.Errorf("a new group from latest printed %q", out)
	}
	r := run(t, b, "", "consume", "orders", "-g", "timed", "--from", "2026-03-01T08:00:00.007Z", "-f", "%p/%o ")
	if r.out != "2/2 2/3 " || r.err != "" {
		t.Errorf("a new group from a time printed %q, %q", r.out, r.err)
	}
	r = run(t, b, "", "consume", "orders", "-g", "timed", "--from", "2026-03-01T08:00:00Z", "-f", "%p/%o ")
	if r.out != "" || !strings.Contains(r.err, "Group timed has positions on orders already and goes on there") {
		t.Errorf("a group with positions printed %q, %q", r.out, r.err)
	}
}

// Each poll acknowledges the answer before it by name, the first none, and the last answer is committed on leaving.
func TestConsumeGroupAcknowledges(t *testing.T) {
	b := stocked(t)
	mustRun(t, b, "", "consume", "orders", "-g", "g", "--consumer-id", "c", "--max-records", "3", "-n", "6")
	var got []string
	for _, r := range b.Requests() {
		if path, query, _ := strings.Cut(r, "?"); strings.HasPrefix(path, "POST /v1/consumer/") {
			got = append(got, strings.TrimPrefix(path, "POST /v1/consumer/")+" "+query)
		}
	}
	equal(t, "requests", got, []string{
		"poll ack=none&consumerId=c&maxRecords=3&wait=500ms",
		"poll ack=c.1&consumerId=c&maxRecords=3&wait=500ms",
		"commit ack=c.2&consumerId=c",
		"goodbye commit=false&consumerId=c",
	})
}

// until runs a command that a signal ends, after cond holds.
func until(t *testing.T, b *clitest.Broker, cond func() bool, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for i := 0; i < 2000 && !cond(); i++ {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	return runCtx(ctx, t, b, "", args...)
}

func TestConsumeFollowsUntilASignal(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		sees string // a request that is waiting when new records come
	}{
		"group":  {[]string{"-g", "g"}, "POST /v1/consumer/poll?ack="},
		"direct": {nil, "GET /v1/topic/orders/partitions/0/records?maxRecords=1000&offset=2&wait="},
	} {
		t.Run(name, func(t *testing.T) {
			b := stocked(t)
			var added atomic.Bool
			b.Inject(func(_ http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.Method+" "+r.URL.RequestURI(), c.sees) && r.URL.Query().Get("wait") == "20000ms" && added.CompareAndSwap(false, true) {
					time.AfterFunc(50*time.Millisecond, func() { b.Add("orders", 0, clitest.Record{Value: []byte("new")}) })
				}
				return false
			})
			seen := func() bool {
				return added.Load() && b.Count("orders") == 9 && (name == "direct" || b.Committed("g", "orders", 0) == 3 || len(b.Requests()) > 4)
			}
			var once atomic.Int64
			r := until(t, b, func() bool {
				// A moment after the record came it is printed.
				return seen() && once.Add(1) > 40
			}, append([]string{"consume", "orders", "--follow", "-f", "%v\n"}, c.args...)...)
			if r.code != 0 || r.err != "" || !strings.HasSuffix(r.out, "new\n") {
				t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.out, r.err)
			}
			if name == "group" {
				if at := b.Committed("g", "orders", 0); at != 3 || len(b.Members("g")) != 0 {
					t.Errorf("committed to %d, members %q; want what was printed, and none", at, b.Members("g"))
				}
			}
		})
	}
}

// Output that fails is not committed, so the records come again.
func TestConsumeGroupDoesNotCommitWhatIsNotPrinted(t *testing.T) {
	b := stocked(t)
	c := root(Options{Out: brokenPipe{}, Err: &strings.Builder{}, Getenv: func(string) string { return b.URL }, Terminal: func(any) bool { return false }})
	c.SetArgs([]string{"consume", "orders", "-g", "g"})
	if err := c.ExecuteContext(context.Background()); err != nil {
		t.Errorf("a closed pipe gives %v, want a quiet end", err)
	}
	for p := range 3 {
		if at := b.Committed("g", "orders", p); at != 0 {
			t.Errorf("partition %d is committed to %d, want 0", p, at)
		}
	}
	if len(b.Members("g")) != 0 {
		t.Errorf("members %q stayed", b.Members("g"))
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A member that the broker has forgotten registers again.
func TestConsumeGroupRegistersAgain(t *testing.T) {
	b := stocked(t)
	var polls atomic.Int32
	b.Inject(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/consumer/poll" && polls.Add(1) == 2 {
			b.Forget()
		}
		return false
	})
	r := run(t, b, "", "consume", "orders", "-g", "g", "--max-records", "4", "-f", "%p/%o ")
	// What was printed and not committed when the broker forgot comes again: at least once.
	if want := "0/0 0/1 1/0 1/1 0/0 0/1 1/0 1/1 2/0 2/1 2/2 2/3 "; r.code != 0 || r.out != want {
		t.Errorf("exit code %d, printed %q, want %q", r.code, r.out, want)
	}
	if !strings.Contains(r.err, "Consumer not registered (status 409); trying again") {
		t.Errorf("stderr %q", r.err)
	}
}

func TestConsumeGroupOutlastsABrokerThatIsBusy(t *testing.T) {
	b := stocked(t)
	var polls atomic.Int32
	b.Inject(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/consumer/poll" || polls.Add(1) > 2 {
			return false
		}
		if polls.Load() == 1 {
			panic(http.ErrAbortHandler)
		}
		clitest.Refuse(w, 503, "shutting down", 0)
		return true
	})
	r := run(t, b, "", "consume", "orders", "-g", "g", "-n", "8", "-f", "%p/%o ")
	if want := "0/0 0/1 1/0 1/1 2/0 2/1 2/2 2/3 "; r.code != 0 || r.out != want {
		t.Errorf("exit code %d, printed %q, want %q; stderr %q", r.code, r.out, want, r.err)
	}
}
