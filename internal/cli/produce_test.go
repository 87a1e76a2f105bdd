package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/cli/clitest"
	"pgregory.net/rapid"
)

// values of all records of a topic of one partition.
func values(b *clitest.Broker, topic string) []string {
	var out []string
	for _, r := range b.Stored(topic, 0) {
		if r.Value == nil {
			out = append(out, "<null>")
			continue
		}
		out = append(out, string(r.Value))
	}
	return out
}

func one(b *clitest.Broker, topic string) *clitest.Broker {
	b.Create(topic, 1)
	return b
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestProduceLines(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		stdin string
		want  []string
	}{
		"lines of stdin":                   {nil, "one\ntwo\nthree\n", []string{"one", "two", "three"}},
		"last line without a newline":      {nil, "one\ntwo", []string{"one", "two"}},
		"carriage returns go":              {nil, "one\r\ntwo\r\n", []string{"one", "two"}},
		"empty lines are empty values":     {nil, "one\n\ntwo\n", []string{"one", "", "two"}},
		"empty values as null":             {[]string{"-Z"}, "one\n\n", []string{"one", "<null>"}},
		"any bytes":                        {nil, "\xff\x00\x80\n\x7f\"\\\t\n", []string{"\xff\x00\x80", "\x7f\"\\\t"}},
		"text that looks like a wrapping":  {nil, "{\"$base64\":\"aGk=\"}\n{\"$text\":1}\n", []string{`{"$base64":"aGk="}`, `{"$text":1}`}},
		"JSON keeps its spaces":            {[]string{"--ndjson"}, "{\"a\" : 1}\n\n  [1,2]  \n", []string{`{"a" : 1}`, "[1,2]"}},
		"no input at all":                  {nil, "", nil},
		"in requests of two":               {[]string{"--batch", "2"}, "1\n2\n3\n4\n5\n", []string{"1", "2", "3", "4", "5"}},
		"compressed with gzip":             {[]string{"-z", "gzip"}, "one\ntwo\n", []string{"one", "two"}},
		"compressed with zstd":             {[]string{"-z", "zstd"}, "one\ntwo\n", []string{"one", "two"}},
		"the whole of stdin":               {[]string{"--whole"}, "one\ntwo\n", []string{"one\ntwo\n"}},
		"records as consume prints them":   {[]string{"--records"}, `{"topic":"x","partition":3,"offset":9,"timestamp":5,"key":"k","value":{"a":1}}` + "\n", []string{`{"a":1}`}},
		"records with text and with bytes": {[]string{"--records"}, `{"value":"text","text":true}` + "\n" + `{"value":"text"}` + "\n" + `{"value":{"$base64":"/w=="}}` + "\n" + `{"value":null}` + "\n", []string{"text", `"text"`, "\xff", "<null>"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := one(clitest.New(t), "greetings")
			r := run(t, b, c.stdin, append([]string{"produce", "greetings"}, c.args...)...)
			if r.code != 0 || r.out != "" || r.err != "" {
				t.Fatalf("exit code %d, stdout %q, stderr %q; want silence", r.code, r.out, r.err)
			}
			equal(t, "stored", values(b, "greetings"), c.want)
		})
	}
}

func TestProduceKeysHeadersTimestamps(t *testing.T) {
	b := one(clitest.New(t), "orders")
	mustRun(t, b, "k1\tone\nk2\ttwo\ttabs\n\tno key\n", "produce", "orders", "-K", `\t`, "-H", "source=import", "-H", "lang=né=x", "--timestamp", "2026-01-02T03:04:05Z")
	mustRun(t, b, "three\n", "produce", "orders", "--key", "k3", "--timestamp", "1700000000123")
	mustRun(t, b, `{"key":{"$base64":"/w=="},"value":1,"headers":[["a","b"],["a","c"]],"timestamp":7}`+"\n", "produce", "orders", "--records", "-H", "own=1")
	mustRun(t, b, "any\n", "produce", "orders", "--whole", "--key", "k4", "-H", "x=y", "--timestamp", "1700000000123")
	var got []string
	for _, r := range b.Stored("orders", 0) {
		got = append(got, fmt.Sprintf("%q %q %s %d", r.Key, r.Value, r.Headers, r.Timestamp))
	}
	equal(t, "stored", got, []string{
		`"k1" "one" [[source import] [lang né=x]] 1767323045000`,
		`"k2" "two\ttabs" [[source import] [lang né=x]] 1767323045000`,
		`"" "no key" [[source import] [lang né=x]] 1767323045000`,
		`"k3" "three" [] 1700000000123`,
		`"\xff" "1" [[a b] [a c] [own 1]] 7`,
		`"k4" "any\n" [[x y]] 1700000000123`,
	})
}

