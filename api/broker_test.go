package api_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmq/skein/api"
	"github.com/skeinmq/skein/internal/admin"
	"github.com/skeinmq/skein/internal/consuming"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/localdb"
	"github.com/skeinmq/skein/internal/ownership"
	"github.com/skeinmq/skein/internal/producing"
	"github.com/skeinmq/skein/internal/topics"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is all HTTP handlers of a broker over a store of its own, on two free loopback ports: the paths of 9250 to 9252
// on one, those of 9253 on the other.
type broker struct {
	client, metrics *httpd.Router
	clientURL       string
	metricsURL      string
	http            *http.Client
	unready         error // what readiness says
	closed          bool  // whether /status says so
}

// startBroker runs a broker until the test ends.
func startBroker(t *testing.T) *broker {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewRegistry()
	run, started := uuid.New(), time.Now()
	members, err := discovery.NewStatic(0, []string{"127.0.0.1"})
	must(err)
	dir := t.TempDir()
	db, err := localdb.Open(localdb.Config{Dir: dir + "/db"})
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	store, err := data.Open(data.Config{Dir: dir + "/data", KV: db, JournalBytes: 1 << 20, ReserveBytes: 1 << 20})
	must(err)
	t.Cleanup(func() { must(store.Close()) })
	owner, err := ownership.Open(ownership.Config{Ledger: db, Disk: db.Identity().Disk, Run: run})
	must(err)
	writer, err := producing.NewCoalescer(producing.CoalescerConfig{Committer: store, Leadership: owner})
	must(err)
	catalogue, err := topics.New(topics.Config{Log: store, Appender: writer, KV: db, Data: store, AutoCreate: true})
	must(err)
	producer, err := producing.NewProducer(producing.ProducerConfig{Coalescer: writer, Topics: catalogue})
	must(err)
	consumers, err := consuming.New(consuming.Config{Topics: catalogue, Logs: store, Appender: writer, KV: db, Leadership: owner})
	must(err)
	b := &broker{client: httpd.NewRouter(), metrics: httpd.NewRouter()}
	front, err := admin.New(admin.Config{
		Topics: catalogue, Logs: store, Groups: consumers, Ownership: owner, Members: members,
		Broker:  admin.Broker{Version: "test", Disk: db.Identity().Disk, Run: run, Started: started, Dir: dir, Flush: "always"},
		Checks:  []admin.Check{{Name: "test", Ready: func() error { return b.unready }}},
		OpenAPI: api.OpenAPI, Gatherer: reg,
	})
	must(err)
	producer.Register(b.client)
	consumers.Register(b.client)
	front.Register(b.client)
	front.RegisterMetrics(b.metrics)
	b.client.Handle("GET /v1/brokers", discovery.Handler(members, discovery.Ports{Producer: 9251, ProducerBinary: 9254, Consumer: 9252}))
	b.client.Handle("GET /status", admin.Status(admin.StatusClient, 9250, func() bool { return !b.closed }))

	var doors []*httpd.Server
	for _, r := range []*httpd.Router{b.client, b.metrics} {
		s, err := httpd.New(httpd.Config{Addr: "127.0.0.1:0", Handler: r, ReadTimeout: 2 * time.Second})
		must(err)
		must(s.Listen())
		doors = append(doors, s)
	}
	b.clientURL, b.metricsURL = "http://"+doors[0].Addr(), "http://"+doors[1].Addr()
	transport := &http.Transport{DisableCompression: true}
	b.http = &http.Client{Transport: transport, Timeout: 20 * time.Second}

	// As in cmd/broker: who stands on something stops before it.
	var stops []func()
	start := func(runs ...func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.Background())
		var g errgroup.Group
		for _, run := range runs {
			g.Go(func() error { return run(ctx) })
		}
		stops = append(stops, func() { cancel(); must(g.Wait()) })
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		for i := range stops {
			stops[len(stops)-1-i]()
		}
	})
	start(store.Run)
	start(writer.Run)
	must(catalogue.Load(context.Background()))
	start(catalogue.Run, consumers.Run)
	start(producer.Run)
	start(doors[0].Run, doors[1].Run)
	return b
}
