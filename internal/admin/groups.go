package admin

import (
	"fmt"
	"net/http"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

func (a *Admin) listGroups(w http.ResponseWriter, r *http.Request) {
	list := a.cfg.Groups.Groups(r.Context())
	if list == nil {
		list = []topology.GroupSummary{}
	}
	httpd.WriteJSON(w, http.StatusOK, map[string]any{"groups": list})
}

func (a *Admin) describeGroup(w http.ResponseWriter, r *http.Request) {
	name, ok := groupName(w, r)
	if !ok {
		return
	}
	g, ok := a.cfg.Groups.Group(r.Context(), name)
	if !ok {
		httpd.RefuseError(w, fmt.Errorf("%w: %q", topology.ErrUnknownGroup, name))
		return
	}
	if g.Members == nil {
		g.Members = []topology.GroupMember{}
	}
	if g.Partitions == nil {
		g.Partitions = []topology.GroupPartition{}
	}
	httpd.WriteJSON(w, http.StatusOK, g)
}

func (a *Admin) seekGroup(w http.ResponseWriter, r *http.Request) {
	name, ok := groupName(w, r)
	if !ok {
		return
	}
	var body topology.SeekRequest
	if err := readJSON(w, r, &body); err != nil {
		httpd.RefuseError(w, err)
		return
	}
	if err := checkSeek(body); err != nil {
		httpd.RefuseError(w, err)
		return
	}
	changes, err := a.cfg.Groups.Seek(r.Context(), name, body)
	if err != nil {
		httpd.RefuseError(w, err)
		return
	}
	if changes == nil {
		changes = []topology.PositionChange{}
	}
	httpd.WriteJSON(w, http.StatusOK, map[string]any{"positions": changes})
}

// checkSeek refuses what is wrong in itself, whatever the group and its positions are.
func checkSeek(r topology.SeekRequest) error {
	if err := topology.CheckTopicName(r.Topic, true); err != nil {
		return err
	}
	if r.Partition != nil && *r.Partition < 0 {
		return fmt.Errorf("%w partition: %d; allowed are 0 and more", topology.ErrInvalid, *r.Partition)
	}
	switch r.To {
	case topology.SeekEarliest, topology.SeekLatest:
	case topology.SeekOffset:
		if r.Offset == nil || *r.Offset < 0 {
			return fmt.Errorf(`%w seek: to "offset" needs an "offset" of 0 or more`, topology.ErrInvalid)
		}
	case topology.SeekTime:
		if _, err := httpd.ParseTime(r.Time); err != nil {
			return fmt.Errorf(`seek to "time": %w`, err)
		}
	default:
		return fmt.Errorf(`%w seek: "to" is %q; allowed are "earliest", "latest", "offset", "time"`, topology.ErrInvalid, r.To)
	}
	return nil
}

func (a *Admin) deleteGroup(w http.ResponseWriter, r *http.Request) {
	name, ok := groupName(w, r)
	if !ok {
		return
	}
	if err := a.cfg.Groups.DeleteGroup(r.Context(), name); err != nil {
		httpd.RefuseError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// groupName is the group of the path. When it is no name the request is answered, and ok is false.
func groupName(w http.ResponseWriter, r *http.Request) (name string, ok bool) {
	name = r.PathValue("group")
	if err := topology.CheckName("group", name); err != nil {
		httpd.RefuseError(w, err)
		return "", false
	}
	return name, true
}
