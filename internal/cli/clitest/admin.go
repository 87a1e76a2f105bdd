package clitest

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// defaults of the broker.
var defaults = map[string]any{"retentionMs": 604800000, "retentionBytes": -1, "maxRecordBytes": 1048576, "segmentBytes": 134217728, "segmentMs": 86400000}

func (b *Broker) view(t *topic, logs bool) map[string]any {
	own := map[string]any{}
	raw, err := json.Marshal(t.Config)
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(raw, &own); err != nil {
		panic(err)
	}
	effective := map[string]any{}
	for name, v := range defaults {
		effective[name] = v
	}
	for name, v := range own {
		effective[name] = v
	}
	v := map[string]any{
		"name": t.Name, "id": t.ID, "partitions": t.Partitions, "config": own, "effectiveConfig": effective, "state": t.State,
		"created": t.Created, "updated": t.Updated,
	}
	if logs {
		list := []map[string]any{}
		for p, log := range t.logs {
			list = append(list, map[string]any{
				"partition": p, "token": strconv.FormatInt(int64(t.PartitionToken(topology.Partition(p))), 10), "leader": 0, "generation": 1,
				"start": 0, "end": len(log), "highWatermark": len(log), "bytes": 100 * len(log), "segments": 1,
			})
		}
		v["logs"] = list
	}
	return v
}

func (b *Broker) listTopics(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := []string{}
	for name := range b.topics {
		names = append(names, name)
	}
	slices.Sort(names)
	list := []any{}
	for _, name := range names {
		list = append(list, b.view(b.topics[name], false))
	}
	answer(w, http.StatusOK, map[string]any{"topics": list})
}

func (b *Broker) createTopic(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Name       string               `json:"name"`
		Partitions int                  `json:"partitions"`
		Config     topology.TopicConfig `json:"config"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		Refuse(w, http.StatusBadRequest, err.Error(), -1)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	status := http.StatusCreated
	t := b.topics[request.Name]
	if t != nil {
		if request.Partitions != 0 && request.Partitions != t.Partitions {
			Refuse(w, http.StatusConflict, "topic "+request.Name+" exists with other settings", -1)
			return
		}
		status = http.StatusOK
	} else {
		if request.Partitions == 0 {
			request.Partitions = 3
		}
		t = b.create(request.Name, request.Partitions)
		t.Config = request.Config
	}
	answer(w, status, b.view(t, false))
}

func (b *Broker) describeTopic(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.known(w, r); t != nil {
		answer(w, http.StatusOK, b.view(t, true))
	}
}

func (b *Broker) known(w http.ResponseWriter, r *http.Request) *topic {
	t := b.topics[r.PathValue("topic")]
	if t == nil {
		Refuse(w, http.StatusNotFound, "unknown topic: "+r.PathValue("topic"), -1)
	}
	return t
}

func (b *Broker) patchTopic(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Config map[string]*int64 `json:"config"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		Refuse(w, http.StatusBadRequest, err.Error(), -1)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.known(w, r)
	if t == nil {
		return
	}
	for name, v := range request.Config {
		switch name {
		case "retentionMs":
			t.Config.RetentionMS = v
		case "retentionBytes":
			t.Config.RetentionBytes = v
		case "segmentBytes":
			t.Config.SegmentBytes = v
		case "segmentMs":
			t.Config.SegmentMS = v
		case "maxRecordBytes":
			t.Config.MaxRecordBytes = nil
			if v != nil {
				n := int(*v)
				t.Config.MaxRecordBytes = &n
			}
		default:
			Refuse(w, http.StatusBadRequest, "unknown setting "+name, -1)
			return
		}
	}
	answer(w, http.StatusOK, b.view(t, false))
}

func (b *Broker) deleteTopic(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known(w, r) != nil {
		delete(b.topics, r.PathValue("topic"))
		w.WriteHeader(http.StatusNoContent)
	}
}

func (b *Broker) detail(name string, g *group) topology.GroupDetail {
	d := topology.GroupDetail{Name: name, Epoch: 1, Members: []topology.GroupMember{}, Partitions: []topology.GroupPartition{}}
	for _, id := range g.ids() {
		d.Members = append(d.Members, topology.GroupMember{ID: id, Topics: g.members[id].topics, LastSeen: time.UnixMilli(b.now).UTC()})
	}
	places := []place{}
	for p := range g.positions {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int { return a.partition - b.partition })
	for _, p := range places {
		t := b.topics[p.topic]
		if t == nil {
			continue
		}
		committed := topology.Offset(g.positions[p])
		end := topology.Offset(len(t.logs[p.partition]))
		d.Partitions = append(d.Partitions, topology.GroupPartition{
			Topic: p.topic, Partition: topology.Partition(p.partition), Committed: &committed, End: end, Lag: int64(end - committed), Owner: g.owner(p.partition),
		})
	}
	return d
}

