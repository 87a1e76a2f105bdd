package admin

import (
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// maxGenerations bounds how much of the history is shown: each start of a broker adds to it.
const maxGenerations = 100

// clusterView is what this broker knows of the cluster.
type clusterView struct {
	ClusterID   uuid.UUID             `json:"clusterId"`
	Size        int                   `json:"size"`
	Epoch       int64                 `json:"epoch"`
	Brokers     []brokerView          `json:"brokers"`     // by ordinal
	Generations []topology.Generation `json:"generations"` // the latest ones, oldest first
	Storage     storageView           `json:"storage"`     // of the broker that answers
}

// brokerView is one broker. What this one does not know of another is left out.
type brokerView struct {
	Ordinal topology.Ordinal `json:"ordinal"`
	Host    string           `json:"host"`
	Ready   bool             `json:"ready"`
	Reasons []string         `json:"reasons"`
	Version string           `json:"version,omitempty"`
	Disk    *uuid.UUID       `json:"disk,omitempty"`
	Run     *uuid.UUID       `json:"run,omitempty"`
	Started time.Time        `json:"started,omitzero"`
	Ports   *Ports           `json:"ports,omitempty"`
}

type storageView struct {
	Dir     string `json:"dir"`
	Bytes   int64  `json:"bytes"`   // of all segments
	Total   int64  `json:"total"`   // of the file system
	Free    int64  `json:"free"`    // of it
	Reserve int64  `json:"reserve"` // kept back from produce
	Full    bool   `json:"full"`    // produce is refused
	Flush   string `json:"flush"`
}

func (a *Admin) cluster(w http.ResponseWriter, _ *http.Request) {
	members := a.cfg.Members.Cluster()
	generations := a.cfg.Ownership.Generations()
	generations = generations[max(0, len(generations)-maxGenerations):]
	if generations == nil {
		generations = []topology.Generation{}
	}
	httpd.WriteJSON(w, http.StatusOK, clusterView{
		ClusterID: a.cfg.Ownership.ClusterID(), Size: members.Size(), Epoch: members.Epoch,
		Brokers: a.brokers(members.Hosts), Generations: generations, Storage: a.storage(),
	})
}

func (a *Admin) brokers(hosts []string) []brokerView {
	list := make([]brokerView, len(hosts))
	for i, host := range hosts {
		list[i] = brokerView{Ordinal: topology.Ordinal(i), Host: host, Reasons: []string{"nothing was heard of it"}}
	}
	if self := int(a.cfg.Members.Self()); self < len(list) {
		b := &a.cfg.Broker
		reasons := a.reasons()
		list[self] = brokerView{
			Ordinal: topology.Ordinal(self), Host: hosts[self], Ready: len(reasons) == 0, Reasons: reasons,
			Version: b.Version, Disk: &b.Disk, Run: &b.Run, Started: utc(b.Started), Ports: &b.Ports,
		}
	}
	return list
}

func (a *Admin) storage() storageView {
	room := a.cfg.Logs.Room()
	v := storageView{
		Dir: a.cfg.Broker.Dir, Total: room.Total, Free: room.Free, Reserve: room.Reserve, Full: room.Full, Flush: a.cfg.Broker.Flush,
	}
	if a.cfg.StoredBytes != nil {
		v.Bytes = a.cfg.StoredBytes()
	}
	return v
}

func (a *Admin) openAPI(w http.ResponseWriter, _ *http.Request) {
	httpd.WriteText(w, http.StatusOK, "application/yaml", string(a.cfg.OpenAPI))
}
