package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// sections are the parts of docs/cli.md by their headings.
func sections(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	heading := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
		out[heading] += line
	}
	return out
}

// Every command has a section that begins with how it is called, and in it every flag of its own; and no section names a
// flag that its command does not have.
func TestEveryCommandAndFlagIsDocumented(t *testing.T) {
	docs := sections(t)
	common := docs["What all commands share"]
	mentioned := regexp.MustCompile("`?(--[a-z][a-z-]*)")
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasSubCommands() {
			return
		}
		section, ok := docs["`"+strings.TrimSuffix(c.UseLine(), " [flags]")+"`"]
		if !ok {
			t.Errorf("docs/cli.md has no heading `%s`", c.UseLine())
			return
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			where := section
			if c.InheritedFlags().Lookup(f.Name) != nil || c.PersistentFlags().Lookup(f.Name) != nil || f.Name == "help" {
				where = common
			}
			if !strings.Contains(where, "`--"+f.Name) {
				t.Errorf("docs/cli.md does not name --%s of %s", f.Name, c.CommandPath())
			}
			if f.Shorthand != "" && !strings.Contains(where, "`-"+f.Shorthand+"`") {
				t.Errorf("docs/cli.md does not name -%s of %s", f.Shorthand, c.CommandPath())
			}
		})
		for line := range strings.Lines(section) {
			if !strings.HasPrefix(line, "| `--") {
				continue
			}
			cell, _, _ := strings.Cut(line[1:], "|")
			for _, m := range mentioned.FindAllStringSubmatch(cell, -1) {
				if c.Flag(strings.TrimPrefix(m[1], "--")) == nil {
					t.Errorf("docs/cli.md names %s, which %s does not have", m[1], c.CommandPath())
				}
			}
		}
	}
	for _, c := range root(Options{}).Commands() {
		walk(c)
	}
}

// Every command says what it does, and those that do something show an example.
func TestEveryCommandHasHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || (!c.HasSubCommands() && c.Example == "") {
			t.Errorf("%s has no short help or no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Long + "\n" + c.Example + "\n" + c.Flags().FlagUsages()) {
			if len(line) > 200 {
				t.Errorf("help of %s has a line of %d characters: %.60s...", c.CommandPath(), len(line), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	for _, c := range root(Options{}).Commands() {
		walk(c)
	}
}
