package consuming

import (
	"context"
	"fmt"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// outcome says how a poll ended.
type outcome string

const (
	gotRecords   outcome = "records"
	nothingNew   outcome = "empty"
	noPartitions outcome = "unassigned" // the member owns no partition that is led here
	notLeading   outcome = "not-leader" // the lease or leadership is gone, or never was here (P8)
	superseded   outcome = "superseded" // a newer poll of the same origin came
	draining     outcome = "draining"   // this broker is about to stop
)

// polled is what a poll yields.
type polled struct {
	outcome  outcome
	ack      ackResult
	id       string  // names the answer, for ack
	answer   *answer // with records only
	body     form    // with records only; to be released
	damaged  []damage
	waited   time.Duration
	moreSoon bool // the wait was used up, so asking again at once is fine
}

// damage is a range of offsets that was skipped because the disk does not hold it any more.
type damage struct {
	topic     string
	partition topology.Partition
	data.OffsetRange
}

// writeGrace is how long a poll or commit waits for the answer before it to be written to its end. A client that has read it all
// may be faster with its next request than the goroutine that wrote it.
const writeGrace = time.Second

// poll settles the open answer of ses as q.ack says and gathers the next one in a form that newBody makes, waiting for
// records up to q.wait. The caller writes the answer and then calls answered.
//
// Errors: errNotRegistered when the session ends meanwhile, those of ctx, and those that keep positions or records from
// being read.
func (s *Service) poll(ctx context.Context, ses *session, q *pollQuery, newBody func() form) (polled, error) {
	number, err := s.enterGate(ctx, ses)
	if err != nil {
		return polled{}, err
	}
	defer func() { <-ses.gate }()
	var p polled
	if p.ack, err = s.settle(ctx, ses, q.ack); err != nil {
		return polled{}, err
	}
	w := waiter{s: s, ses: ses, number: number, until: s.cfg.Now().Add(q.wait)}
	defer w.end()
	for {
		w.begin(q.wait > 0)
		p.outcome, err = s.gather(ctx, ses, number, q, newBody, &p)
		if err != nil || q.wait == 0 || p.outcome != nothingNew && p.outcome != noPartitions {
			break
		}
		var again bool
		if again, p.outcome, err = w.sleep(ctx, p.outcome); !again || err != nil {
			break
		}
	}
	p.waited = w.waited
	if err == nil && p.outcome != superseded {
		p.id = ses.pollID(number)
		ses.answers(number, p.outcome == gotRecords)
	}
	p.moreSoon = q.wait > 0 && p.outcome == nothingNew
	return p, err
}

// enterGate lets the newest poll of ses in: an older one that waits ends now. It returns the number of this poll.
func (s *Service) enterGate(ctx context.Context, ses *session) (number uint64, err error) {
	g := ses.group
	g.mu.Lock()
	ses.polls++
	number = ses.polls
	if ses.sleeping {
		ses.signal()
	}
	g.mu.Unlock()
	select {
	case ses.gate <- struct{}{}:
		return number, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// settle commits the open answer of ses or gives it back, as ack says.
func (s *Service) settle(ctx context.Context, ses *session, ack ack) (ackResult, error) {
	g := ses.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if ack.kind == ackLast {
		if err := ses.awaitOpen(ctx); err != nil {
			return "", err
		}
	}
	s.reassignOpen(ses)
	if ses.gone {
		return "", errNotRegistered
	}
	ses.lost = false
	a := ses.open
	switch {
	case ack.kind == ackID && a != nil && a.id == ack.id, ack.kind == ackLast && a != nil && a.reached(httpd.ConnOf(ctx)):
		if refused, _ := s.commitOpen(ses, byPoll); len(refused) > 0 {
			return ackPartial, nil
		}
		return ackCommitted, nil
	case ack.kind == ackID:
		ses.giveBack()
		switch n := ses.numberOf(ack.id); {
		case n == 0:
			return ackUnknown, nil
		case n == ses.empty && a == nil:
			return ackCommitted, nil // it had nothing
		case n == ses.empty, n == ses.committed:
			return ackRepeated, nil
		}
		return ackUnknown, nil
	default:
		ses.giveBack()
		return "", nil
	}
}

// awaitOpen gives the open answer of ses some time to reach the client, whose next request may be faster than what tells of
// that. Only the end of ctx is an error. The caller holds group.mu, which is released meanwhile.
func (ses *session) awaitOpen(ctx context.Context) error {
	g := ses.group
	if a := ses.open; a != nil && a.state == writing {
		g.mu.Unlock()
		err := waitDone(ctx, a.done, writeGrace)
		g.mu.Lock()
		if err != nil {
			return err
		}
	}
	if a := ses.open; a != nil && a.state == written && !a.reached(httpd.ConnOf(ctx)) {
		g.mu.Unlock()
		a.waitReached(ctx, receiveGrace)
		g.mu.Lock()
	}
	return nil
}

// receiveGrace is how long a poll or commit over another connection waits for the client's machine to confirm the answer before it:
// confirmations may be put off for 40 ms, and longer by slow networks.
const receiveGrace = 300 * time.Millisecond

// waitReached waits until the connection of a, which is written, has handed over all of it, at most for d.
func (a *answer) waitReached(ctx context.Context, d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !a.conn.Received() {
		select {
		case <-look.C:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// answers notes the number of the answer that a poll gives.
func (ses *session) answers(number uint64, records bool) {
	ses.group.mu.Lock()
	defer ses.group.mu.Unlock()
	ses.empty = 0
	if !records {
		ses.empty = number
	}
}

// waitDone waits for done, at most for d. Only the end of ctx is an error.
func waitDone(ctx context.Context, done <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// gather puts records of the partitions that ses owns into p.body, and makes them its open answer. Without records there
// is no body: a poll that waits holds no buffer.
func (s *Service) gather(ctx context.Context, ses *session, number uint64, q *pollQuery, newBody func() form, p *polled) (outcome, error) {
	for _, sub := range ses.unboundSubs() {
		if err := s.bindIfNew(ctx, sub); err != nil {
			return nothingNew, err
		}
	}
	body := newBody()
	c := newCollector(s, ses, number, body, q)
	c.answer.conn = httpd.ConnOf(ctx)
	defer c.release()
	defer func() {
		if p.answer != nil {
			p.body = body
		} else {
			body.release()
		}
	}()
	c.collect(ctx)
	p.damaged = append(p.damaged, c.damaged...)
	var err error
	p.answer, p.outcome, err = c.end(ctx)
	return p.outcome, err
}

// bindIfNew binds sub if its topic has come to exist since it was registered for.
func (s *Service) bindIfNew(ctx context.Context, sub *subscription) error {
	if _, ok := s.cfg.Topics.Lookup(sub.name); !ok {
		return nil
	}
	return s.bind(ctx, sub)
}

// grant is how many bytes of records an answer may have: what is asked for, but ever less the more memory the answers
// hold that are being written. So many slow readers get small answers, and one chunk each in the end.
func (s *Service) grant(asked int) int {
	room := s.cfg.AnswerMemory - s.answerBytes.Load()
	return max(1, min(asked, int(room/8)))
}

// answered notes whether an answer was written to its end. If not, its records are given back.
func (s *Service) answered(ses *session, a *answer, complete bool) {
	g := ses.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if complete {
		a.state = written
	} else if ses.open == a {
		ses.giveBack()
		ses.wakeSiblings()
	}
	close(a.done)
}

// stillLeading checks the lease of all that a holds, just before it is written (P8).
func (s *Service) stillLeading(a *answer) error {
	for i := range a.deliveries {
		d := &a.deliveries[i]
		v, err := s.cfg.Leadership.Lead(d.start)
		if err == nil && v != d.cursor.version {
			err = topology.ErrNotLeader
		}
		if err != nil {
			return fmt.Errorf("deliver %s/%d: %w", d.sub.name, d.partition, err)
		}
	}
	return nil
}

// waiter lets a poll wait for records.
type waiter struct {
	s       *Service
	ses     *session
	number  uint64
	until   time.Time
	waiting bool
	waited  time.Duration
}

// begin announces that a poll will wait unless it finds something. It comes before the poll looks, so that an advance
// after the look is noticed.
func (w *waiter) begin(waits bool) {
	if !waits || w.waiting {
		return
	}
	w.waiting = true
	g := w.ses.group
	g.waiting.Add(1)
	g.mu.Lock()
	w.ses.sleeping = true
	g.mu.Unlock()
}

func (w *waiter) end() {
	if !w.waiting {
		return
	}
	w.waiting = false
	g := w.ses.group
	g.mu.Lock()
	w.ses.sleeping = false
	g.mu.Unlock()
	g.waiting.Add(-1)
}

// sleep waits until something may have come. again is false when the poll ends, with the outcome returned.
func (w *waiter) sleep(ctx context.Context, now outcome) (again bool, _ outcome, err error) {
	started := w.s.cfg.Now()
	rest := w.until.Sub(started)
	if rest <= 0 {
		return false, now, nil
	}
	t := time.NewTimer(rest)
	defer t.Stop()
	defer func() { w.waited += w.s.cfg.Now().Sub(started) }()
	select {
	case <-w.ses.wake:
		g := w.ses.group
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case w.ses.gone:
			return false, now, errNotRegistered
		case w.ses.polls != w.number:
			return false, superseded, nil
		}
		return true, now, nil
	case <-t.C:
		return false, now, nil
	case <-httpd.Draining(ctx):
		return false, draining, nil
	case <-ctx.Done():
		return false, now, ctx.Err()
	}
}
