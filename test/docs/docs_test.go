package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// block is a fenced block that is marked as tested.
type block struct {
	line     int // of the page where it begins
	commands string
	prints   string
}

// tested finds the marked blocks of a page. A mark without a block of sh after it is an error.
func tested(page string) (blocks []block, err error) {
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		mark, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), "<!-- tested")
		if !ok {
			continue
		}
		b := block{line: i + 2, prints: strings.TrimSpace(strings.TrimPrefix(strings.TrimSuffix(mark, "-->"), ":"))}
		if i++; i == len(lines) || lines[i] != "```sh" {
			return nil, fmt.Errorf("line %d: a mark without a block of sh after it", i)
		}
		for i++; lines[i] != "```"; i++ {
			b.commands += lines[i] + "\n"
			if i+1 == len(lines) {
				return nil, fmt.Errorf("line %d: the block does not end", b.line)
			}
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// prelude makes a failing command fail the block, curl included. What the pages say to 127.0.0.1 goes to the broker of
// the test, which has an address of its own.
const prelude = `set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body --max-time 30 "$@"; }
`

func run(t *testing.T, dir, host, commands string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", prelude+strings.ReplaceAll(commands, "127.0.0.1", host))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SKEIN_BROKER="+host+":9250")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestCommandsOfThePages(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(harness.Root(), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range append(pages, filepath.Join(harness.Root(), "README.md")) {
		name := filepath.Base(path)
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := tested(string(page))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(blocks) == 0 {
			continue
		}
		found += len(blocks)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := harness.Start(t, harness.Options{})
			dir := folderWithBroker(t)
			for _, block := range blocks {
				out, err := run(t, dir, b.Host, block.commands)
				if err != nil {
					t.Fatalf("%s:%d: %v\n%s\nprinted\n%s", name, block.line, err, block.commands, out)
				}
				if !strings.Contains(out, block.prints) {
					t.Errorf("%s:%d: %q is not in what\n%s\nprints:\n%s", name, block.line, block.prints, block.commands, out)
				}
			}
		})
	}
	if found < 10 {
		t.Errorf("only %d blocks are marked as tested", found)
	}
}

// folderWithBroker is a temporary folder with the broker in it.
func folderWithBroker(t *testing.T) string {
	t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "broker")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCurlLinesOfDev runs the three lines that `broker dev` prints.
func TestCurlLinesOfDev(t *testing.T) {
	host := harness.FreeHost(t)
	b := harness.Start(t, harness.Options{Args: []string{"dev"}, Host: host, Env: map[string]string{"SKEIN_BIND": host}})
	var curl []string
	harness.Eventually(t, 5*time.Second, "three curl lines are printed", func() bool {
		curl = nil
		for line := range strings.Lines(b.Stdout()) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "curl ") {
				curl = append(curl, line)
			}
		}
		return len(curl) == 3
	})
	out, err := run(t, t.TempDir(), host, strings.Join(curl, "\n"))
	if err != nil {
		t.Fatalf("%s\n%v\n%s", curl, err, out)
	}
	if !strings.Contains(out, `"values":[{"productId":123,"units":-5}]`) {
		t.Errorf("%s\nprint\n%s", curl, out)
	}
}

// TestLinksBetweenPages: each relative link of a page leads to a file that is there.
func TestLinksBetweenPages(t *testing.T) {
	root := harness.Root()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(path), m[1], err)
			}
		}
	}
}
