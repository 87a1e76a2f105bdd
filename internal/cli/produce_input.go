package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// inputLine is one unit of input with where it stands, for messages. Data does not alias the reader.
type inputLine struct {
	data   []byte
	file   string // "stdin" or the name
	number int    // from 1; 0 a whole file
}

func (l inputLine) where() string {
	if l.number == 0 {
		return l.file
	}
	return fmt.Sprintf("%s line %d", l.file, l.number)
}

// input reads files one after the other.
type input struct {
	open  func(name string) (io.ReadCloser, error)
	files []string
	whole bool
	limit int // bytes of a line or whole file
}

func newInput(open func(string) (io.ReadCloser, error), files []string, whole bool, limit int) *input {
	return &input{open: open, files: files, whole: whole, limit: limit}
}

// Bounds of the lines that are handed on together.
const (
	inputRun      = 256
	inputRunBytes = 64 << 10
)

// read sends all lines, in runs of what could be read without waiting, and closes the channel. It stops early when ctx
// ends.
func (in *input) read(ctx context.Context, lines chan<- []inputLine) error {
	defer close(lines)
	for _, name := range in.files {
		if err := in.readFile(ctx, name, lines); err != nil {
			return err
		}
	}
	return nil
}

func (in *input) readFile(ctx context.Context, name string, lines chan<- []inputLine) error {
	f, err := in.open(name)
	if err != nil {
		return fmt.Errorf("read the input: %w", err)
	}
	defer f.Close()
	if name == "-" {
		name = "stdin"
	}
	if in.whole {
		data, err := io.ReadAll(io.LimitReader(f, int64(in.limit)+1))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if len(data) > in.limit {
			return fmt.Errorf("%s is larger than %s, the most that one record may have", name, formatBytes(int64(in.limit)))
		}
		emit(ctx, lines, []inputLine{{data: data, file: name}})
		return nil
	}
	return in.readLines(ctx, f, name, lines)
}

func (in *input) readLines(ctx context.Context, f io.Reader, name string, lines chan<- []inputLine) error {
	r := bufio.NewReaderSize(f, 256<<10)
	var run []inputLine
	size := 0
	for number := 1; ; number++ {
		data, err := in.readLine(r)
		if err == nil {
			run = append(run, inputLine{data: data, file: name, number: number})
			size += len(data)
		}
		if err != nil || len(run) >= inputRun || size >= inputRunBytes || r.Buffered() == 0 {
			if len(run) > 0 && !emit(ctx, lines, run) {
				return nil
			}
			run, size = nil, 0
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s line %d: %w", name, number, err)
		}
	}
}

// emit hands run on; false when ctx ended first.
func emit(ctx context.Context, lines chan<- []inputLine, run []inputLine) bool {
	select {
	case lines <- run:
		return true
	case <-ctx.Done():
		return false
	}
}

// readLine reads up to a newline, which it drops, with a carriage return before it. The last line may lack it; io.EOF
// comes when there is nothing left.
func (in *input) readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > in.limit+2 {
			return nil, errTooLong(in.limit)
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && len(line) > 0, err == nil:
			line = bytes.TrimSuffix(line, []byte("\n"))
			line = bytes.TrimSuffix(line, []byte("\r"))
			if len(line) > in.limit {
				return nil, errTooLong(in.limit)
			}
			return line, nil
		}
		return nil, err
	}
}

func errTooLong(limit int) error {
	return fmt.Errorf("it is longer than %s, the most that one record may have", formatBytes(int64(limit)))
}
