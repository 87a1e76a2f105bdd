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
