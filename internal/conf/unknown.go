package conf

import (
	"regexp"
	"slices"
	"strings"
)

// links are the variables that Kubernetes makes for a service with a name like skein or skein-producer.
var links = regexp.MustCompile(`^SKEIN_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// UnknownVariables are the names in environ, given as os.Environ does, that begin with SKEIN_ and are no setting, nor among
// others: most likely misspelt. What Kubernetes makes for services is left out.
func UnknownVariables(environ []string, others ...string) []string {
	known := slices.Clone(others)
	for _, row := range table {
		known = append(known, row.Env())
	}
	var unknown []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "SKEIN_") && !slices.Contains(known, name) && !links.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
