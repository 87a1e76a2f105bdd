package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/skeinmq/skein/api"
	"github.com/skeinmq/skein/internal/admin"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/producing"
	"github.com/skeinmq/skein/internal/topology"
)

// doors are the ports of a broker.
type doors struct {
	client, producer, consumer, metrics *httpd.Server
	binary                              *producing.BinaryServer
	fast                                *producing.FastPath // of plain produce requests, before client and producer
}

func (n *node) openDoors() error {
	front, err := n.makeAdmin()
	if err != nil {
		return err
	}
	client, produce, consume, metrics := httpd.NewRouter(), httpd.NewRouter(), httpd.NewRouter(), httpd.NewRouter()
	for _, r := range []*httpd.Router{client, produce} {
		n.producer.Register(r)
	}
	for _, r := range []*httpd.Router{client, consume} {
		n.consumers.Register(r)
	}
	front.Register(client)
	front.RegisterMetrics(metrics)
	client.Handle("GET /v1/brokers", discovery.Handler(n.members, n.discoveryPorts()))
	client.Handle("GET /status", admin.Status(admin.StatusClient, n.cfg.ClientPort, func() bool { return n.topicsReady() == nil }))
	produce.Handle("GET /status", admin.Status(admin.StatusProducer, n.cfg.ProducerPort, nil))
	status := admin.Status(admin.StatusConsumer, n.cfg.ConsumerPort, nil)
	consume.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		n.consumers.Touch(r.Context())
		status.ServeHTTP(w, r)
	})

	n.doors.fast, err = producing.NewFastPath(producing.FastConfig{
		Producer: n.producer, DrainTimeout: n.cfg.ShutdownTimeout, Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		return err
	}
	for _, door := range []struct {
		server *(*httpd.Server)
		name   string
		port   int
		router *httpd.Router
		wrap   func(net.Listener) net.Listener
	}{
		{&n.doors.client, "client", n.cfg.ClientPort, client, n.doors.fast.Wrap},
		{&n.doors.producer, "produce", n.cfg.ProducerPort, produce, n.doors.fast.Wrap},
		{&n.doors.consumer, "consume", n.cfg.ConsumerPort, consume, nil},
		{&n.doors.metrics, "metrics", n.cfg.MetricsPort, metrics, nil},
	} {
		s, err := httpd.New(httpd.Config{
			Name: door.name, Addr: n.cfg.Addr(door.port), Handler: door.router, Wrap: door.wrap,
			MaxConnections: n.cfg.MaxConnections, DrainTimeout: n.cfg.ShutdownTimeout,
			// A consumer that its connection stands for must not lose it before it counts as idle.
			IdleTimeout: max(2*time.Minute, n.cfg.ConsumerIdleTimeout+10*time.Second),
			Logger:      n.log, Registerer: n.registry,
		})
		if err != nil {
			return err
		}
		*door.server = s
		if err := s.Listen(); err != nil {
			return err
		}
	}
	return n.openBinary()
}

func (n *node) openBinary() error {
	var err error
	n.doors.binary, err = producing.NewBinaryServer(producing.BinaryConfig{
		Addr:      n.cfg.Addr(n.cfg.ProducerBinaryPort),
		Coalescer: n.coalescer, Topics: n.catalogue, MaxRequestBytes: n.cfg.MaxRequestBytes,
		MaxConnections: n.cfg.MaxConnections, DrainTimeout: n.cfg.ShutdownTimeout,
		Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		return err
	}
	return n.doors.binary.Listen()
}

func (n *node) makeAdmin() (*admin.Admin, error) {
	return admin.New(admin.Config{
		Topics: n.catalogue, Logs: n.store, Groups: n.consumers, Ownership: n.owner, Members: n.members,
		Broker: admin.Broker{
			Version: buildInfo().Version, Disk: n.db.Identity().Disk, Run: n.run, Started: n.started,
			Ports: admin.Ports{
				Client: n.cfg.ClientPort, Producer: n.cfg.ProducerPort, Consumer: n.cfg.ConsumerPort,
				Metrics: n.cfg.MetricsPort, ProducerBinary: n.cfg.ProducerBinaryPort,
			},
			Dir: n.cfg.DataDir, Flush: n.flush().String(),
		},
		Checks:      []admin.Check{{Name: "topics", Ready: n.topicsReady}, {Name: "shutdown", Ready: n.notStopping}},
		StoredBytes: n.store.Bytes,
		OpenAPI:     api.OpenAPI,
		Gatherer:    n.registry, Pprof: n.cfg.Pprof,
		Logger: n.log,
	})
}

func (n *node) topicsReady() error {
	select {
	case <-n.loaded:
		return nil
	default:
		return errors.New("the catalogue of topics is being read")
	}
}

func (n *node) notStopping() error {
	if n.stopping.Load() {
		return topology.ErrShuttingDown
	}
	return nil
}

func (n *node) discoveryPorts() discovery.Ports {
	return discovery.Ports{Producer: n.cfg.ProducerPort, ProducerBinary: n.cfg.ProducerBinaryPort, Consumer: n.cfg.ConsumerPort}
}

// runDoors serves all ports until ctx ends, then drains them. Between the wish to stop and the drain lies the shutdown
// delay, so that load balancers notice first; the metrics port goes on until the others are drained.
func (n *node) runDoors(ctx context.Context) error {
	delayed, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		<-ctx.Done()
		n.stopping.Store(true)
		n.log.Info().Dur("delay", n.cfg.ShutdownDelay).Msg("broker is shutting down")
		wait := time.NewTimer(n.cfg.ShutdownDelay)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-delayed.Done():
		}
		stop()
	}()
	return layered(delayed,
		n.doors.metrics.Run,
		parallel(n.doors.client.Run, n.doors.producer.Run, n.doors.consumer.Run, n.doors.binary.Run, n.doors.fast.Run),
	)
}
