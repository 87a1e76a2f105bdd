package harness

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Load is a number of producers that send keyed records as fast as they are answered.
type Load struct {
	stop   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	acked  atomic.Int64
	mu     sync.Mutex
	errors []string // unexpected answers
	broken []string // requests that a broken connection left without an answer
}

// LoadOptions size a Load.
type LoadOptions struct {
	Topic   string
	Name    string // begins every key, so that two loads never share one
	Binary  int    // connections of the binary protocol
	Window  int    // requests in flight on each; default 128
	HTTP    int    // connections of HTTP/1.1, one request at a time
	Keys    int    // of each connection; default 16
	Seed    uint64
	MinSize int // of a value; default 100
	MaxSize int // default 1000
}

// StartLoad starts producers against a broker. What they send and what is answered goes to the ledger. A producer whose
// connection breaks ends.
func StartLoad(b *Broker, l *Ledger, o LoadOptions) *Load {
	if o.Window == 0 {
		o.Window = 128
	}
	if o.Keys == 0 {
		o.Keys = 16
	}
	if o.MinSize == 0 {
		o.MinSize = 100
	}
	if o.MaxSize == 0 {
		o.MaxSize = 1000
	}
	load := &Load{stop: make(chan struct{})}
	for i := range o.Binary {
		p := &binaryProducer{load: load, ledger: l, o: o, addr: b.Addr(BinaryPort), keys: keys(o, "b", i), rng: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
		load.wg.Go(p.run)
	}
	for i := range o.HTTP {
		p := &httpProducer{load: load, ledger: l, o: o, base: b.URL(ProducePort, "/v1/topic/"+o.Topic+"/messages?partitionKey="), keys: keys(o, "h", i), rng: rand.New(rand.NewPCG(o.Seed, uint64(1000+i)))}
		load.wg.Go(p.run)
	}
	return load
}

func keys(o LoadOptions, kind string, i int) (out []string) {
	for k := range o.Keys {
		out = append(out, fmt.Sprintf("%s-%s%d-%d", o.Name, kind, i, k))
	}
	return out
}

// Acked is how many records were acknowledged so far.
func (l *Load) Acked() int64 { return l.acked.Load() }

// Stop tells the producers to send no more, and waits until all is answered or broken.
func (l *Load) Stop() {
	l.once.Do(func() { close(l.stop) })
	l.wg.Wait()
}

// Wait waits until every producer has ended by itself, because its connection broke.
func (l *Load) Wait() { l.wg.Wait() }

// Errors are answers that were neither an acknowledgement nor a documented refusal.
func (l *Load) Errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errors
}

// CheckErrors fails the test if there were any.
func (l *Load) CheckErrors(t testing.TB) {
	t.Helper()
	if e := l.Errors(); len(e) > 0 {
		t.Errorf("%d unexpected answers: %s", len(e), strings.Join(e[:min(5, len(e))], "; "))
	}
}

// Broken tells of HTTP requests that got no answer: which record, and how the connection broke.
func (l *Load) Broken() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

func (l *Load) broke(key string, seq int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = append(l.broken, fmt.Sprintf("%s#%d: %v", key, seq, err))
}

func (l *Load) unexpected(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors = append(l.errors, fmt.Sprintf(format, args...))
}

func (l *Load) stopped() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// binaryProducer keeps a window of frames in flight on one connection. Each stream id stands for one record.
type binaryProducer struct {
	load   *Load
	ledger *Ledger
	o      LoadOptions
	addr   string
	keys   []string
	rng    *rand.Rand
}

type inFlight struct {
	key string
	seq int
}

func (p *binaryProducer) run() {
	conn, err := net.DialTimeout("tcp", p.addr, 5*time.Second)
	if err != nil {
		p.load.unexpected("dial: %v", err)
		return
	}
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	if err := Handshake(conn, r); err != nil {
		p.load.unexpected("handshake: %v", err)
		return
	}
	free := make(chan uint16, p.o.Window)
	sent := make([]inFlight, p.o.Window+1) // by stream id; written before the frame, read after its answer
	for id := 1; id <= p.o.Window; id++ {
		free <- uint16(id)
	}
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		for {
			id, op, body, err := ReadFrame(r)
			if err != nil {
				return
			}
			p.answer(sent[id], op, body)
			free <- id
		}
	}()
	w := bufio.NewWriterSize(conn, 64<<10)
	p.send(w, free, sent, broken)
	for range p.o.Window { // all answered, or broken
		select {
		case <-free:
		case <-broken:
			return
		}
	}
	conn.Close()
	<-broken
}

// send writes frames until the load is stopped or the connection breaks. It puts every id it took and did not use back.
func (p *binaryProducer) send(w *bufio.Writer, free chan uint16, sent []inFlight, broken chan struct{}) {
	for !p.load.stopped() {
		var id uint16
		select {
		case id = <-free:
		default:
			if w.Flush() != nil {
				return
			}
			select {
			case id = <-free:
			case <-broken:
				return
			}
		}
		key := p.keys[p.rng.IntN(len(p.keys))]
		seq, value := p.ledger.Next(key, p.o.MinSize+p.rng.IntN(p.o.MaxSize-p.o.MinSize+1))
		sent[id] = inFlight{key, seq}
		if _, err := w.Write(ProduceFrame(id, key, p.o.Topic, value)); err != nil {
			return
		}
	}
	w.Flush()
}

