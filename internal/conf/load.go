package conf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/pflag"
)

// RegisterFlags adds a flag for each setting but those named in except. Load reads them.
func RegisterFlags(flags *pflag.FlagSet, except ...string) {
	for _, row := range table {
		if slices.Contains(except, row.Name) {
			continue
		}
		usage := strings.ReplaceAll(row.Help, "`", "") + " Allowed: " + row.Allowed + ". [" + row.Env() + "]"
		flag := flags.VarPF(&flagValue{text: row.Default, kind: row.Kind}, row.Name, "", usage)
		if row.Kind == Switch {
			flag.NoOptDefVal = "true"
		}
	}
}

// flagValue is the text of a flag. Load checks it, so that a wrong flag is refused as a wrong variable is.
type flagValue struct {
	text string
	kind Kind
}

func (v *flagValue) String() string     { return v.text }
func (v *flagValue) Set(s string) error { v.text = s; return nil }
func (v *flagValue) Type() string       { return string(v.kind) }

// Load reads the settings: a flag that was given counts, else the environment variable when it is set and not empty, else
// the default. flags may be nil or lack some of them; env is os.LookupEnv, or what stands for it. An error wraps
// topology.ErrInvalid and is one line: the setting, the value, where it came from and what is allowed.
func Load(flags *pflag.FlagSet, env func(name string) (string, bool)) (Settings, error) {
	return load(flags, env, system{hostname: os.Hostname, memoryLimit: MemoryLimit})
}

// system is what else the settings depend on.
type system struct {
	hostname    func() (string, error)
	memoryLimit func() int64
}

