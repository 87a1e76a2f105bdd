package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/conf"
	"github.com/skeinmq/skein/internal/consuming"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/localdb"
	"github.com/skeinmq/skein/internal/ownership"
	"github.com/skeinmq/skein/internal/producing"
	"github.com/skeinmq/skein/internal/topics"
	"github.com/skeinmq/skein/internal/topology"
	"golang.org/x/sync/errgroup"
)

// node is one broker: what it is made of, from the disk up. Make it with openNode, run it once, then close it.
type node struct {
	cfg      conf.Settings
	log      zerolog.Logger
	registry *prometheus.Registry
	started  time.Time
	run      uuid.UUID // id of this process start (O15)

	db        *localdb.DB
	store     *data.Store
	owner     *ownership.Solo
	members   *discovery.Static
	coalescer *producing.Coalescer
	producer  *producing.Producer
	catalogue *topics.Catalogue
	consumers *consuming.Service
	doors     doors
	loaded    chan struct{} // closed once the catalogue is loaded
	stopping  atomic.Bool   // the wish to stop has come: not ready any more
}

// openNode opens the data folder, recovers what is in it and binds all ports. Nothing is served yet. What it opened is
// closed again when it fails.
func openNode(cfg conf.Settings, members *discovery.Static, log zerolog.Logger) (_ *node, err error) {
	n := &node{
		cfg: cfg, log: log.With().Int("broker", int(members.Self())).Logger(), members: members,
		registry: prometheus.NewRegistry(), started: time.Now(), run: uuid.New(), loaded: make(chan struct{}),
	}
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	for _, step := range []func() error{n.openDisk, n.openOwnership, n.makeWriter, n.makeCatalogue, n.makeFronts, n.openDoors} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// openDisk opens the reserve, the local database and the store, which keeps its notes in the database. Both make room by
// giving up the reserve, so a broker can start on a full disk.
func (n *node) openDisk() error {
	dir := filepath.Join(n.cfg.DataDir, "data")
	reserve, err := data.OpenReserve(data.ReserveConfig{Dir: dir, Bytes: n.cfg.ReserveBytes, Logger: n.log})
	if err != nil {
		return err
	}
	defer func() {
		if n.store == nil {
			_ = reserve.Close()
		}
	}()
	n.db, err = localdb.Open(localdb.Config{
		Dir:        filepath.Join(n.cfg.DataDir, "db"),
		Ordinal:    n.members.Self(),
		EnsureRoom: reserve.Ensure,
		Logger:     n.component("localdb"), Registerer: n.registry,
	})
	if err != nil {
		return err
	}
	n.store, err = data.Open(data.Config{
		Dir:           dir,
		KV:            n.db,
		Flush:         n.flush(),
		FlushInterval: n.cfg.FlushInterval,
		SegmentBytes:  n.cfg.SegmentBytes,
		SegmentAge:    n.cfg.SegmentAge,
		Reserve:       reserve,
		Policy:        n.policy,
		Logger:        n.log, Registerer: n.registry,
	})
	if err != nil || !n.store.UncleanReboot() {
		return err
	}
	disk, err := n.db.RenewDisk()
	if err != nil {
		return err
	}
	n.log.Warn().Stringer("disk", disk).
		Msg("the machine restarted without a clean stop under flush=interval: what was not flushed is lost, the disk counts as new (P5)")
	return nil
}

func (n *node) flush() data.FlushPolicy {
	if n.cfg.FlushAlways {
		return data.FlushAlways
	}
	return data.FlushInterval
}

// policy is how the logs of a topic are kept. Until the catalogue is loaded no log is touched.
func (n *node) policy(topic uuid.UUID) (data.Policy, bool) {
	select {
	case <-n.loaded:
		return n.catalogue.Policy(topic)
	default:
		return data.Policy{}, false
	}
}

func (n *node) openOwnership() error {
	var err error
	n.owner, err = ownership.Open(ownership.Config{
		Ledger: n.db, Ordinal: n.members.Self(), Disk: n.db.Identity().Disk, Run: n.run, Above: n.store.HighestVersion(),
		Logger: n.component("ownership"),
	})
	return err
}

func (n *node) makeWriter() error {
	var err error
	linger := n.cfg.Linger
	if linger == 0 {
		linger = -1 // none
	}
	n.coalescer, err = producing.NewCoalescer(producing.CoalescerConfig{
		Committer:  n.store,
		Leadership: n.owner,
		Known: func(topic uuid.UUID) bool {
			_, ok := n.catalogue.ByID(topic)
			return ok
		},
		Linger:       linger,
		MemoryBudget: n.cfg.MemoryBudget,
		Logger:       n.log, Registerer: n.registry,
	})
	return err
}

func (n *node) makeCatalogue() error {
	var err error
	n.catalogue, err = topics.New(topics.Config{
		Log: n.store, Appender: n.coalescer, KV: n.db, Data: deletedTopics{n},
		Defaults: topics.Defaults{
			Partitions: n.cfg.DefaultPartitions,
			Config: topology.TopicConfig{
				RetentionMS:    milliseconds(n.cfg.RetentionAge),
				RetentionBytes: &n.cfg.RetentionBytes,
				MaxRecordBytes: &n.cfg.MaxRecordBytes,
				SegmentBytes:   &n.cfg.SegmentBytes,
				SegmentMS:      milliseconds(n.cfg.SegmentAge),
			},
		},
		AutoCreate:     n.cfg.TopicAutoCreate,
		MaxRecordBytes: n.cfg.MaxRequestBytes,
		Logger:         n.log, Registerer: n.registry,
	})
	return err
}

// milliseconds is d as settings of topics have it; -1 stays -1.
func milliseconds(d time.Duration) *int64 {
	if d < 0 {
		return new(int64(-1))
	}
	return new(d.Milliseconds())
}

// deletedTopics drops the data of a deleted topic after the consumers have let go of its positions.
type deletedTopics struct{ n *node }

func (d deletedTopics) Topics() []uuid.UUID { return d.n.store.Topics() }

func (d deletedTopics) DropTopic(topic uuid.UUID) error {
	if err := d.n.consumers.ForgetTopic(topic); err != nil {
		return err
	}
	return d.n.store.DropTopic(topic)
}

func (n *node) makeFronts() error {
	var err error
	n.producer, err = producing.NewProducer(producing.ProducerConfig{
		Coalescer: n.coalescer, Topics: n.catalogue, MaxRequestBytes: int64(n.cfg.MaxRequestBytes),
		Idempotency: producing.IdempotencyConfig{
			Logs: n.store, Window: n.cfg.IdempotencyWindow, Keys: n.cfg.IdempotencyKeys, Logger: n.log, Registerer: n.registry,
		},
		Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		return err
	}
	n.consumers, err = consuming.New(consuming.Config{
		Topics: n.catalogue, Logs: n.store, Appender: n.coalescer, KV: n.db, Leadership: n.owner,
		IdleTimeout: n.cfg.ConsumerIdleTimeout, MaxWait: n.cfg.MaxPollWait, MaxBytes: n.cfg.MaxPollBytes,
		CommitInterval: n.cfg.CommitInterval, Compression: n.cfg.PollCompression,
		Logger: n.component("consuming"), Registerer: n.registry,
	})
	return err
}

func (n *node) component(name string) zerolog.Logger {
	return n.log.With().Str("component", name).Logger()
}

// serve runs the broker until ctx ends, then stops it against the arrows: the doors drain first, then consumers write
// their positions, then the writer, and last the disk. An error of any layer stops all.
func (n *node) serve(ctx context.Context) error {
	if err := n.catalogue.Load(ctx); err != nil {
		return err
	}
	close(n.loaded)
	return layered(ctx,
		parallel(n.store.Run, n.watchDatabase),
		n.coalescer.Run,
		parallel(n.catalogue.Run, n.consumers.Run),
		n.producer.Run,
		n.runDoors,
	)
}

// watchDatabase ends the broker when its database cannot be written any more: nothing would move on, and the next start
// tells what reached the disk.
func (n *node) watchDatabase(ctx context.Context) error {
	select {
	case <-n.db.Failed():
		return n.db.Err()
	case <-ctx.Done():
		return nil
	}
}

// layered runs each layer on top of those before it. When ctx ends the last layer is told to stop, and each other one
// once all layers above it have returned. A layer that returns early stops all.
func layered(ctx context.Context, layers ...func(context.Context) error) error {
	if len(layers) == 0 {
		<-ctx.Done()
		return nil
	}
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBase()
	above, stopAbove := context.WithCancel(ctx)
	defer stopAbove()
	var g errgroup.Group
	g.Go(func() error { defer stopAbove(); return layers[0](base) })
	g.Go(func() error { defer stopBase(); return layered(above, layers[1:]...) })
	return g.Wait()
}

// parallel runs several as one layer: the first that returns stops the others.
func parallel(runs ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var g errgroup.Group
		for _, run := range runs {
			g.Go(func() error { defer stop(); return run(ctx) })
		}
		return g.Wait()
	}
}

// close lets go of the disk. All that ran must have returned.
func (n *node) close() error {
	var errs []error
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.db != nil {
		errs = append(errs, n.db.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close broker %d: %w", n.members.Self(), err)
	}
	return nil
}
