package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// topicView is a topic as the API shows it. Config has what was set for it, EffectiveConfig what holds.
type topicView struct {
	topology.Topic
	EffectiveConfig topology.TopicConfig `json:"effectiveConfig"`
	Logs            []logView            `json:"logs,omitempty"` // only where one topic is asked for
}

// logView is a partition of a topic. Records lie at the offsets from Start up to, not with, End; readers see those below
// HighWatermark.
type logView struct {
	Partition     topology.Partition `json:"partition"`
	Token         int64              `json:"token,string"`
	Leader        *topology.Ordinal  `json:"leader"`     // null when no leader is known here
	Generation    *topology.Version  `json:"generation"` // that the leader leads in; null with Leader
	Start         topology.Offset    `json:"start"`
	End           topology.Offset    `json:"end"`
	HighWatermark topology.Offset    `json:"highWatermark"`
	Bytes         int64              `json:"bytes"`
	Segments      int                `json:"segments"`
	Oldest        time.Time          `json:"oldest,omitzero"` // append times
	Newest        time.Time          `json:"newest,omitzero"`
	Damaged       []offsetRange      `json:"damaged,omitempty"`
}

// offsetRange is the offsets [From, To).
type offsetRange struct {
	From topology.Offset `json:"from"`
	To   topology.Offset `json:"to"`
}

func (a *Admin) view(t topology.Topic) topicView {
	return topicView{Topic: t, EffectiveConfig: a.cfg.Topics.EffectiveConfig(t)}
}

func (a *Admin) listTopics(w http.ResponseWriter, _ *http.Request) {
	list := a.cfg.Topics.List()
	views := make([]topicView, len(list))
	for i, t := range list {
		views[i] = a.view(t)
	}
	httpd.WriteJSON(w, http.StatusOK, map[string]any{"topics": views})
}

// newTopic is the body of a creation.
type newTopic struct {
	Name       string               `json:"name"`
	Partitions *int                 `json:"partitions"`
	Config     topology.TopicConfig `json:"config"`
}

func (a *Admin) createTopic(w http.ResponseWriter, r *http.Request) {
	var body newTopic
	if err := readJSON(w, r, &body); err != nil {
		httpd.RefuseError(w, err)
		return
	}
	partitions := 0
	if body.Partitions != nil {
		if err := topology.CheckPartitions(*body.Partitions); err != nil {
			httpd.RefuseError(w, err)
			return
		}
		partitions = *body.Partitions
	}
	t, created, err := a.cfg.Topics.Create(r.Context(), body.Name, partitions, body.Config)
	if err != nil {
		httpd.RefuseError(w, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", "/v1/topics/"+url.PathEscape(t.Name))
	}
	httpd.WriteJSON(w, status, a.view(t))
}

func (a *Admin) describeTopic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("topic")
	if err := topology.CheckTopicName(name, true); err != nil {
		httpd.RefuseError(w, err)
		return
	}
	t, ok := a.cfg.Topics.Lookup(name)
	if !ok {
		httpd.RefuseError(w, fmt.Errorf("%w: %q", topology.ErrUnknownTopic, name))
		return
	}
	v := a.view(t)
	infos := a.cfg.Logs.TopicInfo(t.ID)
	v.Logs = make([]logView, t.Partitions)
	for i := range v.Logs {
		p := topology.Partition(i)
		v.Logs[i] = a.logView(t, p, infos[p])
	}
	httpd.WriteJSON(w, http.StatusOK, v)
}

func (a *Admin) logView(t topology.Topic, p topology.Partition, info data.LogInfo) logView {
	v := logView{
		Partition: p, Token: int64(t.PartitionToken(p)),
		Start: info.Start, End: info.End, HighWatermark: info.HighWatermark,
		Bytes: info.Bytes, Segments: info.Segments, Oldest: utc(info.Oldest), Newest: utc(info.Newest),
	}
	if version, err := a.cfg.Ownership.Lead(t.PartitionToken(p)); err == nil {
		v.Leader, v.Generation = new(a.cfg.Members.Self()), &version
	}
	for _, d := range a.cfg.Logs.Damaged(t.Log(p)) {
		v.Damaged = append(v.Damaged, offsetRange{d.From, d.To})
	}
	return v
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

func (a *Admin) patchTopic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("topic")
	var body struct {
		Config *topology.TopicPatch `json:"config"`
	}
	err := topology.CheckTopicName(name, false)
	if err == nil {
		err = readJSON(w, r, &body)
	}
	if err == nil && body.Config == nil {
		err = fmt.Errorf(`%w body: it has no "config"; what cannot be changed is the name and the partitions`, topology.ErrInvalid)
	}
	if err != nil {
		httpd.RefuseError(w, err)
		return
	}
	t, err := a.cfg.Topics.Update(r.Context(), name, *body.Config)
	if err != nil {
		httpd.RefuseError(w, err)
		return
	}
	httpd.WriteJSON(w, http.StatusOK, a.view(t))
}

func (a *Admin) deleteTopic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("topic")
	err := topology.CheckTopicName(name, false)
	if err == nil {
		err = a.cfg.Topics.Delete(r.Context(), name)
	}
	if err != nil {
		httpd.RefuseError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
