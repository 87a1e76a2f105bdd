package clitest

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/topology"
)

type group struct {
	members   map[string]*member
	positions map[place]int
}

type member struct {
	topics []string
	polls  int
	id     string // of the open answer
	open   []span
}

type place struct {
	topic     string
	partition int
}

// span is [from, to) of a partition.
type span struct {
	place
	from, to int
}

func (b *Broker) group(name string) *group {
	g := b.groups[name]
	if g == nil {
		g = &group{members: map[string]*member{}, positions: map[place]int{}}
		b.groups[name] = g
	}
	return g
}

// find is the member of that id.
func (b *Broker) find(id string) (*group, *member) {
	for _, g := range b.groups {
		if m := g.members[id]; m != nil {
			return g, m
		}
	}
	return nil, nil
}

func (b *Broker) register(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := r.URL.Query()
	g := b.group(q.Get("group"))
	if g.members[q.Get("consumerId")] == nil {
		g.members[q.Get("consumerId")] = &member{topics: q["topic"]}
	}
	for _, name := range q["topic"] {
		t := b.topics[name]
		if t == nil {
			t = b.create(name, 3)
		}
		for p := range t.logs {
			if _, has := g.positions[place{name, p}]; !has && q.Get("onNewGroup") == "startFromLatest" {
				g.positions[place{name, p}] = len(t.logs[p])
			}
		}
	}
	b.changed.Broadcast()
	_, _ = w.Write([]byte("OK"))
}

// Forget removes all members, as a broker that restarts does.
func (b *Broker) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		clear(g.members)
	}
	b.changed.Broadcast()
}

// Committed is the position of a group on a partition.
func (b *Broker) Committed(group, topic string, partition int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.group(group).positions[place{topic, partition}]
}

// Members are the ids of the live members of a group.
func (b *Broker) Members(group string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.group(group).ids()
}

func (g *group) ids() []string {
	ids := []string{}
	for id := range g.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (g *group) owner(p int) string {
	ids := g.ids()
	if len(ids) == 0 {
		return ""
	}
	return ids[p%len(ids)]
}

func (b *Broker) poll(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	wait, _ := time.ParseDuration(q.Get("wait"))
	most, _ := strconv.Atoi(q.Get("maxRecords"))
	deadline := time.Now().Add(wait)
	wake := time.AfterFunc(wait, b.wake)
	defer wake.Stop()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			b.wake()
		case <-stop:
		}
	}()

	b.mu.Lock()
	defer b.mu.Unlock()
	g, m := b.find(q.Get("consumerId"))
	if m == nil {
		Refuse(w, http.StatusConflict, "Consumer not registered", -1)
		return
	}
	if m.id != "" && q.Get("ack") == m.id {
		g.commit(m)
	}
	m.id, m.open = "", nil
	for {
		if spans := b.gather(g, q.Get("consumerId"), m, most); len(spans) > 0 {
			m.polls++
			m.id, m.open = fmt.Sprintf("%s.%d", q.Get("consumerId"), m.polls), spans
			b.deliver(w, r, m)
			return
		}
		if b.closed || r.Context().Err() != nil || !time.Now().Before(deadline) || g.members[q.Get("consumerId")] == nil {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		b.changed.Wait()
	}
}

func (b *Broker) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed.Broadcast()
}

func (g *group) commit(m *member) {
	for _, s := range m.open {
		g.positions[s.place] = s.to
	}
	m.id, m.open = "", nil
}

// gather is what a member may have next.
func (b *Broker) gather(g *group, id string, m *member, most int) []span {
	var spans []span
	if most == 0 {
		most = 1000
	}
	for _, name := range m.topics {
		t := b.topics[name]
		for p := range t.logs {
			from := g.positions[place{name, p}]
			to := min(len(t.logs[p]), from+most)
			if g.owner(p) == id && from < to {
				spans = append(spans, span{place{name, p}, from, to})
				most -= to - from
			}
		}
	}
	return spans
}

func (b *Broker) deliver(w http.ResponseWriter, r *http.Request, m *member) {
	w.Header().Set("Skein-Poll-Id", m.id)
	if r.Header.Get("Accept") != "application/vnd.skein.records+json" {
		body := b.binaryBody(m.open)
		w.Header().Set("Content-Type", "application/vnd.polar.consumermessage")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
		return
	}
	var batches []string
	for _, s := range m.open {
		t := b.topics[s.topic]
		batches = append(batches, fmt.Sprintf(`{"topic":"%s","partition":%d,"token":"%d","generation":1,"startOffset":%d,"records":%s}`,
			s.topic, s.partition, t.PartitionToken(topology.Partition(s.partition)), s.from, show(t.logs[s.partition], s.from, s.to)))
	}
	w.Header().Set("Content-Type", "application/vnd.skein.records+json")
	_, _ = w.Write([]byte("[" + strings.Join(batches, ",") + "]"))
}

