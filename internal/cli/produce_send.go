package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/topology"
)

// lastWords bounds the sending of what was read before a signal.
const lastWords = 10 * time.Second

// idempotencyKeys gives the key of each batch, from 0: the user's own, which the first batch has as it is, or fresh
// ones.
func idempotencyKeys(own string) (func(int) string, error) {
	prefix := own
	if own == "" {
		prefix = "cli-" + rand.Text()
	} else if err := topology.CheckName("idempotency key", own); err != nil {
		return nil, err
	} else if len(own) > 240 {
		return nil, fmt.Errorf("--idempotency-key has %d bytes; allowed are 1 to 240", len(own))
	}
	return func(batch int) string {
		if batch == 0 {
			return prefix
		}
		return fmt.Sprintf("%s.%d", prefix, batch)
	}, nil
}

// send stores a batch, trying again for as long as that makes sense and flags.retryFor allows.
func (p *producer) send(ctx context.Context, b *batch) error {
	if b.count == 0 {
		return nil
	}
	// A signal stops the reading; a batch on its way is finished.
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	defer stop()

	request := b.request(p.keys(p.batches))
	p.batches++
	result, err := p.retry(sendCtx, request)
	if err != nil {
		return p.sendError(b, err)
	}
	p.stored += int64(b.count)
	if result.Duplicate {
		p.duplicates += int64(b.count)
	}
	return p.printReceipts(result.Receipts)
}

func (p *producer) retry(ctx context.Context, request api.ProduceRequest) (api.ProduceResult, error) {
	deadline := p.Now().Add(p.flags.retryFor)
	pause := backoff{first: 100 * time.Millisecond, most: 5 * time.Second}
	for {
		result, err := p.client.Produce(ctx, request)
		outcome := api.OutcomeOf(err)
		if outcome == api.Stored || outcome == api.Refused || ctx.Err() != nil {
			return result, err
		}
		wait := pause.next(retryAfter(err))
		if p.Now().Add(wait).After(deadline) {
			if p.flags.retryFor > 0 {
				err = fmt.Errorf("gave up after %s: %w", formatDuration(p.flags.retryFor), err)
			}
			return result, err
		}
		if api.StatusOf(err) == http.StatusMisdirectedRequest {
			p.client.Rotate()
		}
		p.note("%s; trying again in %s", firstLine(err), wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return result, err
		}
	}
}

func retryAfter(err error) time.Duration {
	var refused *api.Error
	if errors.As(err, &refused) {
		return refused.RetryAfter
	}
	return 0
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// sendError says which input is concerned, and for certain whether it may be stored.
func (p *producer) sendError(b *batch, err error) error {
	where := b.first.where()
	if b.count > 1 {
		where = fmt.Sprintf("%s to %s", where, b.last.where())
		if b.first.file == b.last.file {
			where = fmt.Sprintf("%s lines %d to %d", b.first.file, b.first.number, b.last.number)
		}
	}
	state := "not stored"
	if api.OutcomeOf(err) == api.Unknown {
		state = "perhaps stored"
		if p.flags.idempotencyKey != "" {
			state += " (run again with the same --idempotency-key to be sure)"
		}
	} else if b.count > 1 && api.OutcomeOf(err) == api.Refused {
		// All or nothing per partition (docs/http-api.md): others may have been stored.
		state = "not all stored"
	}
	return fmt.Errorf("%s: %s: %w", where, state, err)
}

func (p *producer) printReceipts(receipts []api.Receipt) error {
	if len(receipts) == 0 {
		return nil
	}
	out := bufio.NewWriter(p.Out)
	for _, r := range receipts {
		if p.flags.json {
			line, err := json.Marshal(r)
			if err != nil {
				return fmt.Errorf("encode a receipt: %w", err)
			}
			out.Write(append(line, '\n'))
			continue
		}
		fmt.Fprintf(out, "%s partition %d offset %d\n", r.Topic, r.Partition, r.Offset)
	}
	return out.Flush()
}
