package conf

import (
	"fmt"
	"strings"
)

const docsHead = `# Configuration

<!-- Written by the test of internal/conf: go test ./internal/conf -update -->

Every setting is a flag of ` + "`broker serve`" + ` and an environment variable. A flag that is given counts, else the variable when it
is set and not empty, else the default. A wrong value stops the start with one line that names the setting, the value,
where it came from and what is allowed:

    invalid setting flush = "sometimes" (SKEIN_FLUSH); allowed: always or interval

The variable is ` + "`SKEIN_`" + ` and the flag in capitals, with ` + "`_`" + ` for ` + "`-`" + `: ` + "`--data-dir`" + ` is ` + "`SKEIN_DATA_DIR`" + `. Kubernetes makes variables
of such names for services (a service ` + "`skein-producer`" + ` makes ` + "`SKEIN_PRODUCER_PORT`" + ` a ` + "`tcp://`" + ` URL); these are passed over. At the
start the broker logs the settings that were given, and variables that begin with ` + "`SKEIN_`" + ` and are none.

Durations are written as ` + "`500us`, `50ms`, `24h`, `7d` or `1d12h`" + `, sizes as ` + "`64MiB`, `1GiB`" + ` or ` + "`1048576`" + ` (` + "`KiB`" + ` to ` + "`TiB`" + `, powers of 1024).
`

// Markdown is the documentation of all settings: docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(docsHead)
	last := ""
	for _, row := range table {
		if row.Section != last {
			last = row.Section
			fmt.Fprintf(&b, "\n## %s\n", last)
			if row.Scope == serve {
				b.WriteString("\nOf `broker serve` only.\n")
			}
			b.WriteString("\n| flag and variable | default | allowed | meaning |\n|---|---|---|---|\n")
		}
		def := "none"
		if row.Default != "" {
			def = "`" + row.Default + "`"
		}
		fmt.Fprintf(&b, "| `--%s`<br>`%s` | %s | %s | %s |\n", row.Name, row.Env(), def, row.Allowed, row.Help)
	}
	return b.String()
}