func (p *binaryProducer) answer(f inFlight, op byte, body []byte) {
	switch {
	case op == OpProduceResponse && len(body) == 0:
		p.ledger.Answer(f.key, f.seq, Acked)
		p.load.acked.Add(1)
	case op == OpError && len(body) > 0 && (body[0] == 1 || body[0] == 2):
		p.ledger.Answer(f.key, f.seq, Refused)
	case op == OpError && len(body) > 0 && strings.HasPrefix(string(body[1:]), "outcome unknown:"):
		p.ledger.Answer(f.key, f.seq, Unknown)
	case op == OpError && len(body) > 0:
		p.ledger.Answer(f.key, f.seq, Refused) // code 0 without that text: not written
		p.load.unexpected("error %d: %s", body[0], body[1:])
	default:
		p.load.unexpected("op %d with %d bytes", op, len(body))
	}
}

// The op codes of docs/wire.md, 4.1.
const (
	OpStartup byte = iota + 1
	OpReady
	OpError
	OpProduce
	OpProduceResponse
	OpHeartbeat
)

// Frame makes a frame of the binary protocol.
func Frame(id uint16, op byte, body []byte) []byte {
	f := make([]byte, 13, 13+len(body))
	f[0] = 1
	binary.BigEndian.PutUint16(f[2:], id)
	f[4] = op
	binary.BigEndian.PutUint32(f[5:], uint32(len(body)))
	binary.BigEndian.PutUint32(f[9:], crc32.ChecksumIEEE(f[:9]))
	return append(f, body...)
}

// ProduceFrame makes a PRODUCE frame with one key, one topic and some messages.
func ProduceFrame(id uint16, key, topic string, messages ...string) []byte {
	body := append([]byte{byte(len(key))}, key...)
	body = append(append(body, byte(len(topic))), topic...)
	for _, m := range messages {
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(m))), m...)
	}
	return Frame(id, OpProduce, body)
}

// ReadFrame reads one frame and checks its checksum.
func ReadFrame(r io.Reader) (id uint16, op byte, body []byte, err error) {
	var h [13]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, 0, nil, err
	}
	if crc32.ChecksumIEEE(h[:9]) != binary.BigEndian.Uint32(h[9:]) {
		return 0, 0, nil, fmt.Errorf("wrong checksum in the header % x", h)
	}
	n := binary.BigEndian.Uint32(h[5:])
	if n > 512 {
		return 0, 0, nil, fmt.Errorf("a body of %d bytes, more than clients survive", n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return binary.BigEndian.Uint16(h[2:]), h[4], body, err
}

// Handshake writes STARTUP and waits for READY.
func Handshake(w io.Writer, r io.Reader) error {
	if _, err := w.Write(Frame(0, OpStartup, nil)); err != nil {
		return err
	}
	id, op, body, err := ReadFrame(r)
	if err == nil && (id != 0 || op != OpReady || len(body) != 0) {
		err = fmt.Errorf("the answer to STARTUP is op %d on stream %d with %d bytes", op, id, len(body))
	}
	return err
}

// httpProducer sends one request at a time on one connection.
type httpProducer struct {
	load   *Load
	ledger *Ledger
	o      LoadOptions
	base   string
	keys   []string
	rng    *rand.Rand
}

func (p *httpProducer) run() {
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: 60 * time.Second}
	defer client.CloseIdleConnections()
	for !p.load.stopped() {
		key := p.keys[p.rng.IntN(len(p.keys))]
		seq, value := p.ledger.Next(key, p.o.MinSize+p.rng.IntN(p.o.MaxSize-p.o.MinSize+1))
		// NewRequest with a plain reader: without GetBody the transport never sends a request a second time by itself.
		req, err := http.NewRequest("POST", p.base+key, io.MultiReader(strings.NewReader(value)))
		if err != nil {
			p.load.unexpected("%v", err)
			return
		}
		req.ContentLength = int64(len(value))
		r, err := client.Do(req)
		if err != nil {
			p.load.broke(key, seq, err)
			return
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if !p.answer(inFlight{key, seq}, r.StatusCode, body, err) {
			return
		}
	}
}

// answer notes the outcome and tells whether to go on.
func (p *httpProducer) answer(f inFlight, status int, body []byte, err error) bool {
	switch status {
	case http.StatusOK:
		if err != nil || string(body) != "OK" {
			p.load.unexpected("a cut answer: %v, %q", err, body)
			return false
		}
		p.ledger.Answer(f.key, f.seq, Acked)
		p.load.acked.Add(1)
	case http.StatusMisdirectedRequest, http.StatusTooManyRequests, http.StatusInsufficientStorage:
		p.ledger.Answer(f.key, f.seq, Refused)
	case http.StatusServiceUnavailable:
		p.ledger.Answer(f.key, f.seq, Refused)
		return false // shutting down
	case http.StatusGatewayTimeout:
		p.ledger.Answer(f.key, f.seq, Unknown)
	default:
		p.ledger.Answer(f.key, f.seq, Unknown)
		p.load.unexpected("status %d: %s", status, body)
	}
	return true
}
