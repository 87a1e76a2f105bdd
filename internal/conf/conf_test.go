package conf

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write docs/configuration.md again")

// host is a system with that host name and memory limit.
func host(name string, memory int64) system {
	return system{
		hostname: func() (string, error) {
			if name == "" {
				return "", errors.New("no name")
			}
			return name, nil
		},
		memoryLimit: func() int64 { return memory },
	}
}

// vars is an environment.
func vars(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func TestDefaults(t *testing.T) {
	s, err := load(nil, nil, host("box", 0))
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Ordinal: 0, Hosts: []string{"box"},
		ClientPort: 9250, ProducerPort: 9251, ConsumerPort: 9252, MetricsPort: 9253, ProducerBinaryPort: 9254, GossipPort: 9255,
		GossipDataPort: 9256, MaxConnections: 10_000,
		DataDir: "data", FlushAlways: true, FlushInterval: 50 * time.Millisecond, SegmentBytes: 128 << 20, SegmentAge: 24 * time.Hour,
		TopicAutoCreate: true, DefaultPartitions: 12, RetentionAge: 7 * 24 * time.Hour, RetentionBytes: -1, MaxRecordBytes: 1 << 20,
		MaxRequestBytes: 16 << 20, MemoryBudget: 64 << 20, Linger: 500 * time.Microsecond, IdempotencyWindow: 10 * time.Minute,
		IdempotencyKeys:     10_000,
		ConsumerIdleTimeout: 2 * time.Minute, MaxPollWait: 30 * time.Second, MaxPollBytes: 2 << 20, CommitInterval: 200 * time.Millisecond,
		PollCompression: "none",
		LogLevel:        "info", LogFormat: "json", ShutdownTimeout: 25 * time.Second,
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("defaults are\n%+v, want\n%+v", s, want)
	}
	if s.Changed() != nil || s.Addr(9250) != ":9250" {
		t.Errorf("changed %v, address %s", s.Changed(), s.Addr(9250))
	}
}

func TestPrecedence(t *testing.T) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	RegisterFlags(flags, "brokers")
	if flags.Lookup("brokers") != nil {
		t.Error("an excepted flag is there")
	}
	if err := flags.Parse([]string{"--flush=interval", "--pprof", "--segment-bytes", "64MiB"}); err != nil {
		t.Fatal(err)
	}
	s, err := load(flags, vars(map[string]string{
		"SKEIN_FLUSH":           "always",                   // the flag counts
		"SKEIN_DATA_DIR":        "/data",                    // no flag
		"SKEIN_RETENTION_AGE":   "",                         // empty is not set
		"SKEIN_PRODUCER_PORT":   "tcp://10.96.120.7:9251",   // by Kubernetes
		"SKEIN_BROKERS":         " 10.0.0.1, 10.0.0.2 ,::1", // not among the flags
		"SKEIN_LINGER":          "0",
		"SKEIN_RETENTION_BYTES": "1GiB",
	}), host("skein-2", 0))
	if err != nil {
		t.Fatal(err)
	}
	if s.FlushAlways || !s.Pprof || s.SegmentBytes != 64<<20 || s.DataDir != "/data" || s.RetentionAge != 7*24*time.Hour ||
		s.ProducerPort != 9251 || s.Linger != 0 || s.RetentionBytes != 1<<30 {
		t.Errorf("settings %+v", s)
	}
	if s.Ordinal != 2 || s.Bind != "::1" || s.Addr(9250) != "[::1]:9250" || !slices.Equal(s.Hosts, []string{"10.0.0.1", "10.0.0.2", "::1"}) {
		t.Errorf("ordinal %d, bind %q, hosts %q", s.Ordinal, s.Bind, s.Hosts)
	}
	want := "brokers= 10.0.0.1, 10.0.0.2 ,::1 data-dir=/data flush=interval segment-bytes=64MiB retention-bytes=1GiB linger=0 pprof=true"
	if got := strings.Join(s.Changed(), " "); got != want {
		t.Errorf("changed\n%s, want\n%s", got, want)
	}
}

