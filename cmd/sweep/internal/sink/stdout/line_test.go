package stdout

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// readBack is a line as `sweep enqueue` reads it.
type readBack struct {
	driver.Message
	payload []byte
}

func parseLine(t *testing.T, text []byte) readBack {
	t.Helper()
	var in struct {
		Namespace     string            `json:"namespace"`
		TaskQueue     string            `json:"task_queue"`
		DispatchKey   string            `json:"dispatch_key"`
		ContentType   string            `json:"content_type"`
		Headers       map[string]string `json:"headers"`
		Payload       json.RawMessage   `json:"payload"`
		PayloadBase64 *[]byte           `json:"payload_base64"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		t.Fatalf("not JSON: %v: %.300s", err, text)
	}
	if (in.Payload == nil) == (in.PayloadBase64 == nil) {
		t.Fatalf("want exactly one of payload and payload_base64: %.300s", text)
	}
	payload := []byte(in.Payload)
	if in.PayloadBase64 != nil {
		payload = *in.PayloadBase64
	}
	return readBack{driver.Message{
		Namespace: in.Namespace, TaskQueue: in.TaskQueue, DispatchKey: in.DispatchKey,
		ContentType: in.ContentType, Headers: in.Headers,
	}, payload}
}

func TestLine(t *testing.T) {
	var b bytes.Buffer
	err := New(&b).Deliver(t.Context(), driver.Delivery{
		ID: 7, ClaimToken: 99, Namespace: "acme", TaskQueue: "mail", DispatchKey: "k<1>", Shard: 3, Attempt: 2,
		CreatedAt: time.UnixMicro(1), DueAt: time.UnixMicro(2_000_000), ClaimedAt: time.UnixMicro(3_500_000),
		ContentType: "application/json", Headers: map[string]string{"b": "2", "a": "1"}, Payload: []byte(`{"n":1.50,"n":2}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":7,"namespace":"acme","task_queue":"mail","dispatch_key":"k<1>","shard":3,"attempt":2,` +
		`"created_at":"1970-01-01T00:00:00.000001Z","due_at":"1970-01-01T00:00:02.000000Z","claimed_at":"1970-01-01T00:00:03.500000Z",` +
		`"content_type":"application/json","headers":{"a":"1","b":"2"},"payload":{"n":1.50,"n":2}}` + "\n"
	if b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
}

func TestPayloadForms(t *testing.T) {
	const asJSON, asBase64 = `"payload":`, `"payload_base64":`
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name, contentType, payload, form string
		want                             string // the payload that is read back, if it is not the same
	}{
		{"object", "application/json", `{"a":1}`, asJSON, ""},
		{"null", "application/json", `null`, asJSON, ""},
		{"spaces on one line stay", "application/json", `{ "a" : [1,  2] }`, asJSON, ""},
		{"number keeps its digits", "application/json", `12345678901234567890.10e-400`, asJSON, ""},
		{"escapes and angle brackets stay", "application/json", `"\u00e9 \/ <&> é"`, asJSON, ""},
		{"duplicate keys stay", "application/json", `{"a":1,"a":2}`, asJSON, ""},
		{"line separator inside a string", "application/json", "\"a\u2028b\"", asJSON, ""},
		{"suffix", "application/cloudevents+json", `{}`, asJSON, ""},
		{"parameters and case", "Application/JSON; charset=utf-8", `{}`, asJSON, ""},
		{"bad parameters", "application/json; charset", `{}`, asJSON, ""},
		{"lines are joined", "application/json", "{\n \"a\": \"x y\",\r\n \"b\": 1.0\n}\n", asJSON, `{"a":"x y","b":1.0}`},
		{"white space around goes", "application/json", " 1\t", asJSON, "1"},
		{"as deep as readers go", "application/json", deep(maxNesting - 1), asJSON, ""},
		{"too deep inside a line", "application/json", deep(maxNesting), asBase64, ""},
		{"too deep at all", "application/json", deep(200_000), asBase64, ""},
		{"many brackets, not deep", "application/json", "[" + strings.Repeat("{},", maxNesting) + "1]", asJSON, ""},
		{"empty", "application/json", "", asBase64, ""},
		{"white space only", "application/json", "\n", asBase64, ""},
		{"not JSON", "application/json", `{"a":`, asBase64, ""},
		{"two values", "application/json", `1,"id":5`, asBase64, ""},
		{"closes the line's object", "application/json", `1}` + "\n" + `{"id":2`, asBase64, ""},
		{"line feed inside a string is not JSON", "application/json", "\"a\nb\"", asBase64, ""},
		{"invalid UTF-8 inside a string", "application/json", "\"\xff\"", asBase64, ""},
		{"byte order mark", "application/json", "\xef\xbb\xbf{}", asBase64, ""},
		{"UTF-16", "application/json; charset=utf-16", "1\x00", asBase64, ""},
		{"JSON under another type", "text/plain", `{"a":1}`, asBase64, ""},
		{"JSON lines", "application/x-ndjson", "{}\n{}\n", asBase64, ""},
		{"no type", "", `{}`, asBase64, ""},
		{"type is nonsense", "///", `{}`, asBase64, ""},
		{"bytes", "application/octet-stream", "\x00\n\r\xff", asBase64, ""},
		{"1 MiB of line feeds", "application/octet-stream", strings.Repeat("\n", 1<<20), asBase64, ""},
		{"1 MiB of JSON", "application/json", `"` + strings.Repeat("x", 1<<20-2) + `"`, asJSON, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			in := driver.Delivery{ContentType: c.contentType, Payload: []byte(c.payload)}
			if err := New(&b).Deliver(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(b.Bytes(), []byte("\n")); n != 1 || !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
				t.Errorf("%d line feeds, want one, at the end", n)
			}
			if !strings.Contains(b.String(), c.form) {
				t.Errorf("no %s in %.300s", c.form, b.String())
			}
			want := c.payload
			if c.want != "" {
				want = c.want
			}
			if got := parseLine(t, b.Bytes()); string(got.payload) != want {
				t.Errorf("read back %.100q, want %.100q", got.payload, want)
			}
		})
	}
}

