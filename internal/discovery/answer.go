package discovery

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
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

// Answer is what clients are told of c.
func (c Cluster) Answer(ports Ports) Answer {
	a := Answer{Length: c.Size(), Names: c.RingHosts(), Ports: ports}
	a.BaseName, a.ServiceName = c.pattern()
	return a
}

// pattern is what the hosts have in common around their ordinals, <base><ordinal>.<service>; "", "" when they are not
// named so.
func (c Cluster) pattern() (base, service string) {
	for ordinal, host := range c.Hosts {
		label, rest, dotted := strings.Cut(host, ".")
		b, numbered := strings.CutSuffix(label, strconv.Itoa(ordinal))
		if net.ParseIP(host) != nil || !dotted || !numbered || rest == "" || ordinal > 0 && (b != base || rest != service) {
			return "", ""
		}
		base, service = b, rest
	}
	return base, service
}

// Handler answers GET /v1/brokers from what d knows at that moment.
func Handler(d Discoverer, ports Ports) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.Marshal(d.Cluster().Answer(ports))
		if err != nil {
			panic("discovery: strings and numbers do not marshal: " + err.Error())
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(b)+1))
		_, _ = w.Write(append(b, '\n')) // a client that is gone asks again
	})
}
