package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/skeinmq/skein/test/harness"
)

var httpPorts = []int{harness.AdminPort, harness.ProducePort, harness.ConsumePort}

// TestDiscovery follows section 2.
func TestDiscovery(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	a := http1(t, b, harness.AdminPort, "GET", "/v1/brokers", "")
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/json" || !strings.HasSuffix(a.body, "}\n") {
		t.Errorf("%d %q %q", a.StatusCode, a.Header.Get("Content-Type"), a.body)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"length": 1.0, "producerPort": 9251.0, "producerBinaryPort": 9254.0, "consumerPort": 9252.0}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
	if names, ok := got["names"].([]any); !ok || len(names) != 1 || names[0] != b.Host {
		t.Errorf("names are %v, want the host alone", got["names"])
	}
}

// TestStatus follows 2.2, 3.2 and 5.5, in both protocols on the three ports (0.8).
func TestStatus(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	client := h2c(t)
	for port, body := range map[int]string{
		harness.AdminPort:   "Client discovery server listening on 9250\n",
		harness.ProducePort: "Producer server listening on 9251\n",
		harness.ConsumePort: "Consumer server listening on 9252\n",
	} {
		http1(t, b, port, "GET", "/status", "").expect(t, 200, body)
		http2Do(t, client, "GET", b.URL(port, "/status"), "").expect(t, 200, body)
	}
}

// TestPaths follows section 1: what a router does shows through.
func TestPaths(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for _, port := range httpPorts {
		http1(t, b, port, "GET", "/no/such/path", "").refused(t, 404, "404 page not found")
	}
	for port, path := range map[int]string{
		harness.AdminPort:   "/v1/brokers",
		harness.ProducePort: "/v1/topic/t/messages",
		harness.ConsumePort: "/v1/consumer/poll",
	} {
		a := http1(t, b, port, "DELETE", path, "")
		a.refused(t, 405, "")
		if a.Header.Get("Allow") == "" {
			t.Errorf("405 on %s without Allow", path)
		}
		a = http1(t, b, port, "OPTIONS", path, "")
		a.expect(t, 200, "")
		if a.Header.Get("Allow") == "" {
			t.Errorf("OPTIONS on %s without Allow", path)
		}
	}
	http1(t, b, harness.ConsumePort, "POST", "//v1/consumer/register?consumerId=d&group=g&topic=t", "").expect(t, 200, "OK")
	http1(t, b, harness.ProducePort, "POST", "/v1//topic/paths/messages/", `{}`).expect(t, 200, "OK")
}