// TestRefusals: a wrong value is one line with the setting, the value, its source and what is allowed.
func TestRefusals(t *testing.T) {
	three := "a,b,c"
	for name, test := range map[string]struct {
		env  map[string]string
		want string
	}{
		"choice":           {map[string]string{"SKEIN_FLUSH": "sometimes"}, `invalid setting flush = "sometimes" (SKEIN_FLUSH); allowed: always or interval`},
		"duration":         {map[string]string{"SKEIN_FLUSH_INTERVAL": "50"}, `flush-interval = "50" (SKEIN_FLUSH_INTERVAL); allowed: 1ms to 1h; written as 500us, 50ms, 24h or 7d`},
		"duration bound":   {map[string]string{"SKEIN_FLUSH_INTERVAL": "2h"}, `allowed: 1ms to 1h`},
		"duration below":   {map[string]string{"SKEIN_FLUSH_INTERVAL": "-5ms"}, `allowed: 1ms to 1h`},
		"size":             {map[string]string{"SKEIN_SEGMENT_BYTES": "64MB"}, `allowed: 64KiB to 1TiB; written as 64MiB, 1GiB or 1048576`},
		"size bound":       {map[string]string{"SKEIN_SEGMENT_BYTES": "1KiB"}, `allowed: 64KiB to 1TiB`},
		"size minus one":   {map[string]string{"SKEIN_SEGMENT_BYTES": "-1"}, `allowed: 64KiB to 1TiB`},
		"retention":        {map[string]string{"SKEIN_RETENTION_BYTES": "-2"}, `allowed: from 1; -1 for no bound; written as 64MiB, 1GiB or 1048576`},
		"age":              {map[string]string{"SKEIN_RETENTION_AGE": "forever"}, `; -1 for no bound; written as 500us`},
		"switch":           {map[string]string{"SKEIN_PPROF": "yes"}, `allowed: true or false`},
		"number":           {map[string]string{"SKEIN_MAX_CONNECTIONS": "1e3"}, `allowed: 1 to 1000000`},
		"port":             {map[string]string{"SKEIN_CLIENT_PORT": "70000"}, `client-port = "70000" (SKEIN_CLIENT_PORT); allowed: 1 to 65535, or 0 for a free one`},
		"one port twice":   {map[string]string{"SKEIN_CONSUMER_PORT": "9251"}, `consumer-port = "9251" (SKEIN_CONSUMER_PORT); producer-port has that port too`},
		"partitions":       {map[string]string{"SKEIN_DEFAULT_PARTITIONS": "10"}, `allowed: 1, or 3·2^k up to 12288`},
		"record > request": {map[string]string{"SKEIN_MAX_RECORD_BYTES": "17MiB"}, `it is above max-request-bytes, which is 16MiB`},
		"budget < request": {map[string]string{"SKEIN_MEMORY_BUDGET": "8MiB"}, `it is below max-request-bytes, which is 16MiB`},
		"bind":             {map[string]string{"SKEIN_BIND": "localhost"}, `bind = "localhost" (SKEIN_BIND); allowed: an address`},
		"advertise":        {map[string]string{"SKEIN_ADVERTISE": "box:9250"}, `it has a port`},
		"broker with port": {map[string]string{"SKEIN_BROKERS": "a:9250,b"}, `entry 0 has a port; ports are settings of their own`},
		"no broker":        {map[string]string{"SKEIN_BROKERS": "a,,b"}, `entry 1 is neither a host name nor an address`},
		"broker twice":     {map[string]string{"SKEIN_BROKERS": "a,b,a", "SKEIN_ORDINAL": "0"}, `a is both entry 0 and entry 2`},
		"ordinal high":     {map[string]string{"SKEIN_BROKERS": three, "SKEIN_ORDINAL": "3"}, `ordinal = "3" (SKEIN_ORDINAL); brokers has 3; allowed: 0 to 2`},
		"ordinal alone":    {map[string]string{"SKEIN_ORDINAL": "1"}, `ordinal = "1" (SKEIN_ORDINAL); brokers has 1; allowed: 0 to 0`},
		"ordinal text":     {map[string]string{"SKEIN_ORDINAL": "skein-1"}, `ordinal = "skein-1" (SKEIN_ORDINAL); allowed: 0 to 12287`},
		"ordinal unknown":  {map[string]string{"SKEIN_BROKERS": three}, `the host name "box" does not end in -N; allowed: 0 to 2`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(nil, vars(test.env), host("box", 0))
			if !errors.Is(err, topology.ErrInvalid) || !strings.Contains(fmt.Sprint(err), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
	_, err := load(nil, vars(map[string]string{"SKEIN_BROKERS": three}), host("skein-7.skein.default", 0))
	if want := `ordinal = "7" (host name skein-7.skein.default); brokers has 3; allowed: 0 to 2`; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	RegisterFlags(flags)
	if err := flags.Parse([]string{"--log-level", "loud"}); err != nil {
		t.Fatal(err)
	}
	_, err = load(flags, nil, host("box", 0))
	if want := `setting log-level = "loud" (--log-level); allowed: debug, info, warn or error`; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestWhoAndWhere(t *testing.T) {
	for name, test := range map[string]struct {
		env      map[string]string
		hostname string
		ordinal  topology.Ordinal
		bind     string
		hosts    string
	}{
		"alone":                       {nil, "box", 0, "", "box"},
		"alone, host name with -N":    {nil, "skein-5", 0, "", "skein-5"},
		"alone, no host name":         {nil, "", 0, "", "127.0.0.1"},
		"alone, on one address":       {map[string]string{"SKEIN_BIND": "10.1.2.3"}, "box", 0, "10.1.2.3", "10.1.2.3"},
		"alone, on all":               {map[string]string{"SKEIN_BIND": "::"}, "box", 0, "::", "box"},
		"alone, advertised":           {map[string]string{"SKEIN_ADVERTISE": "mq.example.org"}, "box", 0, "", "mq.example.org"},
		"list of one":                 {map[string]string{"SKEIN_BROKERS": "127.0.0.1"}, "box", 0, "127.0.0.1", "127.0.0.1"},
		"list of names":               {map[string]string{"SKEIN_BROKERS": "a,b", "SKEIN_ORDINAL": "1"}, "box", 1, "", "a b"},
		"list of addresses":           {map[string]string{"SKEIN_BROKERS": "127.0.0.1,127.0.0.2", "SKEIN_ORDINAL": "1"}, "box", 1, "127.0.0.2", "127.0.0.1 127.0.0.2"},
		"list, bind given":            {map[string]string{"SKEIN_BROKERS": "10.0.0.1,10.0.0.2", "SKEIN_ORDINAL": "1", "SKEIN_BIND": "0.0.0.0"}, "box", 1, "0.0.0.0", "10.0.0.1 10.0.0.2"},
		"ordinal of the pod":          {map[string]string{"SKEIN_BROKERS": "skein-0.skein,skein-1.skein"}, "skein-1", 1, "", "skein-0.skein skein-1.skein"},
		"ordinal given, pod of other": {map[string]string{"SKEIN_BROKERS": "a,b", "SKEIN_ORDINAL": "0"}, "skein-1", 0, "", "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := load(nil, vars(test.env), host(test.hostname, 0))
			if err != nil {
				t.Fatal(err)
			}
			if s.Ordinal != test.ordinal || s.Bind != test.bind || strings.Join(s.Hosts, " ") != test.hosts {
				t.Errorf("ordinal %d, bind %q, hosts %q", s.Ordinal, s.Bind, s.Hosts)
			}
		})
	}
}

func TestResolvedSizes(t *testing.T) {
	for name, test := range map[string]struct {
		env    map[string]string
		memory int64
		want   func(Settings) bool
	}{
		"budget of a small pod":         {nil, 128 << 20, func(s Settings) bool { return s.MemoryBudget == 32<<20 }},
		"budget of a large pod":         {nil, 8 << 30, func(s Settings) bool { return s.MemoryBudget == 64<<20 }},
		"budget holds one request":      {nil, 32 << 20, func(s Settings) bool { return s.MemoryBudget == 16<<20 }},
		"budget given":                  {map[string]string{"SKEIN_MEMORY_BUDGET": "1GiB"}, 128 << 20, func(s Settings) bool { return s.MemoryBudget == 1<<30 }},
		"partitions of one broker":      {nil, 0, func(s Settings) bool { return s.DefaultPartitions == 12 }},
		"partitions of four brokers":    {map[string]string{"SKEIN_BROKERS": "a,b,c,d", "SKEIN_ORDINAL": "0"}, 0, func(s Settings) bool { return s.DefaultPartitions == 24 }},
		"partitions given":              {map[string]string{"SKEIN_DEFAULT_PARTITIONS": "3"}, 0, func(s Settings) bool { return s.DefaultPartitions == 3 }},
		"no retention":                  {map[string]string{"SKEIN_RETENTION_AGE": "-1", "SKEIN_RETENTION_BYTES": "-1"}, 0, func(s Settings) bool { return s.RetentionAge < 0 && s.RetentionBytes < 0 }},
		"free ports are not one port":   {map[string]string{"SKEIN_CLIENT_PORT": "0", "SKEIN_PRODUCER_PORT": "0"}, 0, func(s Settings) bool { return s.ClientPort == 0 }},
		"reserve found by the store":    {nil, 0, func(s Settings) bool { return s.ReserveBytes == 0 }},
		"no linger":                     {map[string]string{"SKEIN_LINGER": "0s"}, 0, func(s Settings) bool { return s.Linger == 0 }},
		"booleans as Go writes them":    {map[string]string{"SKEIN_TOPIC_AUTO_CREATE": "0"}, 0, func(s Settings) bool { return !s.TopicAutoCreate }},
		"compression of binary polls":   {map[string]string{"SKEIN_POLL_COMPRESSION": "zstd"}, 0, func(s Settings) bool { return s.PollCompression == "zstd" }},
		"largest request as the budget": {map[string]string{"SKEIN_MAX_REQUEST_BYTES": "100MiB"}, 0, func(s Settings) bool { return s.MemoryBudget == 100<<20 }},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := load(nil, vars(test.env), host("box", test.memory))
			if err != nil {
				t.Fatal(err)
			}
			if !test.want(s) {
				t.Errorf("settings %+v", s)
			}
		})
	}
}

// TestTable: each row has all that the documentation shows, a default that it allows, and sets something of Settings.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, row := range Table() {
		if names[row.Name] || !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(row.Name) {
			t.Errorf("name %q", row.Name)
		}
		names[row.Name] = true
		if row.Allowed == "" || !strings.HasSuffix(row.Help, ".") || row.Section == "" || row.Scope == "" || row.Kind == "" || strings.Contains(row.Help+row.Allowed, "|") {
			t.Errorf("%s: row %+v", row.Name, row)
		}
		var s Settings
		if err := row.set(&s, row.Default); row.Default != "" && err != nil {
			t.Errorf("%s: its default %q: %v", row.Name, row.Default, err)
		}
		if row.Kind != Text && row.Kind != List {
			if err := row.set(&s, "rubbish"); err == nil {
				t.Errorf("%s takes rubbish", row.Name)
			}
		}
	}
	if row := Table()[1]; row.Env() != "SKEIN_BROKERS" {
		t.Errorf("variable %s", row.Env())
	}
}

