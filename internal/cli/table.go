package cli

import (
	"io"
	"strings"
	"unicode/utf8"
)

// table writes aligned columns: the widest cell rules, two spaces between. A head that begins with > aligns its column
// to the right.
type table struct {
	heads []string
	right []bool
	rows  [][]string
}

func newTable(heads ...string) *table {
	t := &table{right: make([]bool, len(heads))}
	for i, head := range heads {
		head, t.right[i] = strings.CutPrefix(head, ">")
		t.heads = append(t.heads, head)
	}
	return t
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) error {
	widths := make([]int, len(t.heads))
	lines := append([][]string{t.heads}, t.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				text.WriteString(pad + cell)
			} else {
				text.WriteString(cell + pad)
			}
			text.WriteString("  ")
		}
		out.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// fields writes "name  value" lines with the values aligned.
func fields(w io.Writer, pairs ...[2]string) error {
	width := 0
	for _, p := range pairs {
		width = max(width, utf8.RuneCountInString(p[0]))
	}
	var out strings.Builder
	for _, p := range pairs {
		line := p[0] + strings.Repeat(" ", width-utf8.RuneCountInString(p[0])) + "  " + p[1]
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}
