package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/spf13/cobra"
)

// errNotReady makes cluster status fail when a broker does not do its work, for health checks.
var errNotReady = errors.New("not every broker is ready")

func (a *app) clusterCommand() *cobra.Command {
	return group("cluster", "Look at the cluster", `The cluster as the broker sees it that is asked.`, a.clusterStatusCommand())
}

func (a *app) clusterStatusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Show the brokers, whether they are ready, and the disk",
		Long: `Show the brokers of the cluster, whether each is ready and why not, and the disk
of the broker that is asked. The command fails when the broker does not answer
or one is not ready, so it can serve as a health check.`,
		Example: `  broker cluster status
  broker cluster status --json | jq .storage.free`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			cluster, raw, err := client.Cluster(ctx)
			if err != nil {
				return explain(err, "cluster")
			}
			if asJSON {
				err = a.printJSON(raw)
			} else {
				err = a.describeCluster(cluster)
			}
			if err != nil {
				return err
			}
			for _, b := range cluster.Brokers {
				if !b.Ready {
					return errNotReady
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) describeCluster(cluster api.Cluster) error {
	out := bufio.NewWriter(a.Out)
	s := cluster.Storage
	disk := fmt.Sprintf("%s free, %s kept in reserve", formatBytes(s.Free), formatBytes(s.Reserve))
	if s.Full {
		disk += "; FULL: produce is refused until there is room"
	}
	if err := fields(out,
		[2]string{"Cluster", cluster.ID}, [2]string{"Brokers", strconv.Itoa(cluster.Size)}, [2]string{"Epoch", strconv.FormatInt(cluster.Epoch, 10)},
		[2]string{"Data", fmt.Sprintf("%s in %s, flush %s", formatBytes(s.Bytes), s.Dir, s.Flush)}, [2]string{"Disk", disk},
	); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t := newTable(">ORDINAL", "HOST", "READY", "VERSION", ">UP", "PORTS")
	for _, b := range cluster.Brokers {
		ready := "yes"
		if !b.Ready {
			ready = "no: " + strings.Join(b.Reasons, "; ")
		}
		up := "-"
		if started, err := time.Parse(time.RFC3339Nano, b.Started); err == nil {
			up = a.ago(started)
		}
		t.row(strconv.Itoa(b.Ordinal), b.Host, ready, b.Version, up, portsText(b.Ports))
	}
	if err := t.write(out); err != nil {
		return err
	}
	return out.Flush()
}

// portsText lists ports by number.
func portsText(ports map[string]int) string {
	names := slices.SortedFunc(maps.Keys(ports), func(a, b string) int { return cmp.Or(ports[a]-ports[b], strings.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, ports[name])
	}
	return strings.Join(names, ", ")
}
