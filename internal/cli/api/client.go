package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultBroker is where a broker listens that nobody configured.
const DefaultBroker = "127.0.0.1:9250"

// DefaultPort is the port of a broker named without one.
const DefaultPort = "9250"

// maxAnswer bounds what is read of one answer, in bytes.
const maxAnswer = 256 << 20

// Config says which brokers a Client talks to.
type Config struct {
	Brokers   string            // HOST[:PORT] or http(s)://HOST[:PORT], several with commas; default DefaultBroker
	Timeout   time.Duration     // for one request, beyond the time it asks the broker to wait; default 15s
	Transport http.RoundTripper // nil: one of its own, closed by Close
	UserAgent string            // default "skein-cli"
}

// Client sends requests to brokers. Calls may overlap.
type Client struct {
	bases   []*url.URL
	current atomic.Int64 // index of the broker that answered last
	http    *http.Client
	timeout time.Duration
	agent   string
}

// New checks cfg. It opens no connection.
func New(cfg Config) (*Client, error) {
	bases, err := parseBrokers(cfg.Brokers)
	if err != nil {
		return nil, err
	}
	c := &Client{bases: bases, timeout: cfg.Timeout, agent: cfg.UserAgent}
	if c.timeout <= 0 {
		c.timeout = 15 * time.Second
	}
	if c.agent == "" {
		c.agent = "skein-cli"
	}
	transport := cfg.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		}
	}
	c.http = &http.Client{Transport: transport}
	return c, nil
}

// Close closes connections that idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Brokers lists the brokers as URLs, the one that answered last first.
func (c *Client) Brokers() []string {
	out := make([]string, len(c.bases))
	for i := range c.bases {
		out[i] = c.base(i).String()
	}
	return out
}

// Host is the host name, without port, of the broker that answered last.
func (c *Client) Host() string { return c.base(0).Hostname() }

func (c *Client) base(i int) *url.URL {
	return c.bases[(int(c.current.Load())+i)%len(c.bases)]
}

func parseBrokers(list string) ([]*url.URL, error) {
	if strings.TrimSpace(list) == "" {
		list = DefaultBroker
	}
	var bases []*url.URL
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		u, err := parseBroker(part)
		if err != nil {
			return nil, err
		}
		bases = append(bases, u)
	}
	if len(bases) == 0 {
		return nil, fmt.Errorf("broker address %q names no broker; give HOST:PORT", list)
	}
	return bases, nil
}

func parseBroker(s string) (*url.URL, error) {
	raw := s
	if !strings.Contains(s, "://") {
		raw = "http://" + s
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("broker address %q is not HOST:PORT or http://HOST:PORT", s)
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), DefaultPort)
	}
	u.Path = ""
	return u, nil
}

// request is one call of the API. Body may be sent more than once.
type request struct {
	method string
	path   string // escaped
	query  url.Values
	header http.Header
	accept string
	body   []byte
	wait   time.Duration // how long the broker may take on purpose
	repeat bool          // harmless to send again to another broker after a lost connection
}

// answer is a 2xx answer, read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends r to the brokers in turn until one answers, and reads the answer whole. Errors: *Error for a refusal,
// *ConnError when no broker answered, else the context's.
func (c *Client) do(ctx context.Context, r request) (*answer, error) {
	var last error
	for i := range c.bases {
		base := c.base(i)
		a, err := c.send(ctx, base, r)
		if err == nil {
			c.current.CompareAndSwap(c.current.Load(), (c.current.Load()+int64(i))%int64(len(c.bases)))
			return a, nil
		}
		var conn *ConnError
		if !errors.As(err, &conn) || ctx.Err() != nil {
			return nil, err
		}
		last = err
		if conn.Sent && !r.repeat {
			break
		}
	}
	return nil, last
}

// Rotate makes the next broker of the list the first to be asked, after one that said it cannot help.
func (c *Client) Rotate() { c.current.Store((c.current.Load() + 1) % int64(len(c.bases))) }

func (c *Client) send(parent context.Context, base *url.URL, r request) (*answer, error) {
	ctx, cancel := context.WithTimeout(parent, c.timeout+r.wait)
	defer cancel()
	req, err := c.build(ctx, base, r)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, connError(parent, base, err, c.timeout+r.wait)
	}
	defer resp.Body.Close()
	body, err := readAnswer(resp)
	if errors.Is(err, errAnswerTooLong) {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	if err != nil {
		return nil, connError(parent, base, err, c.timeout+r.wait)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, refusal(r, resp, body)
	}
	return &answer{status: resp.StatusCode, header: resp.Header, body: body}, nil
}

var errAnswerTooLong = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)

// readAnswer reads a body whole, into a buffer of its length where that is announced.
func readAnswer(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > maxAnswer {
		return nil, errAnswerTooLong
	}
	if resp.ContentLength >= 0 {
		body := make([]byte, resp.ContentLength)
		_, err := io.ReadFull(resp.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errAnswerTooLong
	}
	return body, err
}

func (c *Client) build(ctx context.Context, base *url.URL, r request) (*http.Request, error) {
	target := base.String() + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, target, err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	req.Header.Set("User-Agent", c.agent)
	return req, nil
}

// getJSON asks for path and decodes the answer into v.
func (c *Client) getJSON(ctx context.Context, path string, v any) error {
	a, err := c.do(ctx, request{method: http.MethodGet, path: path, accept: "application/json", repeat: true})
	if err != nil {
		return err
	}
	return decode(path, a.body, v)
}

// sendJSON sends v (nil: no body) and decodes the answer into out (nil: ignored). It gives the status.
func (c *Client) sendJSON(ctx context.Context, method, path string, v, out any) (int, error) {
	r := request{method: method, path: path, accept: "application/json", header: http.Header{}}
	if v != nil {
		body, err := json.Marshal(v)
		if err != nil {
			return 0, fmt.Errorf("encode the request for %s: %w", path, err)
		}
		r.body = body
		r.header.Set("Content-Type", "application/json")
	}
	a, err := c.do(ctx, r)
	if err != nil {
		return 0, err
	}
	if out != nil && len(a.body) > 0 {
		return a.status, decode(path, a.body, out)
	}
	return a.status, nil
}

func decode(path string, body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("the answer of %s is not what this version of the command line knows: %w; is it a Skein broker, of about the same version?", path, err)
	}
	return nil
}