// TestDocs holds docs/configuration.md against the table; -update writes it.
func TestDocs(t *testing.T) {
	const path = "../../docs/configuration.md"
	if *update {
		if err := os.WriteFile(path, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Markdown() {
		t.Errorf("%s is not what the table says; write it by: go test ./internal/conf -update", path)
	}
	for _, row := range Table() {
		if !strings.Contains(string(text), "`--"+row.Name+"`<br>`"+row.Env()+"`") {
			t.Errorf("%s has no row for %s", path, row.Name)
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	got := UnknownVariables([]string{
		"PATH=/bin", "SKEIN_FLUSH=always", "SKEIN_RETENTON_AGE=1d", "SKEIN_BROKER=127.0.0.1:9250", "SKEIN_FLUSCH=",
		"SKEIN_SERVICE_HOST=10.0.0.1", "SKEIN_SERVICE_PORT_CLIENT=9250", "SKEIN_PORT=tcp://10.0.0.1:9250", "SKEIN_PORT_9250_TCP_ADDR=10.0.0.1",
		"SKEIN_HEADLESS_SERVICE_PORT=9250", "SKEIN_HEADLESS_PORT_9250_TCP=tcp://10.0.0.1:9250",
	}, "SKEIN_BROKER")
	if want := []string{"SKEIN_FLUSCH", "SKEIN_RETENTON_AGE"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1048576": 1 << 20, "64MiB": 64 << 20, "1GiB": 1 << 30, "3 KiB": 3072, "2TiB": 2 << 40, "10B": 10, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "64MB", "64mib", "1e3", "0x10", "9223372036854775808", "8388608TiB", "1 MiB ", "+1"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d", text, got)
		}
	}
	for text, want := range map[string]time.Duration{
		"0": 0, "500us": 500 * time.Microsecond, "50ms": 50 * time.Millisecond, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour,
		"-5s": -5 * time.Second, "1h30m": 90 * time.Minute,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "5", "7 d", "-1d", "1.5d", "1d-2h", "1d1d", "1000000d", "106751d24h", "7days"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %s", text, got)
		}
	}
}

// TestFormat: what Format writes, Parse reads as the same.
func TestFormat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Min(0).Draw(t, "n") << rapid.IntRange(0, 40).Draw(t, "shift") & math.MaxInt64
		if got, err := ParseBytes(FormatBytes(n)); err != nil || got != n {
			t.Fatalf("%d is written %s, read %d, %v", n, FormatBytes(n), got, err)
		}
		d := time.Duration(rapid.Int64().Draw(t, "d"))
		if rapid.Bool().Draw(t, "round") {
			d = d.Truncate(time.Minute)
		}
		if got, err := ParseDuration(FormatDuration(d)); err != nil || got != d {
			t.Fatalf("%s is written %s, read %s, %v", d, FormatDuration(d), got, err)
		}
	})
	for d, want := range map[time.Duration]string{
		0: "0", time.Hour: "1h", 90 * time.Minute: "1h30m", 7 * 24 * time.Hour: "7d", 500 * time.Microsecond: "500us", 25 * time.Second: "25s",
		10 * time.Minute: "10m", 36 * time.Hour: "36h",
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%s is written %q, want %q", d, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"64MiB", "7d", "1d12h", "500us", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseBytes(s); err == nil && n < 0 {
			t.Errorf("ParseBytes(%q) = %d", s, n)
		}
		if d, err := ParseDuration(s); err == nil {
			if again, err := ParseDuration(FormatDuration(d)); err != nil || again != d {
				t.Errorf("ParseDuration(%q) = %s, written %s", s, d, FormatDuration(d))
			}
		}
	})
}

