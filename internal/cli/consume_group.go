package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/topology"
)

// How long a poll waits for records: with --follow, and where an empty answer ends the run.
const (
	followWait = 20 * time.Second
	endWait    = 500 * time.Millisecond
)

// leaveTimeout bounds the commit and the goodbye after a signal.
const leaveTimeout = 5 * time.Second

// reasonUnassigned is the Skein-Reason of a member that has no partitions.
const reasonUnassigned = "unassigned"

// ackNone commits nothing and has open records delivered again.
const ackNone = "none"

// readGroup reads as a member of the group. Each poll acknowledges the answer before it once that is printed, so the
// delivery is at least once (docs/design.md, section 7).
func (r *consumer) readGroup(ctx context.Context) (err error) {
	if err := r.startGroup(ctx); err != nil {
		return err
	}
	if err := r.register(ctx); err != nil {
		return err
	}
	ack := ackNone // the answer that is printed and not committed yet
	defer func() { err = errors.Join(err, r.leave(ctx, ack)) }()
	pause := backoff{first: 200 * time.Millisecond, most: 5 * time.Second}
	for ctx.Err() == nil {
		asked := time.Now()
		answer, err := r.client.Poll(ctx, r.pollRequest(ack))
		if err != nil {
			if ack, err = r.recover(ctx, ack, err, &pause); err != nil {
				return err
			}
			continue
		}
		pause.reset()
		ack = ackNone
		for _, damage := range answer.Damaged {
			r.note("Records %s are damaged on disk and left out.", damage)
		}
		if len(answer.Batches) == 0 {
			if !r.flags.follow && r.atEnd(answer) {
				return nil
			}
			idle(ctx, answer.RetryAfter-time.Since(asked))
			continue
		}
		if err = r.printAnswer(answer); err != nil && !errors.Is(err, errEnough) {
			return err
		}
		if ack = answer.ID; err != nil {
			return err
		}
	}
	return nil
}

func (r *consumer) register(ctx context.Context) error {
	return r.client.Register(ctx, api.Consumer{ID: r.flags.id, Group: r.flags.group, Topics: r.topics, Latest: r.start.latest})
}

// recover waits after a failed poll, and gives the ack to go on with. A member that is not registered any more, because
// the broker restarted or it was idle for too long, registers again; what it had open comes again.
func (r *consumer) recover(ctx context.Context, ack string, cause error, pause *backoff) (string, error) {
	switch {
	case ctx.Err() != nil:
		return ack, nil
	case api.StatusOf(cause) == http.StatusConflict:
		err := r.register(ctx)
		if err != nil && !retriable(err) {
			return ackNone, err
		}
		if err == nil {
			pause.reset()
		}
		ack = ackNone
	case !retriable(cause):
		return ack, cause
	}
	r.wait(ctx, pause, cause)
	return ack, nil
}

// atEnd tells whether an empty answer is the end, and says so when that is for lack of partitions. It is not where the
// broker could not look: it is about to stop, or leads no more.
func (r *consumer) atEnd(answer api.PollAnswer) bool {
	if answer.Reason == reasonUnassigned {
		r.note("Nothing to read: the other members of the group have all partitions; see 'broker groups describe %s'.", r.flags.group)
	}
	return answer.Reason == "" || answer.Reason == reasonUnassigned
}

// idle waits, where d is positive.
func idle(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// retriable tells whether polling again later may help.
func retriable(err error) bool {
	outcome := api.OutcomeOf(err)
	return outcome == api.NotWritten || outcome == api.Unknown
}

// wait waits before the next try, and says why unless that was said a moment ago for another partition.
func (r *consumer) wait(ctx context.Context, pause *backoff, cause error) {
	d := pause.next(retryAfter(cause))
	now := r.Now().UnixNano()
	if last := r.noted.Load(); now-last > int64(time.Second) && r.noted.CompareAndSwap(last, now) {
		r.note("%s; trying again in %s", firstLine(cause), d.Round(time.Millisecond))
	}
	idle(ctx, d)
}

func (r *consumer) pollRequest(ack string) api.PollRequest {
	p := api.PollRequest{ID: r.flags.id, Ack: ack, Wait: endWait, MaxRecords: r.want()}
	if r.flags.follow {
		p.Wait = followWait
	}
	return p
}

// printAnswer prints all records of an answer. errEnough comes with the last one.
func (r *consumer) printAnswer(answer api.PollAnswer) error {
	var end error
	for i := range answer.Batches {
		b := &answer.Batches[i]
		for j := range b.Records {
			if end != nil {
				return fmt.Errorf("the broker sent more records than were asked for")
			}
			if err := r.print(b.Topic, b.Partition, &b.Records[j]); errors.Is(err, errEnough) {
				end = err
			} else if err != nil {
				return err
			}
		}
	}
	if err := r.flush(); err != nil {
		return err
	}
	return end
}

// leave commits the last answer printed and takes the member out of the group.
func (r *consumer) leave(ctx context.Context, ack string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	var failed error
	if ack != ackNone {
		if err := r.client.Commit(ctx, r.flags.id, ack); err != nil {
			failed = fmt.Errorf("the last records printed are not committed, and will come again: %w", err)
		}
	}
	if err := r.client.Goodbye(ctx, r.flags.id); err != nil && failed == nil && api.StatusOf(err) != http.StatusConflict {
		r.note("Leaving the group failed, the broker will notice after a while: %v", err)
	}
	return failed
}

// startGroup puts a group that has no position on a topic yet to the time of --from. Where it has one, it goes on there.
func (r *consumer) startGroup(ctx context.Context) error {
	if r.start.time == nil {
		return nil
	}
	group, _, err := r.client.Group(ctx, r.flags.group)
	if err != nil && api.StatusOf(err) != http.StatusNotFound {
		return err
	}
	placed := map[string]bool{}
	for _, p := range group.Partitions {
		if p.Committed != nil {
			placed[p.Topic] = true
		}
	}
	for _, topic := range r.topics {
		if placed[topic] {
			r.note("Group %s has positions on %s already and goes on there; --from is for a new group. Move it with 'broker groups seek'.", r.flags.group, topic)
			continue
		}
		seek := topology.SeekRequest{Topic: topic, To: topology.SeekTime, Time: r.start.time.UTC().Format(time.RFC3339Nano)}
		if _, err := r.client.Seek(ctx, r.flags.group, seek); err != nil {
			return fmt.Errorf("start at %s: %w", r.start, err)
		}
	}
	return nil
}
