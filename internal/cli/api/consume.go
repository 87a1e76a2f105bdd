package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Record is a record as the broker shows it.
type Record struct {
	Offset    int64          `json:"offset"`
	Timestamp int64          `json:"timestamp"` // ms since the epoch
	Key       Value          `json:"key"`
	Headers   []RecordHeader `json:"headers"`
	Value     Value          `json:"value"`
	Text      bool           `json:"text"` // the value is a text, and no JSON document
}

// Bytes are those of the value, nil for null.
func (r *Record) Bytes() ([]byte, error) { return r.Value.Document(r.Text) }

// RecordHeader is a header of a Record. Its JSON form is the pair [key, value].
type RecordHeader struct {
	Key   string
	Value Value
}

// UnmarshalJSON decodes [key, value].
func (h *RecordHeader) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil || len(pair) != 2 {
		return fmt.Errorf("a record header is not a pair of key and value: %.100s", b)
	}
	if err := json.Unmarshal(pair[0], &h.Key); err != nil {
		return fmt.Errorf("key of a record header: %w", err)
	}
	h.Value = Value(pair[1])
	return nil
}

// MarshalJSON encodes [key, value].
func (h RecordHeader) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Key, h.Value}) }

// Batch is a run of records of one partition, in order.
type Batch struct {
	Topic      string   `json:"topic"`
	Partition  int      `json:"partition"`
	Token      string   `json:"token"`
	Generation int64    `json:"generation"`
	Start      int64    `json:"startOffset"`
	Records    []Record `json:"records"`
}

// Consumer names a member of a group.
type Consumer struct {
	ID     string
	Group  string
	Topics []string
	Latest bool // where the group has no position: start at the end, not at the beginning
}

// Register makes m a member of its group. Repeating it is harmless.
func (c *Client) Register(ctx context.Context, m Consumer) error {
	policy := "startFromEarliest"
	if m.Latest {
		policy = "startFromLatest"
	}
	_, err := c.do(ctx, request{
		method: http.MethodPut, path: "/v1/consumer/register", repeat: true,
		query: url.Values{"consumerId": {m.ID}, "group": {m.Group}, "topic": m.Topics, "onNewGroup": {policy}},
	})
	return err
}

// PollRequest is one poll of a member. Ack names the answer that is worked through, or is "none": then the broker
// commits nothing and delivers again what is open.
type PollRequest struct {
	ID         string
	Ack        string
	Wait       time.Duration // for data, when there is none
	MaxRecords int           // 0 the broker's default
	MaxBytes   int           // 0 the broker's default
}

// PollAnswer is an answer to a poll. Batches is empty when nothing is new; Reason and RetryAfter then tell why and when
// to ask again, where the broker says so.
type PollAnswer struct {
	ID         string // for Ack
	Batches    []Batch
	Damaged    []string // ranges that are lost on disk and left out: topic/partition:from-to
	Reason     string
	RetryAfter time.Duration
}

// Poll asks for records. Errors with status 409: the member is not registered (any more).
func (c *Client) Poll(ctx context.Context, p PollRequest) (PollAnswer, error) {
	a, err := c.poll(ctx, p, TypeRecords)
	if err != nil {
		return PollAnswer{}, err
	}
	answer := pollAnswer(a)
	if a.status == http.StatusNoContent || len(bytes.TrimSpace(a.body)) == 0 {
		return answer, nil
	}
	return answer, decode("the poll", a.body, &answer.Batches)
}

// PollBinary is Poll with the answer's body as it came, in the binary form of docs/wire.md 5.2.1; empty when nothing is
// new.
func (c *Client) PollBinary(ctx context.Context, p PollRequest) (PollAnswer, []byte, error) {
	a, err := c.poll(ctx, p, "application/vnd.polar.consumermessage")
	if err != nil {
		return PollAnswer{}, nil, err
	}
	return pollAnswer(a), a.body, nil
}

