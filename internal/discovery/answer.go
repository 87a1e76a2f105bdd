package discovery

import (
	"net/http"

	"github.com/skeinmq/skein/internal/httpd"
)

// Ports are what clients are told. They are the same on every broker.
type Ports struct {
	Producer       int `json:"producerPort"`
	ProducerBinary int `json:"producerBinaryPort"`
	Consumer       int `json:"consumerPort"`
}

// Answer is the body of GET /v1/brokers (docs/wire.md 2.1). BaseName and ServiceName are set where hosts are made of
// them, as on Kubernetes; clients prefer Names, which always has Length entries in ring order.
type Answer struct {
	Length      int      `json:"length"`
	Names       []string `json:"names"`
	BaseName    string   `json:"baseName,omitempty"`
	ServiceName string   `json:"serviceName,omitempty"`
	Ports
}

// Handler answers GET /v1/brokers from what d knows at that moment.
func Handler(d Discoverer, ports Ports) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := d.Cluster()
		httpd.WriteJSON(w, http.StatusOK, Answer{Length: c.Size(), Names: c.RingHosts(), Ports: ports})
	})
}
