package discovery_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

// docs/wire.md 2.1: the body of one broker, byte by byte.
func TestAnswerOfOneBroker(t *testing.T) {
	d, err := discovery.NewStatic(0, []string{"localhost"})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h := discovery.Handler(d, discovery.Ports{Producer: 9251, ProducerBinary: 9254, Consumer: 9252})
	h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/brokers", nil))
	const want = `{"length":1,"names":["localhost"],"producerPort":9251,"producerBinaryPort":9254,"consumerPort":9252}` + "\n"
	if w.Body.String() != want || w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("answer %d %v %s", w.Code, w.Header(), w.Body)
	}
}

// R1, R2: names stand in ring order, with one entry for each broker, for any N.
func TestNamesAreInRingOrder(t *testing.T) {
	for _, c := range []struct{ hosts, want []string }{
		{[]string{"a", "b"}, []string{"a", "b"}},
		{[]string{"a", "b", "c", "d"}, []string{"a", "d", "b", "c"}},
		{[]string{"a", "b", "c", "d", "e", "f"}, []string{"a", "d", "b", "e", "c", "f"}},
	} {
		if got := (discovery.Cluster{Hosts: c.hosts}).RingHosts(); !slices.Equal(got, c.want) {
			t.Errorf("ring of %v is %v, want %v", c.hosts, got, c.want)
		}
	}
}

func pods(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("skein-%d.skein.prod", i)
	}
	return list
}

// docs/wire.md 2.1: baseName and serviceName are there when each host is made of them.
func TestBaseAndServiceName(t *testing.T) {
	for _, tc := range []struct {
		name          string
		hosts         []string
		base, service string
	}{
		{"pods of a StatefulSet", pods(12), "skein-", "skein.prod"},
		{"one pod", pods(1), "skein-", "skein.prod"},
		{"addresses", []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, "", ""},
		{"an address that looks numbered", []string{"10.0.0.1"}, "", ""},
		{"pods without a service", []string{"skein-0", "skein-1"}, "", ""},
		{"pods of two services", []string{"skein-0.a", "skein-1.b"}, "", ""},
		{"pods in another order", []string{"skein-1.a", "skein-0.a"}, "", ""},
	} {
		a := discovery.Cluster{Hosts: tc.hosts}.Answer(discovery.Ports{})
		if a.BaseName != tc.base || a.ServiceName != tc.service || a.Length != len(tc.hosts) || len(a.Names) != a.Length {
			t.Errorf("%s: %+v", tc.name, a)
		}
	}
}

// Clients that build hosts from base and service name find the same ones as those that read names, whose i-th has the
// i-th token of the ring (R1, R2).
func TestNamesFollowTheRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 100).Draw(t, "brokers")
		a := discovery.Cluster{Hosts: pods(n)}.Answer(discovery.Ports{})
		var last token.Token
		for i, name := range a.Names {
			ordinal := slices.Index(pods(n), name)
			if want := fmt.Sprintf("%s%d.%s", a.BaseName, ordinal, a.ServiceName); name != want {
				t.Fatalf("host %q is not built as %q", name, want)
			}
			tok := token.OfOrdinal(ordinal)
			if i > 0 && tok <= last {
				t.Fatalf("name %d is of token %d after %d", i, tok, last)
			}
			last = tok
		}
	})
}

func TestListsThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		self  topology.Ordinal
		hosts []string
	}{
		"empty list":            {0, nil},
		"ordinal past the list": {2, []string{"a", "b"}},
		"negative ordinal":      {-1, []string{"a"}},
		"a host twice":          {0, []string{"a", "b", "a"}},
		"an empty entry":        {0, []string{"a", ""}},
		"a port":                {0, []string{"a:9250"}},
		"a space":               {0, []string{"a b"}},
		"too many":              {0, make([]string, token.MaxSize+1)},
	} {
		if _, err := discovery.NewStatic(c.self, c.hosts); !errors.Is(err, topology.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostsThatCanBe(t *testing.T) {
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "fe80::1%eth0", "skein-0.skein.default.svc.cluster.local", "my_host"} {
		if _, err := discovery.NewStatic(0, []string{host}); err != nil {
			t.Errorf("%q is refused: %v", host, err)
		}
	}
}

func TestBindHost(t *testing.T) {
	for entry, want := range map[string]string{"127.0.0.2": "127.0.0.2", "::1": "::1", "skein-0.skein": "", "localhost": ""} {
		if got := discovery.BindHost(entry); got != want {
			t.Errorf("%s binds to %q, want %q", entry, got, want)
		}
	}
}
