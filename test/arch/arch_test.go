package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/skeinmq/skein"

// arrows are the imports between packages of this module, without those of tests. A new arrow belongs here and in
// ARCHITECTURE.md, in the commit that adds it.
var arrows = map[string]string{
	"api":                  "",
	"cmd/broker":           "api internal/admin internal/cli internal/conf internal/consuming internal/data internal/discovery internal/httpd internal/localdb internal/ownership internal/producing internal/topics internal/topology",
	"internal/admin":       "internal/data internal/discovery internal/httpd internal/token internal/topology",
	"internal/cli":         "internal/cli/api internal/cli/bench internal/topology",
	"internal/cli/api":     "internal/topology",
	"internal/cli/bench":   "internal/cli/api",
	"internal/cli/clitest": "internal/token internal/topology",
	"internal/conf":        "internal/token internal/topology",
	"internal/consuming":   "internal/data internal/httpd internal/recordbatch internal/token internal/topology",
	"internal/data":        "internal/recordbatch internal/topology",
	"internal/data/memfs":  "internal/data",
	"internal/discovery":   "internal/token internal/topology",
	"internal/httpd":       "internal/topology",
	"internal/localdb":     "internal/topology",
	"internal/ownership":   "internal/token internal/topology",
	"internal/producing":   "internal/data internal/httpd internal/recordbatch internal/token internal/topology",
	"internal/recordbatch": "internal/topology",
	"internal/token":       "",
	"internal/topics":      "internal/data internal/recordbatch internal/token internal/topology",
	"internal/topology":    "internal/token",
	"test/arch":            "",
	"test/docs":            "",
	"test/faults":          "",
	"test/harness":         "",
	"test/image":           "",
	"test/wire":            "",
}

// layers gives each package its height. An import goes strictly down, so two packages of one height never import each
// other: siblings meet only in cmd/broker.
var layers = [][]string{
	{"internal/token"},
	{"internal/topology"},
	{"internal/recordbatch", "internal/cli/api"},
	{"api", "internal/conf", "internal/data", "internal/discovery", "internal/httpd", "internal/localdb", "internal/cli/bench"},
	{"internal/admin", "internal/cli", "internal/consuming", "internal/interbroker", "internal/ownership", "internal/producing", "internal/topics"},
	{"cmd/broker"},
}

// twins stand in for the real thing in tests, so only tests import them.
var twins = []string{"internal/cli/clitest", "internal/data/memfs"}

// pkg is what `go list -json` tells of a package.
type pkg struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
	Module       *struct{ Path string }
}

func (p pkg) allImports() []string { return slices.Concat(p.Imports, p.TestImports, p.XTestImports) }

// list asks the go command, with the build tags of all tests so that no file is left out.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Standard,Imports,TestImports,XTestImports,Module", "-tags=faults"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", args, err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// within names the imports that lie in this module, relative to it, sorted.
func within(imports []string) []string {
	var in []string
	for _, i := range imports {
		if rel, ok := strings.CutPrefix(i, module+"/"); ok {
			in = append(in, rel)
		}
	}
	slices.Sort(in)
	return slices.Compact(in)
}

func TestArrowsAreThoseOfTheTable(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		seen[name] = true
		want, known := arrows[name]
		if got := strings.Join(within(p.Imports), " "); !known || got != want {
			t.Errorf("the table and the code differ; the code says\n\t%q: %q,\nthe table says\n\t%q: %q,", name, got, name, want)
		}
	}
	for name := range arrows {
		if !seen[name] {
			t.Errorf("%s is in the table and not in the code", name)
		}
	}
}

func TestArrowsOnlyGoDown(t *testing.T) {
	height := map[string]int{}
	for h, names := range layers {
		for _, name := range names {
			height[name] = h
		}
	}
	for _, p := range list(t, "./...") {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasPrefix(from, "test/") || slices.Contains(twins, from) {
			continue
		}
		h, ok := height[from]
		if !ok {
			t.Errorf("%s has no height in the table of layers", from)
			continue
		}
		for _, to := range within(p.Imports) {
			if th, ok := height[to]; !ok || th >= h {
				t.Errorf("%s imports %s, which is not below it", from, to)
			}
		}
	}
}

func TestNothingImportsTest(t *testing.T) {
	for _, p := range list(t, "./...") {
		if strings.HasPrefix(p.ImportPath, module+"/test/") {
			continue // tests of several packages may share the harness
		}
		for _, to := range within(p.allImports()) {
			if strings.HasPrefix(to, "test/") {
				t.Errorf("%s imports %s", p.ImportPath, to)
			}
		}
	}
}

// TestTokenNeedsOnlyTheStandardLibrary: the bottom of the picture stays light, so tools of others can use it.
func TestTokenNeedsOnlyTheStandardLibrary(t *testing.T) {
	for _, p := range list(t, "-deps", "./internal/token") {
		if !p.Standard && !strings.HasPrefix(p.ImportPath, module) {
			t.Errorf("internal/token needs %s", p.ImportPath)
		}
	}
}

// TestTestOnlyModulesStayOutOfTheBroker: what docs/dependencies.md lists for tests is not linked in.
func TestTestOnlyModulesStayOutOfTheBroker(t *testing.T) {
	inBroker, inTests := documentedModules(t)
	for _, p := range list(t, "-deps", "./cmd/broker") {
		if p.Module != nil && slices.Contains(inTests, p.Module.Path) && !slices.Contains(inBroker, p.Module.Path) {
			t.Errorf("the broker links %s of %s, which docs/dependencies.md lists for tests only", p.ImportPath, p.Module.Path)
		}
	}
}

func TestEachDirectDependencyIsDocumented(t *testing.T) {
	inBroker, inTests := documentedModules(t)
	documented := slices.Concat(inBroker, inTests)

	moduleOf := map[string]string{}
	for _, p := range list(t, "-deps", "-test", "./...") {
		if p.Module != nil {
			moduleOf[p.ImportPath] = p.Module.Path
		}
	}
	direct := map[string]bool{"honnef.co/go/tools": true} // a tool, which nothing imports
	for _, p := range list(t, "./...") {
		for _, i := range p.allImports() {
			if m := moduleOf[i]; m != "" && m != module {
				direct[m] = true
			}
		}
	}
	for m := range direct {
		if !slices.Contains(documented, m) {
			t.Errorf("%s is a direct dependency without a line in docs/dependencies.md", m)
		}
	}
	for _, m := range documented {
		if !direct[m] {
			t.Errorf("docs/dependencies.md has a line for %s, which nothing imports", m)
		}
	}
}

// documentedModules reads the two tables of docs/dependencies.md.
func documentedModules(t *testing.T) (inBroker, inTests []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	broker, tests, ok := strings.Cut(string(page), "## In tests and tools only")
	if !ok {
		t.Fatal("docs/dependencies.md has no section for tests")
	}
	rows := func(part string) (modules []string) {
		for line := range strings.Lines(part) {
			if cell, ok := strings.CutPrefix(line, "| `"); ok {
				name, _, _ := strings.Cut(cell, "`")
				modules = append(modules, name)
			}
		}
		return modules
	}
	return rows(broker), rows(tests)
}
