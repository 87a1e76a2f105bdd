package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Cluster is what is known of the brokers at one moment. It does not change once made.
type Cluster struct {
	Epoch int64    // grows with each change of Hosts (R4)
	Hosts []string // by ordinal; never empty
}

// Size is N, the number of brokers.
func (c Cluster) Size() int { return len(c.Hosts) }

// RingHosts are the hosts in ring order (R1, R2), as clients of the published protocol index them.
func (c Cluster) RingHosts() []string {
	ring := token.Ring(c.Size())
	hosts := make([]string, len(ring))
	for i, ordinal := range ring {
		hosts[i] = c.Hosts[ordinal]
	}
	return hosts
}

// Discoverer tells which brokers there are and which of them this process is. Methods may be called from any goroutine.
type Discoverer interface {
	Self() topology.Ordinal
	Cluster() Cluster
}

// Static is a Discoverer whose answer is fixed at the start.
type Static struct {
	self    topology.Ordinal
	cluster Cluster
}

// NewStatic makes a Static for the broker self of hosts, given in ordinal order. Errors wrap topology.ErrInvalid: the list
// is empty or too long, repeats a host, names one with a port or one that cannot be, or has no entry for self.
func NewStatic(self topology.Ordinal, hosts []string) (*Static, error) {
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%w brokers: the list is empty; it names each host in ordinal order", topology.ErrInvalid)
	}
	if len(hosts) > token.MaxSize {
		return nil, fmt.Errorf("%w brokers: the list has %d hosts; allowed are 1 to %d", topology.ErrInvalid, len(hosts), token.MaxSize)
	}
	if self < 0 || int(self) >= len(hosts) {
		return nil, fmt.Errorf("%w ordinal: %d; the list of brokers has 0 to %d", topology.ErrInvalid, self, len(hosts)-1)
	}
	seen := map[string]int{}
	for i, h := range hosts {
		if err := checkHost(h); err != nil {
			return nil, fmt.Errorf("%w brokers: entry %d: %w", topology.ErrInvalid, i, err)
		}
		if first, ok := seen[h]; ok {
			return nil, fmt.Errorf("%w brokers: %s is both entry %d and entry %d", topology.ErrInvalid, h, first, i)
		}
		seen[h] = i
	}
	return &Static{self: self, cluster: Cluster{Epoch: 1, Hosts: append([]string(nil), hosts...)}}, nil
}

// checkHost refuses what is neither a host name nor an address.
func checkHost(h string) error {
	if _, err := netip.ParseAddr(h); err == nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(h); err == nil {
		return fmt.Errorf("%q has a port; ports are settings of their own, the same on every broker", h)
	}
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	if h == "" || len(h) > 253 || strings.Trim(h, allowed) != "" {
		return fmt.Errorf("%q is neither a host name nor an address", h)
	}
	return nil
}

// Self is the ordinal of this broker.
func (s *Static) Self() topology.Ordinal { return s.self }

// Cluster is the fixed list.
func (s *Static) Cluster() Cluster { return s.cluster }

// BindHost is the host that a broker with this entry of the list binds to: the entry itself when it is an address, else
// all interfaces (""): a name may resolve to an address that this machine does not have, as behind a Service.
func BindHost(entry string) string {
	if net.ParseIP(entry) == nil {
		return ""
	}
	return entry
}

// Join is host:port, also for IPv6 hosts.
func Join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