func TestCgroupLimit(t *testing.T) {
	files := map[string]string{}
	read := func(name string) ([]byte, error) {
		text, ok := files[name]
		if !ok {
			return nil, os.ErrNotExist
		}
		return []byte(text), nil
	}
	for name, test := range map[string]struct {
		groups string
		files  map[string]string
		want   int64
	}{
		"version 2, in a container":    {"0::/\n", map[string]string{"/sys/fs/cgroup/memory.max": "268435456\n"}, 256 << 20},
		"version 2, none":              {"0::/\n", map[string]string{"/sys/fs/cgroup/memory.max": "max\n"}, 0},
		"version 2, of the parent":     {"0::/a/b\n", map[string]string{"/sys/fs/cgroup/a/b/memory.max": "max", "/sys/fs/cgroup/a/memory.max": "1000"}, 1000},
		"version 1":                    {"5:cpu:/x\n4:memory:/docker/1\n", map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": "4096"}, 4096},
		"version 1, none":              {"4:memory:/\n", map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 0},
		"no groups":                    {"", nil, 0},
		"rubbish":                      {"x\n0::/\n", map[string]string{"/sys/fs/cgroup/memory.max": "lots"}, 0},
		"the lowest of several counts": {"0::/a\n", map[string]string{"/sys/fs/cgroup/a/memory.max": "2000", "/sys/fs/cgroup/memory.max": "1000"}, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			files = test.files
			if got := cgroupLimit(test.groups, read); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
	if MemoryLimit() < 0 {
		t.Error("a negative limit")
	}
}