func (c *Client) poll(ctx context.Context, p PollRequest, accept string) (*answer, error) {
	q := url.Values{"consumerId": {p.ID}}
	if p.Ack != "" {
		q.Set("ack", p.Ack)
	}
	if p.Wait > 0 {
		q.Set("wait", strconv.FormatInt(p.Wait.Milliseconds(), 10)+"ms")
	}
	if p.MaxRecords > 0 {
		q.Set("maxRecords", strconv.Itoa(p.MaxRecords))
	}
	if p.MaxBytes > 0 {
		q.Set("maxBytes", strconv.Itoa(p.MaxBytes))
	}
	return c.do(ctx, request{method: http.MethodPost, path: "/v1/consumer/poll", query: q, accept: accept, wait: p.Wait})
}

func pollAnswer(a *answer) PollAnswer {
	seconds, _ := strconv.Atoi(a.header.Get("Retry-After"))
	return PollAnswer{
		ID:         a.header.Get("Skein-Poll-Id"),
		Reason:     a.header.Get("Skein-Reason"),
		Damaged:    a.header.Values("Skein-Damaged"),
		RetryAfter: time.Duration(seconds) * time.Second,
	}
}

// Commit commits the answer that ack names for the member; "" the last one that was delivered.
func (c *Client) Commit(ctx context.Context, id, ack string) error {
	q := url.Values{"consumerId": {id}}
	if ack != "" {
		q.Set("ack", ack)
	}
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/consumer/commit", query: q, repeat: true})
	return err
}

// Goodbye takes the member out of its group, without committing.
func (c *Client) Goodbye(ctx context.Context, id string) error {
	q := url.Values{"consumerId": {id}, "commit": {"false"}}
	_, err := c.do(ctx, request{method: http.MethodPost, path: "/v1/consumer/goodbye", query: q, repeat: true})
	return err
}

// Place says where a read of a partition begins: one field is set, or none for the start of the log.
type Place struct {
	Offset *int64
	Time   *time.Time
	Last   int // that many records before the end
}

// RecordsRequest reads a partition without a group.
type RecordsRequest struct {
	Topic      string
	Partition  int
	From       Place
	MaxRecords int
	MaxBytes   int
	Wait       time.Duration
}

// RecordsAnswer is a page of a partition. Next is where to go on.
type RecordsAnswer struct {
	Topic         string        `json:"topic"`
	Partition     int           `json:"partition"`
	Start         int64         `json:"start"`
	HighWatermark int64         `json:"highWatermark"`
	Next          int64         `json:"next"`
	Damaged       []OffsetRange `json:"damaged"`
	Records       []Record      `json:"records"`
}

// OffsetRange is [From, To).
type OffsetRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Records reads a page. Status 416: the offset is outside the log, see the bounds in *Error.
func (c *Client) Records(ctx context.Context, r RecordsRequest) (RecordsAnswer, error) {
	q := url.Values{}
	switch {
	case r.From.Offset != nil:
		q.Set("offset", strconv.FormatInt(*r.From.Offset, 10))
	case r.From.Time != nil:
		q.Set("time", strconv.FormatInt(r.From.Time.UnixMilli(), 10))
	case r.From.Last > 0:
		q.Set("last", strconv.Itoa(r.From.Last))
	}
	if r.MaxRecords > 0 {
		q.Set("maxRecords", strconv.Itoa(r.MaxRecords))
	}
	if r.MaxBytes > 0 {
		q.Set("maxBytes", strconv.Itoa(r.MaxBytes))
	}
	if r.Wait > 0 {
		q.Set("wait", strconv.FormatInt(r.Wait.Milliseconds(), 10)+"ms")
	}
	path := "/v1/topic/" + url.PathEscape(r.Topic) + "/partitions/" + strconv.Itoa(r.Partition) + "/records"
	a, err := c.do(ctx, request{method: http.MethodGet, path: path, query: q, accept: "application/json", wait: r.Wait, repeat: true})
	if err != nil {
		return RecordsAnswer{}, err
	}
	var out RecordsAnswer
	return out, decode(path, a.body, &out)
}