// TestHTTPProduce follows 3.1, on each port that takes it and in both protocols.
func TestHTTPProduce(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	client := h2c(t)
	for i, port := range []int{harness.AdminPort, harness.ProducePort} {
		path := fmt.Sprintf("/v1/topic/produce-%d/messages", i)
		a := http1(t, b, port, "POST", path+"?partitionKey=123", `{"a":1}`)
		a.expect(t, 200, "OK")
		if ct, cl := a.Header.Get("Content-Type"), a.Header.Get("Content-Length"); ct != "text/html; charset=utf-8" || cl != "2" {
			t.Errorf("Content-Type %q, Content-Length %q", ct, cl)
		}
		http2Do(t, client, "POST", b.URL(port, path), `{"a":2}`).expect(t, 200, "OK")
	}

	// What is in a topic, in the order of partitions and offsets, values as reads show them.
	stored := func(t *testing.T, topic string) (values []string) {
		for p := range b.Topic(t, topic).Partitions {
			records, _, _ := b.ReadPartition(t, topic, p, 0)
			for _, r := range records {
				values = append(values, string(r.Value))
			}
		}
		return values
	}
	frames := ""
	for _, m := range []string{"one", "two"} {
		frames += string(binary.BigEndian.AppendUint32(nil, uint32(len(m)))) + m
	}
	for _, c := range []struct {
		name, contentType, body string
		want                    []string
	}{
		{"opaque", "application/octet-stream", "not json\nat all", []string{`"not json\nat all"`}},
		{"no type", "", `{"a":1}`, []string{`{"a":1}`}},
		{"ndjson", "application/x-ndjson", "{\"a\":1}\r\n\n{\"a\":2}\n{\"a\":3}", []string{`{"a":1}`, `{"a":2}`, `{"a":3}`}},
		{"ndjson with a parameter", "application/x-ndjson; charset=utf-8", "{\"a\":1}\n{\"a\":2}\n", []string{`{"a":1}`, `{"a":2}`}},
		{"frames", "application/vnd.polar.producer.frames", frames, []string{`"one"`, `"two"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := strings.ReplaceAll(c.name, " ", "-")
			var headers []string
			if c.contentType != "" {
				headers = []string{"Content-Type: " + c.contentType}
			}
			http1(t, b, harness.ProducePort, "POST", "/v1/topic/"+topic+"/messages?partitionKey=k", c.body, headers...).expect(t, 200, "OK")
			if got := stored(t, topic); strings.Join(got, " ") != strings.Join(c.want, " ") {
				t.Errorf("stored %s, want %s", got, c.want)
			}
		})
	}

	t.Run("chunked body", func(t *testing.T) {
		http1(t, b, harness.ProducePort, "POST", "/v1/topic/chunked/messages", "hello", "Transfer-Encoding: chunked").expect(t, 200, "OK")
		if got := stored(t, "chunked"); len(got) != 1 || got[0] != `"hello"` {
			t.Errorf("stored %s", got)
		}
	})
	t.Run("timestamp in microseconds", func(t *testing.T) {
		http1(t, b, harness.ProducePort, "POST", "/v1/topic/timed/messages?partitionKey=k&timestamp=1700000000123456", "x").expect(t, 200, "OK")
		for p := range b.Topic(t, "timed").Partitions {
			records, _, _ := b.ReadPartition(t, "timed", p, 0)
			for _, r := range records {
				if r.Timestamp != 1700000000123 {
					t.Errorf("timestamp %d", r.Timestamp)
				}
			}
		}
	})
	t.Run("keep-alive and pipelining", func(t *testing.T) {
		conn := dial(t, b, harness.ProducePort)
		const n = 10
		one := "POST /v1/topic/kept/messages?partitionKey=k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"
		send(t, conn, []byte(strings.Repeat(one, n)))
		var got strings.Builder
		buf := make([]byte, 64<<10)
		for strings.Count(got.String(), "\r\n\r\nOK") < n {
			k, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("%v after %s", err, &got)
			}
			got.Write(buf[:k])
		}
		if k := len(stored(t, "kept")); k != n {
			t.Errorf("%d stored", k)
		}
	})
	t.Run("GET", func(t *testing.T) {
		a := http1(t, b, harness.ProducePort, "GET", "/v1/topic/t/messages", "")
		a.refused(t, 405, "")
	})
}

// TestHTTPProduceRefusals follows the table of 3.1, and the names of docs/design.md, section 9.
func TestHTTPProduceRefusals(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	const mib = 1 << 20
	path := func(topic string) string { return "/v1/topic/" + topic + "/messages" }
	for _, c := range []struct {
		name, target, body string
		headers            []string
		status             int
		text               string
	}{
		{"empty topic", path(""), "x", nil, 400, "opic"},
		{"topic .", path("."), "x", nil, 400, "topic"},
		{"topic ..", path(".."), "x", nil, 400, "topic"},
		{"topic %2e%2e", path("%2e%2e"), "x", nil, 400, "topic"},
		{"topic a%2Fb", path("a%2Fb"), "x", nil, 400, "topic"},
		{"topic a/b", path("a/b"), "x", nil, 404, ""},
		{"topic of 249 bytes is one", path(strings.Repeat("t", 249)), "x", nil, 200, ""},
		{"topic of 300 bytes", path(strings.Repeat("t", 300)), "x", nil, 400, "topic"},
		{"topic with a space", path("a%20b"), "x", nil, 400, "topic"},
		{"topic that is not UTF-8", path("%ff"), "x", nil, 400, "topic"},
		{"topic with a zero byte", path("a%00"), "x", nil, 400, "topic"},
		{"reserved topic", path("__topics"), "x", nil, 400, "topic"},
		{"key that is not UTF-8", path("refused") + "?partitionKey=%ff%fe", "x", nil, 400, "partitionKey"},
		{"key of 255 bytes is one", path("keys") + "?partitionKey=" + strings.Repeat("k", 255), "x", nil, 200, ""},
		{"key of 256 bytes", path("refused") + "?partitionKey=" + strings.Repeat("k", 256), "x", nil, 400, "partitionKey"},
		{"key with a line break", path("refused") + "?partitionKey=a%0Ab", "x", nil, 400, "partitionKey"},
		{"timestamp that is no number", path("refused") + "?timestamp=now", "x", nil, 400, "timestamp"},
		{"no body", path("refused"), "", nil, 400, ""},
		{"chunked and no body", path("refused"), "", []string{"Transfer-Encoding: chunked"}, 400, ""},
		{"record of 1 MiB is one", path("large") + "?partitionKey=", strings.Repeat("x", mib), nil, 200, ""},
		{"record above 1 MiB", path("refused"), strings.Repeat("x", mib+1), nil, 413, ""},
		{"request above 16 MiB", path("refused"), strings.Repeat(strings.Repeat("x", mib-1)+"\n", 17), []string{"Content-Type: application/x-ndjson"}, 413, ""},
		{"chunked request above 16 MiB", path("refused"), strings.Repeat(strings.Repeat("x", mib-1)+"\n", 17), []string{"Content-Type: application/x-ndjson", "Transfer-Encoding: chunked"}, 413, ""},
		{"blank lines only", path("refused"), "\n\r\n\n", []string{"Content-Type: application/x-ndjson"}, 400, ""},
		{"line 3 is no JSON", path("refused"), "1\n2\n{\n4\n", []string{"Content-Type: application/x-ndjson"}, 400, "line 3"},
		{"frame longer than the body", path("refused"), "\x00\x00\x00\x09abc", []string{"Content-Type: application/vnd.polar.producer.frames"}, 400, ""},
		{"frame of -1 bytes", path("refused"), "\xff\xff\xff\xffabc", []string{"Content-Type: application/vnd.polar.producer.frames"}, 400, ""},
		{"empty frame", path("refused"), "\x00\x00\x00\x01a\x00\x00\x00\x00", []string{"Content-Type: application/vnd.polar.producer.frames"}, 400, ""},
		{"unknown content encoding", path("refused"), "x", []string{"Content-Encoding: br"}, 415, ""},
		{"gzip that is none", path("refused"), "x", []string{"Content-Encoding: gzip"}, 400, ""},
		{"zstd that is none", path("refused"), "x", []string{"Content-Encoding: zstd"}, 400, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := http1(t, b, harness.ProducePort, "POST", c.target, c.body, c.headers...)
			if c.status == 200 {
				a.expect(t, 200, "OK")
			} else {
				a.refused(t, c.status, c.text)
			}
		})
	}
	if r, err := b.Do("GET", harness.AdminPort, "/v1/topics/refused", nil); err != nil || r.Status != 404 {
		t.Errorf("a refused request made a topic: %d %s %v", r.Status, r.Body, err)
	}

	// Bytes that are no HTTP at all, and requests that stop half-way or never end.
	for _, port := range httpPorts {
		for name, bytes := range map[string]string{
			"noise":                   string(crcNoise(uint32(port), 64<<10)),
			"a startup frame":         string(unhex(t, startupFrame)),
			"half a request":          "POST /v1/topic/half/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
			"two lengths":             "POST /v1/topic/refused/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
			"a negative length":       "POST /v1/topic/refused/messages HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\nx",
			"a huge length":           "POST /v1/topic/refused/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\nx",
			"chunk length of -1":      "POST /v1/topic/refused/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
			"HTTP/2 preface and junk": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + string(crcNoise(7, 16<<10)),
		} {
			t.Run(fmt.Sprintf("%s on %d", name, port), func(t *testing.T) {
				conn := dial(t, b, port)
				conn.Write([]byte(bytes))
				conn.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, conn) // an answer or the end, within patience
			})
		}
	}
	for _, name := range []string{"half", "refused"} {
		if r, err := b.Do("GET", harness.AdminPort, "/v1/topics/"+name, nil); err != nil || r.Status != 404 {
			t.Errorf("topic %s is there: %d %s %v", name, r.Status, r.Body, err)
		}
	}
	if !b.Alive() {
		t.Fatal("the broker has ended")
	}
}

// TestHugeHeader sends a header of 10 MB on each port: 431, and memory stays what it was.
func TestHugeHeader(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	before := b.RSS(t)
	for _, port := range httpPorts {
		conn := dial(t, b, port)
		go func() {
			io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: x\r\n")
			line := "X-Rubbish: " + strings.Repeat("r", 1<<16-13) + "\r\n"
			for range 10 << 20 / len(line) {
				if _, err := io.WriteString(conn, line); err != nil {
					return
				}
			}
			io.WriteString(conn, "\r\n")
		}()
		if a := read(t, conn, "GET"); a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("port %d answers %s", port, a.Status)
		}
		conn.Close()

		// The same as one HTTP/2 header list: the stream is refused, by a status or by an error.
		req, err := http.NewRequest("GET", b.URL(port, "/status"), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 160 {
			req.Header.Set(fmt.Sprintf("X-Rubbish-%d", i), strings.Repeat("r", 1<<16))
		}
		if r, err := h2c(t).Do(req); err == nil {
			if r.Body.Close(); r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("HTTP/2 on port %d answers %s", port, r.Status)
			}
		}
		http1(t, b, port, "GET", "/status", "").expect(t, 200, fmt.Sprintf("%s server listening on %d\n", map[int]string{9250: "Client discovery", 9251: "Producer", 9252: "Consumer"}[port], port))
	}
	if after := b.RSS(t); after > before+32<<20 {
		t.Errorf("resident memory went from %d to %d MiB", before>>20, after>>20)
	}
}

// TestKeysGoWhereClientsLookForThem follows section 6: the partition of a key is that of the table.
func TestKeysGoWhereClientsLookForThem(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for _, size := range []int{3, 6, 12} {
		b.CreateTopic(t, fmt.Sprintf("ring-%d", size), size, "")
	}
	for _, c := range []struct {
		key       string
		partition [3]int // of 3, 6 and 12
	}{
		{"123", [3]int{0, 0, 1}},
		{"567", [3]int{1, 3, 6}},
		{"234", [3]int{2, 5, 11}},
		{"hello", [3]int{0, 1, 3}},
		{"k1", [3]int{0, 0, 0}},
		{"x", [3]int{2, 5, 11}},
		{"my-key", [3]int{2, 4, 9}},
		{"user-42", [3]int{2, 4, 9}},
		{"h%C3%A9llo", [3]int{2, 4, 8}},
	} {
		for i, size := range []int{3, 6, 12} {
			a := http1(t, b, harness.ProducePort, "POST", fmt.Sprintf("/v1/topic/ring-%d/messages?partitionKey=%s", size, c.key), "x", "Accept: application/json")
			var receipts []struct {
				Topic      string
				Partition  int
				Offset     int64
				Generation int
				Timestamp  int64
			}
			if err := json.Unmarshal([]byte(a.body), &receipts); err != nil || len(receipts) != 1 {
				t.Fatalf("no receipt: %s", a.body)
			}
			if receipts[0].Partition != c.partition[i] || receipts[0].Generation < 1 || receipts[0].Timestamp == 0 {
				t.Errorf("key %s of a ring of %d: %+v, want partition %d", c.key, size, receipts[0], c.partition[i])
			}
		}
	}
	// Tokens of partitions are those of 6.2, as strings.
	want := []string{"-9223372036854775808", "-6148914691236517888", "-3074457345618259968", "-2048", "3074457345618255872", "6148914691236513792"}
	for i, l := range b.Topic(t, "ring-6").Logs {
		if l.Token != want[i] {
			t.Errorf("partition %d of 6 has the token %s, want %s", i, l.Token, want[i])
		}
	}
}