func TestProduceFiles(t *testing.T) {
	b := one(clitest.New(t), "t")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := write("a", "1\n2\n"), write("b", "3")
	mustRun(t, b, "stdin\n", "produce", "t", first, "-", second)
	mustRun(t, b, "", "produce", "t", "--whole", first, second)
	equal(t, "stored", values(b, "t"), []string{"1", "2", "stdin", "3", "1\n2\n", "3"})

	r := run(t, b, "", "produce", "t", first, filepath.Join(dir, "missing"))
	if r.code != 1 || !strings.Contains(r.err, "missing: no such file") || !strings.Contains(r.err, "2 records stored in t.") {
		t.Errorf("a missing file: exit code %d, %q", r.code, r.err)
	}
}

func TestProduceReceipts(t *testing.T) {
	b := one(clitest.New(t), "t")
	golden(t, "produce-receipts", mustRun(t, b, "1\n2\n", "produce", "t", "--receipts"))
	golden(t, "produce-receipts-json", mustRun(t, b, "3\n", "produce", "t", "--json"))
}

// A wrong line ends the command, names the line, and what stands before it is stored.
func TestProduceNamesTheWrongLine(t *testing.T) {
	for name, c := range map[string]struct {
		args        []string
		stdin, want string
	}{
		"no delimiter":  {[]string{"-K", "="}, "a=1\nb\n", `stdin line 2: it has no key: the delimiter "=" does not occur`},
		"no JSON":       {[]string{"--ndjson"}, "{}\n{]\n", "stdin line 2: it is not valid JSON"},
		"no record":     {[]string{"--records"}, "{\"value\":1}\n[]\n", "stdin line 2: it is no record as consume --json prints it"},
		"empty record":  {[]string{"--records"}, "{\"value\":1}\n\n", "stdin line 2: it is empty"},
		"bad base64":    {[]string{"--records"}, "{\"value\":1}\n{\"value\":{\"$base64\":\"?\"}}\n", "stdin line 2: value: decode a $base64 value"},
		"line too long": {nil, "1\n" + strings.Repeat("x", maxInput+1) + "\n", "read stdin line 2: it is longer than 16.0 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			b := one(clitest.New(t), "t")
			r := run(t, b, c.stdin, append([]string{"produce", "t"}, c.args...)...)
			if r.code != 1 || !strings.Contains(r.err, c.want) || !strings.Contains(r.err, "1 record stored in t.") {
				t.Errorf("exit code %d, stderr %q, want %q", r.code, r.err, c.want)
			}
			if n := b.Count("t"); n != 1 {
				t.Errorf("%d records stored, want the one before the wrong line", n)
			}
		})
	}
}

// failing answers the first n produce requests with a status.
func failing(n int32, status int, after int) clitest.Fault {
	var count atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/messages") || count.Add(1) > n {
			return false
		}
		clitest.Refuse(w, status, "not now", after)
		return true
	}
}

func TestProduceTriesAgain(t *testing.T) {
	for _, status := range []int{429, 503, 507, 421, 504} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			b := one(clitest.New(t), "t")
			b.Inject(failing(2, status, 0))
			r := run(t, b, "1\n2\n", "produce", "t")
			if r.code != 0 || strings.Count(r.err, fmt.Sprintf("not now (status %d); trying again in", status)) != 2 {
				t.Errorf("exit code %d, stderr %q", r.code, r.err)
			}
			equal(t, "stored", values(b, "t"), []string{"1", "2"})
		})
	}
}