func TestNilPayloadAndHeaders(t *testing.T) {
	var b bytes.Buffer
	if err := New(&b).Deliver(t.Context(), driver.Delivery{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"headers":{}`, `"payload_base64":""`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}

// INV-2: what the sink prints can be enqueued again, whatever the names hold.
func TestAwkwardNamesReadBack(t *testing.T) {
	for _, name := range sinktest.Awkward() {
		var b bytes.Buffer
		in := driver.Delivery{
			Namespace: name, TaskQueue: name, DispatchKey: name, ContentType: name,
			Headers: map[string]string{name: name}, Payload: []byte(name),
		}
		if err := New(&b).Deliver(t.Context(), in); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		out := parseLine(t, b.Bytes())
		if out.Namespace != name || out.TaskQueue != name || out.DispatchKey != name || out.ContentType != name ||
			out.Headers[name] != name || string(out.payload) != name {
			t.Errorf("%q came back as %+v", name, out)
		}
	}
}

func TestRealWebhooksReadBack(t *testing.T) {
	messages := sinktest.Webhooks(t)
	var b bytes.Buffer
	s := New(&b)
	for _, m := range messages {
		if err := s.Deliver(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	lines := bytes.SplitAfter(b.Bytes(), []byte("\n"))
	if len(lines) != len(messages)+1 {
		t.Fatalf("%d lines for %d messages", len(lines)-1, len(messages))
	}
	for i, m := range messages {
		got := parseLine(t, lines[i])
		if !bytes.Equal(got.payload, m.Payload) || got.DispatchKey != m.DispatchKey {
			t.Errorf("message %s came back changed", m.DispatchKey)
		}
	}
}

func FuzzLineReadsBack(f *testing.F) {
	f.Add("application/json", []byte("{\n\"a\": 1}"))
	f.Add("application/json", []byte("1,\"id\":5"))
	f.Add("text/x+json; a=b", []byte("\"\xff\n"))
	f.Fuzz(func(t *testing.T, contentType string, payload []byte) {
		text, err := appendLine(nil, driver.Delivery{ContentType: contentType, Payload: payload})
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, '\n') != len(text)-1 {
			t.Fatalf("not one line: %q", text)
		}
		got := parseLine(t, text).payload
		if bytes.Equal(got, payload) {
			return
		}
		var a, b bytes.Buffer // only white space between tokens may differ
		if json.Compact(&a, got) != nil || json.Compact(&b, payload) != nil || a.String() != b.String() {
			t.Fatalf("%q came back as %q", payload, got)
		}
	})
}
