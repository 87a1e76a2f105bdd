package producing

import (
	"slices"
	"sync"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// bodyKind says how the body of a request holds records.
type bodyKind int

const (
	bodyOpaque  bodyKind = iota // one record
	bodyLines                   // application/x-ndjson
	bodyFrames                  // application/vnd.polar.producer.frames
	bodyRecords                 // application/vnd.skein.records+json
)

// untimed stands for the timestamp of a record until the request's own is known.
const untimed = -1

// request is one produce request and what becomes of it. The first part is filled by whoever parses it.
type request struct {
	topicName      string
	kind           bodyKind
	key            []byte // nil: none
	timestamp      int64  // ms, or untimed
	headers        []recordbatch.RecordHeader
	idempotencyKey string // "": none
	body           []byte
	receipts       bool  // the answer shall name the offsets
	held           int64 // of the memory budget
	keyBuf         []byte

	topic   topology.Topic
	now     int64
	records []recordbatch.Record // in the order of the request
	decoder recordsDecoder
	mark    idemMark
	groups  []group
	group   []int32 // of each record, when there are several groups
	sorted  []recordbatch.Record

	duplicate bool // it is a repetition, in part at least
	lost      bool // a round has it still: it must not be used again
}

// group is the records of a request that go to one log.
type group struct {
	w        write
	token    token.Token // of the first key
	anywhere bool        // records without a key: any partition led here
	pending  *idemPending
	repeated bool // earlier is set: nothing is written
	earlier  idemEntry
	put      bool
}

func (g *group) abandon() {
	if g.pending != nil && !g.put {
		g.pending.abandon()
		g.pending = nil
	}
}

// keepRequest is how many records a request may have had to be kept for the next one.
const keepRequest = 1 << 10

var requests = sync.Pool{New: func() any { return new(request) }}

func newRequest() *request {
	r := requests.Get().(*request)
	r.timestamp = untimed
	return r
}

// free lets r be used again. The body is not r's to keep.
func (r *request) free() {
	if r.lost || cap(r.records) > keepRequest || cap(r.decoder.json.arena) > keepBytes {
		return
	}
	clear(r.records)
	clear(r.sorted)
	clear(r.groups)
	r.decoder.reset()
	*r = request{
		headers: r.headers[:0], records: r.records[:0], decoder: r.decoder, mark: idemMark{buf: r.mark.buf, headers: r.mark.headers[:0]},
		groups: r.groups[:0], group: r.group[:0], sorted: r.sorted[:0], keyBuf: r.keyBuf[:0],
	}
	requests.Put(r)
}

// parse reads the records of the body. Those without a timestamp of their own are untimed.
func (r *request) parse(limit int) error {
	like := recordbatch.Record{Timestamp: r.timestamp, Key: r.key, Headers: r.headers}
	if len(r.headers) == 0 {
		like.Headers = nil
	}
	var err error
	switch r.kind {
	case bodyLines:
		r.records, err = appendLines(r.records[:0], r.body, like, limit)
	case bodyFrames:
		r.records, err = appendMessages(r.records[:0], r.body, like, limit, "body")
	case bodyRecords:
		r.records, err = r.decoder.decode(r.records[:0], r.body, like, limit)
	default:
		like.Value = r.body
		r.records = append(r.records[:0], like)
		if size := like.Bytes(); size > limit {
			err = tooLarge(size, limit)
		}
	}
	if err == nil && len(r.records) == 0 {
		err = invalid("body: it has no records")
	}
	return err
}

// route makes the groups, in the order of their partitions. Records without a key go together: to any partition, or to
// that of the idempotency key if there is one.
func (r *request) route() {
	first := r.records[0].Key
	one := r.kind != bodyRecords
	if !one {
		one = true
		for i := range r.records[1:] {
			if string(r.records[i+1].Key) != string(first) {
				one = false
				break
			}
		}
	}
	if !one {
		r.routeEach()
		return
	}
	g := r.addGroup()
	r.direct(g, first)
	g.w.records = r.records
	g.w.bytes = bytesOf(r.records)
}

// addGroup is a further group, empty.
func (r *request) addGroup() *group {
	if len(r.groups) < cap(r.groups) {
		r.groups = r.groups[:len(r.groups)+1]
	} else {
		r.groups = append(r.groups, group{})
	}
	g := &r.groups[len(r.groups)-1]
	*g = group{}
	return g
}

// direct sets where records with that key go.
func (r *request) direct(g *group, key []byte) {
	switch {
	case key != nil:
		g.token = token.Of(key)
	case r.idempotencyKey != "":
		g.token = token.OfString(r.idempotencyKey)
	default:
		g.anywhere = true
		return
	}
	p := r.topic.PartitionOf(g.token)
	g.w.log, g.w.start = r.topic.Log(p), r.topic.PartitionToken(p)
}

// routeEach makes a group for each partition that some record goes to.
func (r *request) routeEach() {
	const nowhere = -1 // any partition
	r.group = slices.Grow(r.group[:0], len(r.records))[:len(r.records)]
	counts := map[int32]int{}
	for i := range r.records {
		var g group
		r.direct(&g, r.records[i].Key)
		p := int32(g.w.log.Partition)
		if g.anywhere {
			p = nowhere
		}
		r.group[i] = p
		counts[p]++
	}
	places := make([]int32, 0, len(counts))
	for p := range counts {
		places = append(places, p)
	}
	slices.Sort(places)

	r.sorted = slices.Grow(r.sorted[:0], len(r.records))[:len(r.records)]
	index, at := make(map[int32]int32, len(places)), 0
	for i, p := range places {
		g := r.addGroup()
		g.w.records = r.sorted[at : at : at+counts[p]]
		at += counts[p]
		index[p] = int32(i)
	}
	for i := range r.records {
		rec := &r.records[i]
		n := index[r.group[i]]
		g := &r.groups[n]
		if len(g.w.records) == 0 {
			r.direct(g, rec.Key)
		}
		g.w.records = append(g.w.records, *rec)
		r.group[i] = n
	}
	for i := range r.groups {
		r.groups[i].w.bytes = bytesOf(r.groups[i].w.records)
	}
}

func bytesOf(records []recordbatch.Record) int64 {
	n := int64(0)
	for i := range records {
		n += int64(encodedBound(&records[i]))
	}
	return n
}

// stamp gives the untimed records of g their timestamp.
func (r *request) stamp(g *group, ms int64) {
	for i := range g.w.records {
		if rec := &g.w.records[i]; rec.Timestamp == untimed {
			rec.Timestamp = ms
		}
	}
}

// digest is that of everything that makes the records what they are.
func (r *request) digest() digest {
	d := newDigester()
	d.bytes([]byte(r.topicName))
	d.number(int64(r.kind))
	d.bytes(r.key)
	d.number(r.timestamp)
	d.number(int64(len(r.headers)))
	for i := range r.headers {
		d.bytes([]byte(r.headers[i].Key))
		d.bytes(r.headers[i].Value)
	}
	d.bytes(r.body)
	return d.sum()
}

// receipt says where record i of the request is.
func (r *request) receipt(i int, next []int) (p topology.Partition, offset topology.Offset, version topology.Version, timestamp int64) {
	n := 0
	if len(r.groups) > 1 {
		n = int(r.group[i])
	}
	g := &r.groups[n]
	j := next[n]
	next[n]++
	timestamp = g.w.records[j].Timestamp
	if g.repeated {
		return g.w.log.Partition, g.earlier.base + topology.Offset(j), g.earlier.version, timestamp
	}
	return g.w.log.Partition, g.w.span.offset() + topology.Offset(j), g.w.span.version(), timestamp
}