func load(flags *pflag.FlagSet, env func(string) (string, bool), sys system) (Settings, error) {
	var s Settings
	given := map[string]value{}
	for _, row := range table {
		v := find(row, flags, env)
		given[row.Name] = v
		if v.text == "" && v.source == "" {
			continue // no default
		}
		if err := row.set(&s, v.text); err != nil {
			return Settings{}, refuse(row.Name, v, "allowed: "+row.Allowed+row.Kind.form())
		}
		if v.source != "" {
			s.changed = append(s.changed, row.Name+"="+v.text)
		}
	}
	if err := s.resolve(given, sys); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// value is the text of a setting and where it came from: "" is the default.
type value struct{ text, source string }

func find(row Setting, flags *pflag.FlagSet, env func(string) (string, bool)) value {
	if flags != nil {
		if f := flags.Lookup(row.Name); f != nil && f.Changed {
			return value{f.Value.String(), "--" + row.Name}
		}
	}
	if env != nil {
		if text, ok := env(row.Env()); ok && text != "" && !serviceLink(text) {
			return value{text, row.Env()}
		}
	}
	return value{text: row.Default}
}

// serviceLink says whether text is what Kubernetes puts into the environment for a service: one with the name
// skein-producer makes SKEIN_PRODUCER_PORT a URL.
func serviceLink(text string) bool {
	return strings.HasPrefix(text, "tcp://") || strings.HasPrefix(text, "udp://")
}

func refuse(name string, v value, why string) error {
	if v.source == "" {
		v.source = "default"
	}
	return fmt.Errorf("%w setting %s = %q (%s); %s", topology.ErrInvalid, name, v.text, v.source, why)
}

// resolve finds what depends on other settings or on the system, and refuses what does not go together.
func (s *Settings) resolve(given map[string]value, sys system) error {
	for _, step := range []func(map[string]value, system) error{
		s.resolveHosts, s.resolveOrdinal, s.resolveBind, s.resolveSizes, s.checkPorts,
	} {
		if err := step(given, sys); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) resolveHosts(given map[string]value, sys system) error {
	if len(s.Brokers) > token.MaxSize {
		return refuse("brokers", given["brokers"], fmt.Sprintf("it has %d hosts; allowed: up to %d", len(s.Brokers), token.MaxSize))
	}
	for i, host := range s.Brokers {
		if err := checkHost(host); err != nil {
			return refuse("brokers", given["brokers"], fmt.Sprintf("entry %d %s", i, err))
		}
		if first := slices.Index(s.Brokers, host); first < i {
			return refuse("brokers", given["brokers"], fmt.Sprintf("%s is both entry %d and entry %d", host, first, i))
		}
	}
	if s.Bind != "" {
		if _, err := netip.ParseAddr(s.Bind); err != nil {
			return refuse("bind", given["bind"], "allowed: an address, as 127.0.0.1 or ::1")
		}
	}
	if s.Advertise != "" {
		if err := checkHost(s.Advertise); err != nil {
			return refuse("advertise", given["advertise"], "it "+err.Error())
		}
	}
	s.Hosts = s.Brokers
	if len(s.Brokers) == 0 {
		s.Hosts = []string{s.alone(sys)}
	}
	return nil
}

// alone is the host that clients are told of a broker without others.
func (s *Settings) alone(sys system) string {
	if s.Advertise != "" {
		return s.Advertise
	}
	if addr, err := netip.ParseAddr(s.Bind); err == nil && !addr.IsUnspecified() {
		return s.Bind
	}
	if host, err := sys.hostname(); err == nil && checkHost(host) == nil {
		return host
	}
	return "127.0.0.1"
}

// checkHost refuses what is neither a host name nor an address. The error goes on from "entry 2".
func checkHost(h string) error {
	if _, err := netip.ParseAddr(h); err == nil {
		return nil
	}
	if _, _, err := net.SplitHostPort(h); err == nil {
		return errors.New("has a port; ports are settings of their own, the same on every broker")
	}
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	if h == "" || len(h) > 253 || strings.Trim(h, allowed) != "" {
		return errors.New("is neither a host name nor an address")
	}
	return nil
}

func (s *Settings) resolveOrdinal(given map[string]value, sys system) error {
	v := given["ordinal"]
	if v.source == "" && len(s.Hosts) > 1 {
		host, err := sys.hostname()
		if err != nil {
			return refuse("ordinal", v, "it is not set, and this host has no name: "+err.Error())
		}
		n, ok := trailingNumber(host)
		if !ok {
			return refuse("ordinal", v, fmt.Sprintf("it is not set, and the host name %q does not end in -N; allowed: 0 to %d",
				host, len(s.Hosts)-1))
		}
		v = value{strconv.Itoa(n), "host name " + host}
		s.Ordinal = topology.Ordinal(n)
	}
	if int(s.Ordinal) >= len(s.Hosts) {
		return refuse("ordinal", v, fmt.Sprintf("brokers has %d; allowed: 0 to %d", len(s.Hosts), len(s.Hosts)-1))
	}
	return nil
}

// trailingNumber is N of a host name that ends in -N, or whose first label does.
func trailingNumber(host string) (int, bool) {
	label, _, _ := strings.Cut(host, ".")
	at := strings.LastIndexByte(label, '-')
	if at < 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(label[at+1:], 10, 31)
	return int(n), err == nil
}

func (s *Settings) resolveBind(map[string]value, system) error {
	if s.Bind != "" || len(s.Brokers) == 0 {
		return nil
	}
	if own := s.Brokers[s.Ordinal]; own != "" {
		if _, err := netip.ParseAddr(own); err == nil {
			s.Bind = own
		}
	}
	return nil
}

// Bounds of the memory budget that is found by itself.
const (
	mostBudget  = 64 << 20
	budgetShare = 4 // one part in so many of the memory limit
)

func (s *Settings) resolveSizes(given map[string]value, sys system) error {
	if s.MaxRecordBytes > s.MaxRequestBytes {
		return refuse("max-record-bytes", given["max-record-bytes"],
			"it is above max-request-bytes, which is "+FormatBytes(int64(s.MaxRequestBytes)))
	}
	if s.MemoryBudget == 0 {
		s.MemoryBudget = mostBudget
		if limit := sys.memoryLimit(); limit > 0 {
			s.MemoryBudget = min(mostBudget, limit/budgetShare)
		}
		s.MemoryBudget = max(s.MemoryBudget, int64(s.MaxRequestBytes))
	}
	if s.MemoryBudget < int64(s.MaxRequestBytes) {
		return refuse("memory-budget", given["memory-budget"],
			"it is below max-request-bytes, which is "+FormatBytes(int64(s.MaxRequestBytes)))
	}
	if s.DefaultPartitions == 0 {
		s.DefaultPartitions = topology.DefaultPartitions(len(s.Hosts))
	}
	return nil
}

// checkPorts refuses two settings with one port.
func (s *Settings) checkPorts(given map[string]value, _ system) error {
	taken := map[int]string{}
	for _, p := range []struct {
		name string
		port int
	}{
		{"client-port", s.ClientPort},
		{"producer-port", s.ProducerPort},
		{"consumer-port", s.ConsumerPort},
		{"metrics-port", s.MetricsPort},
		{"producer-binary-port", s.ProducerBinaryPort},
		{"gossip-port", s.GossipPort},
		{"gossip-data-port", s.GossipDataPort},
	} {
		if other, ok := taken[p.port]; ok && p.port != 0 {
			return refuse(p.name, given[p.name], other+" has that port too; allowed: a port of its own")
		}
		taken[p.port] = p.name
	}
	return nil
}