func TestProduceGivesUp(t *testing.T) {
	b := one(clitest.New(t), "t")
	b.Inject(failing(100, 503, 0))
	r := run(t, b, "1\n2\n", "produce", "t", "--retry-for", "300ms")
	if r.code != 1 || !strings.Contains(r.err, "stdin lines 1 to 2: not stored: gave up after 300ms: not now (status 503)") || !strings.Contains(r.err, "0 records stored") {
		t.Errorf("exit code %d, stderr %q", r.code, r.err)
	}

	b = one(clitest.New(t), "t")
	b.Inject(failing(100, 504, 0))
	r = run(t, b, "1\n", "produce", "t", "--retry-for", "0s")
	if r.code != 1 || !strings.Contains(r.err, "stdin line 1: perhaps stored: not now (status 504)") {
		t.Errorf("exit code %d, stderr %q", r.code, r.err)
	}

	b = one(clitest.New(t), "t")
	b.Inject(failing(100, 400, -1))
	r = run(t, b, "1\n", "produce", "t")
	if r.code != 1 || strings.Contains(r.err, "trying again") || !strings.Contains(r.err, "not stored: not now (status 400)") {
		t.Errorf("exit code %d, stderr %q", r.code, r.err)
	}
}

// An answer that is lost after the records were stored leads to a repetition under the same idempotency key, so nothing
// is stored twice (docs/design.md, section 6).
func TestProduceLostAnswerIsNotDoubled(t *testing.T) {
	for name, lose := range map[string]func(w http.ResponseWriter){
		"the connection breaks":       func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"the broker says unknown":     func(w http.ResponseWriter) { clitest.Refuse(w, 504, "outcome unknown", -1) },
		"the answer is cut in halves": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "9"); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			b := one(clitest.New(t), "t")
			var count atomic.Int32
			b.Inject(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/messages") || count.Add(1) != 1 {
					return false
				}
				b.Handle(discard{http.Header{}}, r)
				lose(w)
				return true
			})
			r := run(t, b, "1\n2\n", "produce", "t")
			if r.code != 0 {
				t.Errorf("exit code %d, stderr %q", r.code, r.err)
			}
			equal(t, "stored", values(b, "t"), []string{"1", "2"})
		})
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

func TestProduceTwiceUnderOneIdempotencyKey(t *testing.T) {
	b := one(clitest.New(t), "t")
	lines := strings.Repeat("x\n", 25)
	for range 2 {
		mustRun(t, b, lines, "produce", "t", "--idempotency-key", "import-1", "--batch", "10")
	}
	if n := b.Count("t"); n != 25 {
		t.Errorf("%d records stored, want 25", n)
	}
}

func TestProduceRetriesAfterAnInterruptionEnd(t *testing.T) {
	b := one(clitest.New(t), "t")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.Inject(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/messages") {
			cancel()
		}
		return false
	})
	// The batch on its way when the signal comes is finished, and the command says what it did not do.
	r := runCtx(ctx, t, b, strings.Repeat("x\n", 100_000), "produce", "t", "--batch", "10")
	if r.code != 130 || !strings.Contains(r.err, "interrupted: the rest of the input is not stored") {
		t.Errorf("exit code %d, stderr %q", r.code, r.err)
	}
	if n := b.Count("t"); n < 10 || n == 100_000 || !strings.Contains(r.err, fmt.Sprintf("%d records", n)) && !strings.Contains(r.err, ",") {
		t.Errorf("%d records stored, stderr %q", n, r.err)
	}
}

func TestProduceWithoutBroker(t *testing.T) {
	b := clitest.New(t)
	b.Close()
	r := run(t, b, "1\n", "produce", "t", "--retry-for", "0s")
	golden(t, "produce-no-broker", mask(r.err, b))
	if r.code != 1 {
		t.Errorf("exit code %d, want 1", r.code)
	}
}

// The next broker of the list is asked when one is not there.
func TestProduceUsesTheNextBroker(t *testing.T) {
	gone, b := clitest.New(t), one(clitest.New(t), "t")
	gone.Close()
	mustRun(t, b, "1\n", "produce", "t", "--broker", gone.URL+","+b.URL)
	equal(t, "stored", values(b, "t"), []string{"1"})
}

func TestProduceUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no topic":              {[]string{"produce"}, "requires at least 1 arg"},
		"a wrong topic":         {[]string{"produce", "a/b"}, "has a character outside"},
		"a reserved topic":      {[]string{"produce", "__topics"}, "reserved"},
		"two keys":              {[]string{"produce", "t", "--key", "a", "-K", "b"}, "exclude each other"},
		"two forms":             {[]string{"produce", "t", "--ndjson", "--whole"}, "exclude each other"},
		"a header without =":    {[]string{"produce", "t", "-H", "x"}, "is not NAME=VALUE"},
		"a hidden header":       {[]string{"produce", "t", "-H", "__skein.idem=x"}, "keeps for itself"},
		"a wrong time":          {[]string{"produce", "t", "--timestamp", "soon"}, "is no time"},
		"an unknown flag":       {[]string{"produce", "t", "--nonsense"}, "unknown flag: --nonsense"},
		"a wrong broker":        {[]string{"produce", "t", "--broker", "ftp://x"}, "is not HOST:PORT"},
		"a wrong duration":      {[]string{"produce", "t", "--retry-for", "soon"}, "is no duration"},
		"a wrong compression":   {[]string{"produce", "t", "-z", "lz4"}, "allowed are none, gzip, zstd"},
		"a key that is no text": {[]string{"produce", "t", "--key", "a\x01"}, "control character"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, nil, "", c.args...)
			if r.code != 2 || !strings.Contains(r.err, c.want) || !strings.Contains(r.err, "See 'broker produce --help'.") {
				t.Errorf("exit code %d, stderr %q, want 2 and %q", r.code, r.err, c.want)
			}
		})
	}
}

// What is printed as JSON and produced again is the same record, whatever its bytes.
func TestRecordsRoundTrip(t *testing.T) {
	b := clitest.New(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		from, to := fmt.Sprintf("from%d", n), fmt.Sprintf("to%d", n)
		one(b, from)
		one(b, to)
		gen := rapid.OneOf(
			rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', '"', '{', '}', '\\', 0xff, 0xc3, 0xa9, '$', 0x7f}), 0, 12),
			rapid.Map(rapid.SampledFrom([]string{"null", `"text"`, `""`, `{"$base64":"aGk="}`, `{ "a" : [1, 2] }`, "two\nlines", "true"}), func(s string) []byte { return []byte(s) }),
		)
		for range rapid.IntRange(1, 5).Draw(rt, "records") {
			r := clitest.Record{Value: gen.Draw(rt, "value"), Timestamp: rapid.Int64Range(1, 1e12).Draw(rt, "ts")}
			if key := gen.Draw(rt, "key"); len(key) > 0 {
				r.Key = key
			}
			if rapid.Bool().Draw(rt, "null") {
				r.Value = nil
			}
			for range rapid.IntRange(0, 2).Draw(rt, "headers") {
				r.Headers = append(r.Headers, [2][]byte{[]byte("h"), gen.Draw(rt, "header")})
			}
			b.Add(from, 0, r)
		}
		lines := mustRun(t, b, "", "consume", from, "--json")
		mustRun(t, b, lines, "produce", to, "--records")
		want, got := b.Stored(from, 0), b.Stored(to, 0)
		if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
			rt.Fatalf("stored\n%#v\nwant\n%#v\nlines\n%s", got, want, lines)
		}
	})
}

// The default batching keeps the order and loses nothing, however lines come.
func TestProduceSlowInput(t *testing.T) {
	p := &producer{app: &app{Options: Options{}.withDefaults()}, topic: "t", flags: produceFlags{batch: 100}}
	batch := newBatch(p)
	lines := make(chan []inputLine)
	go func() {
		for i := range 3 {
			lines <- []inputLine{{data: []byte(fmt.Sprint(i)), file: "stdin", number: i + 1}}
			time.Sleep(3 * produceLinger)
		}
		close(lines)
	}()
	var counts []int
	for more := true; more; {
		var err error
		if more, err = batch.fill(context.Background(), lines); err != nil {
			t.Fatal(err)
		}
		counts = append(counts, batch.count)
	}
	if fmt.Sprint(counts) != "[1 1 1 0]" {
		t.Errorf("batches of %v records, want each line sent as it came", counts)
	}
}