func (b *Broker) listGroups(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := []string{}
	for name := range b.groups {
		names = append(names, name)
	}
	slices.Sort(names)
	list := []topology.GroupSummary{}
	for _, name := range names {
		d := b.detail(name, b.groups[name])
		s := topology.GroupSummary{Name: name, Members: len(d.Members), Topics: []string{}}
		for _, p := range d.Partitions {
			s.Lag += p.Lag
			if !slices.Contains(s.Topics, p.Topic) {
				s.Topics = append(s.Topics, p.Topic)
			}
		}
		list = append(list, s)
	}
	answer(w, http.StatusOK, map[string]any{"groups": list})
}

func (b *Broker) describeGroup(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[r.PathValue("group")]
	if g == nil {
		Refuse(w, http.StatusNotFound, "unknown group: "+r.PathValue("group"), -1)
		return
	}
	answer(w, http.StatusOK, b.detail(r.PathValue("group"), g))
}

func (b *Broker) seek(w http.ResponseWriter, r *http.Request) {
	var request topology.SeekRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		Refuse(w, http.StatusBadRequest, err.Error(), -1)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[request.Topic]
	if t == nil {
		Refuse(w, http.StatusNotFound, "unknown topic: "+request.Topic, -1)
		return
	}
	g := b.group(r.PathValue("group"))
	if len(g.members) > 0 && !request.Force {
		Refuse(w, http.StatusConflict, "the group has live members", -1)
		return
	}
	changes := []topology.PositionChange{}
	for p := range t.logs {
		if request.Partition != nil && int(*request.Partition) != p {
			continue
		}
		at := place{request.Topic, p}
		change := topology.PositionChange{Topic: request.Topic, Partition: topology.Partition(p)}
		if old, has := g.positions[at]; has {
			from := topology.Offset(old)
			change.From = &from
		}
		change.To = topology.Offset(target(t.logs[p], request))
		g.positions[at] = int(change.To)
		changes = append(changes, change)
	}
	answer(w, http.StatusOK, map[string]any{"positions": changes})
}

func target(log []Record, request topology.SeekRequest) int {
	switch request.To {
	case topology.SeekLatest:
		return len(log)
	case topology.SeekOffset:
		return min(int(*request.Offset), len(log))
	case topology.SeekTime:
		at, err := time.Parse(time.RFC3339Nano, request.Time)
		if err != nil {
			return 0
		}
		return startOf(log, "", strconv.FormatInt(at.UnixMilli(), 10), "")
	}
	return 0
}

func (b *Broker) deleteGroup(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := r.PathValue("group")
	g := b.groups[name]
	switch {
	case g == nil:
		Refuse(w, http.StatusNotFound, "unknown group: "+name, -1)
	case len(g.members) > 0:
		Refuse(w, http.StatusConflict, "the group has live members", -1)
	default:
		delete(b.groups, name)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (b *Broker) cluster(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{
		"clusterId": "6f1f5b1e-0000-4000-8000-000000000001", "size": 1, "epoch": 1,
		"brokers": []any{map[string]any{
			"ordinal": 0, "host": "127.0.0.1", "ready": len(b.reasons) == 0, "reasons": b.reasons, "version": "test", "disk": "d", "run": "r",
			"started": "2026-03-01T07:00:00Z", "ports": map[string]int{"client": 9250, "producer": 9251, "consumer": 9252},
		}},
		"generations": []any{},
		"storage":     map[string]any{"dir": "/data", "bytes": 1048576, "free": 10737418240, "reserve": 16777216, "full": false, "flush": "always"},
	})
}

func (b *Broker) discover(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"length": 1, "names": []string{"localhost"}, "producerPort": portOf(b.server.Listener.Addr()),
		"producerBinaryPort": portOf(b.binary.Addr()), "consumerPort": portOf(b.server.Listener.Addr()),
	})
}

func portOf(a net.Addr) int { return a.(*net.TCPAddr).Port }

// Join makes a member that never polls.
func (b *Broker) Join(group, id string, topics ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.group(group).members[id] = &member{topics: topics}
}

// NotReady makes the broker say that it does not do its work.
func (b *Broker) NotReady(reasons ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reasons = reasons
}
