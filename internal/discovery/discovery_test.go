package discovery_test

import (
	"errors"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/topology"
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
	} {
		if _, err := discovery.NewStatic(c.self, c.hosts); !errors.Is(err, topology.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
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