// binaryBody is the form of docs/wire.md 5.2.1.
func (b *Broker) binaryBody(spans []span) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(spans)))
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	defer enc.Close()
	for _, s := range spans {
		t := b.topics[s.topic]
		var plain []byte
		for _, r := range t.logs[s.partition][s.from:s.to] {
			plain = binary.BigEndian.AppendUint64(plain, uint64(r.Timestamp*1000))
			plain = binary.BigEndian.AppendUint32(plain, uint32(len(r.Value)))
			plain = append(plain, r.Value...)
		}
		payload := enc.EncodeAll(plain, nil)
		body = binary.BigEndian.AppendUint64(body, uint64(int64(s.partition)))
		body = append(body, 0)
		body = binary.BigEndian.AppendUint32(body, 1)
		body = append(body, byte(len(s.topic)))
		body = append(body, s.topic...)
		body = binary.BigEndian.AppendUint64(body, uint64(s.from))
		body = binary.BigEndian.AppendUint32(body, uint32(len(payload)))
		body = append(body, payload...)
	}
	return body
}

// show gives records in the records shape. Values that are JSON stand there as they were stored, white space and all.
func show(log []Record, from, to int) string {
	var out []string
	for i := from; i < to; i++ {
		r := log[i]
		headers := [][2]any{}
		for _, h := range r.Headers {
			headers = append(headers, [2]any{string(h[0]), text(h[1])})
		}
		value, isText := string(r.Value), false
		if !isDocument(r.Value) {
			form := text(r.Value)
			_, isText = form.(string)
			value = marshal(form)
		}
		shown := fmt.Sprintf(`{"offset":%d,"timestamp":%d,"key":%s,"headers":%s,"value":%s`, i, r.Timestamp, marshal(text(r.Key)), marshal(headers), value)
		if isText {
			shown += `,"text":true`
		}
		out = append(out, shown+"}")
	}
	return "[" + strings.Join(out, ",") + "]"
}

func marshal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func text(b []byte) any {
	switch {
	case b == nil:
		return nil
	case utf8.Valid(b) && !(json.Valid(b) && !isDocument(b)):
		return string(b)
	}
	return map[string]string{"$base64": base64.StdEncoding.EncodeToString(b)}
}

// isDocument tells whether a value is shown as JSON: not what could be taken for null or for wrapped bytes.
func isDocument(b []byte) bool {
	return json.Valid(b) && utf8.Valid(b) && string(b) != "null" && !bytes.Contains(b, []byte(`"$`))
}

func (b *Broker) commit(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, m := b.find(r.URL.Query().Get("consumerId"))
	if m == nil {
		Refuse(w, http.StatusConflict, "Consumer not registered", -1)
		return
	}
	if ack := r.URL.Query().Get("ack"); ack == "" || ack == m.id {
		g.commit(m)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (b *Broker) goodbye(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := r.URL.Query().Get("consumerId")
	g, m := b.find(id)
	if m == nil {
		Refuse(w, http.StatusConflict, "Consumer not registered", -1)
		return
	}
	if r.URL.Query().Get("commit") != "false" {
		g.commit(m)
	}
	delete(g.members, id)
	b.changed.Broadcast()
	_, _ = w.Write([]byte("OK"))
}

func (b *Broker) records(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	wait, _ := time.ParseDuration(q.Get("wait"))
	most, _ := strconv.Atoi(q.Get("maxRecords"))
	deadline := time.Now().Add(wait)
	wake := time.AfterFunc(wait, b.wake)
	defer wake.Stop()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			b.wake()
		case <-stop:
		}
	}()
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[r.PathValue("topic")]
	p, err := strconv.Atoi(r.PathValue("partition"))
	if t == nil || err != nil || p >= len(t.logs) {
		Refuse(w, http.StatusNotFound, "unknown topic "+r.PathValue("topic"), -1)
		return
	}
	from := startOf(t.logs[p], q.Get("offset"), q.Get("time"), q.Get("last"))
	if from > len(t.logs[p]) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		writeJSON(w, map[string]any{"detail": "offset out of range", "start": 0, "highWatermark": len(t.logs[p])})
		return
	}
	for from == len(t.logs[p]) && !b.closed && r.Context().Err() == nil && time.Now().Before(deadline) {
		b.changed.Wait()
	}
	to := len(t.logs[p])
	if most > 0 {
		to = min(to, from+most)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"topic":"%s","partition":%d,"start":0,"highWatermark":%d,"next":%d,"damaged":[],"records":%s}`,
		t.Name, p, len(t.logs[p]), to, show(t.logs[p], from, to))
}

func startOf(log []Record, offset, at, last string) int {
	if n, err := strconv.Atoi(offset); err == nil {
		return n
	}
	if ms, err := strconv.ParseInt(at, 10, 64); err == nil {
		i := slices.IndexFunc(log, func(r Record) bool { return r.Timestamp >= ms })
		if i < 0 {
			return len(log)
		}
		return i
	}
	if n, err := strconv.Atoi(last); err == nil {
		return max(0, len(log)-n)
	}
	return 0
}
