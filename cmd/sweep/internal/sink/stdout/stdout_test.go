package stdout

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// TestMain lets the tests run this binary as a process that prints to a real
// standard output.
func TestMain(m *testing.M) {
	if os.Getenv("STDOUT_TEST_PRINT") != "" {
		os.Exit(printUntilClosed())
	}
	goleak.VerifyTestMain(m)
}

// printUntilClosed delivers messages to os.Stdout and exits 3 when the sink says
// that it is closed.
func printUntilClosed() int {
	if os.Getenv("STDOUT_TEST_PRINT") == "caught" {
		defer CatchBrokenPipe()()
	}
	s := New(os.Stdout)
	for i := range 1_000_000 {
		err := s.Deliver(context.Background(), driver.Message{ID: int64(i), Payload: make([]byte, 1000)})
		switch sinktest.Outcome(err) {
		case sinktest.Done:
		case sinktest.Closed:
			fmt.Fprintln(os.Stderr, err)
			return 3
		default:
			fmt.Fprintln(os.Stderr, "unexpected:", err)
			return 4
		}
	}
	return 0
}

// readBack is a line as `sweep enqueue` reads it.
type readBack struct {
	driver.NewMessage
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
	return readBack{driver.NewMessage{
		Namespace: in.Namespace, TaskQueue: in.TaskQueue, DispatchKey: in.DispatchKey,
		ContentType: in.ContentType, Headers: in.Headers,
	}, payload}
}

func TestLine(t *testing.T) {
	var b bytes.Buffer
	err := New(&b).Deliver(t.Context(), driver.Message{
		ID: 7, ClaimToken: 99, Namespace: "acme", TaskQueue: "mail", DispatchKey: "k<1>", Shard: 3, Attempt: 2,
		ContentType: "application/json", Headers: map[string]string{"b": "2", "a": "1"}, Payload: []byte(`{"n":1.50,"n":2}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":7,"namespace":"acme","task_queue":"mail","dispatch_key":"k<1>","shard":3,"attempt":2,` +
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
			in := driver.Message{ContentType: c.contentType, Payload: []byte(c.payload)}
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
	if err := New(&b).Deliver(t.Context(), driver.Message{}); err != nil {
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
		in := driver.Message{
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

// crumbs takes a few bytes at a time, as io.Writer forbids but some writers do.
type crumbs struct{ bytes.Buffer }

func (c *crumbs) Write(p []byte) (int, error) {
	runtime.Gosched()
	return c.Buffer.Write(p[:min(len(p), 1+rand.IntN(9))])
}

func TestConcurrentLinesNeverMix(t *testing.T) {
	var w crumbs
	s := New(&w)
	const messages = 200
	var wg sync.WaitGroup
	for i := range messages {
		wg.Go(func() {
			if err := s.Deliver(t.Context(), driver.Message{ID: int64(i), DispatchKey: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	lines := bufio.NewScanner(&w)
	for lines.Scan() {
		seen[parseLine(t, lines.Bytes()).DispatchKey] = true
	}
	if len(seen) != messages {
		t.Errorf("%d of %d messages came out", len(seen), messages)
	}
}

// scripted answers one Write after another.
type scripted struct {
	answers []func(p []byte) (int, error)
	out     bytes.Buffer
}

func (s *scripted) Write(p []byte) (int, error) {
	if len(s.answers) == 0 {
		return s.out.Write(p)
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	n, err := answer(p)
	if n > 0 && n <= len(p) {
		s.out.Write(p[:n])
	}
	return n, err
}

func TestFailedWriteClosesTheSink(t *testing.T) {
	full := errors.New("disk is full")
	answer := func(n int, err error) func([]byte) (int, error) {
		return func([]byte) (int, error) { return n, err }
	}
	for _, c := range []struct {
		name    string
		answers []func(p []byte) (int, error)
		is      error
		says    string
	}{
		{"at once", []func([]byte) (int, error){answer(0, full)}, full, "sink is closed: disk is full"},
		{"in the line", []func([]byte) (int, error){answer(10, full)}, full, "the last line ends after 10 of its "},
		{"after a short write", []func([]byte) (int, error){answer(10, nil), answer(5, full)}, full, "after 15 of its "},
		{"nothing taken", []func([]byte) (int, error){answer(0, nil)}, io.ErrShortWrite, "short write"},
		{"whole line and an error", []func([]byte) (int, error){func(p []byte) (int, error) { return len(p), full }}, full, "disk is full"},
		{"writer counts wrong", []func([]byte) (int, error){answer(1<<20, nil)}, nil, "the writer reports 1048576 bytes"},
		{"writer counts below 0", []func([]byte) (int, error){answer(-1, full)}, nil, "the writer reports -1 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &scripted{answers: c.answers}
			s := New(w)
			first := s.Deliver(t.Context(), driver.Message{ID: 1})
			if got := sinktest.Outcome(first); got != sinktest.Closed {
				t.Errorf("the message that hit the error: %s (%v), want %s", got, first, sinktest.Closed)
			}
			if c.is != nil && !errors.Is(first, c.is) || !strings.Contains(first.Error(), c.says) {
				t.Errorf("error is %q, want %q in it", first, c.says)
			}
			before := w.out.Len()
			later := s.Deliver(t.Context(), driver.Message{ID: 2})
			if got := sinktest.Outcome(later); got != sinktest.Closed {
				t.Errorf("a later message: %s (%v), want %s", got, later, sinktest.Closed)
			}
			if w.out.Len() != before {
				t.Error("wrote after the sink was closed")
			}
		})
	}
}

// A stalled reader must not hold up Deliver once its context ends, costs one
// attempt of one message, and loses nothing.
func TestStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		s := New(w)
		deliver := func(ctx context.Context, id int64) chan string {
			c := make(chan string, 1)
			go func() { c <- sinktest.Outcome(s.Deliver(ctx, driver.Message{ID: id})) }()
			synctest.Wait()
			return c
		}
		first, stopFirst := context.WithCancel(t.Context())
		second, stopSecond := context.WithCancel(t.Context())
		defer stopSecond()
		a := deliver(first, 1)
		b := deliver(second, 2)
		stopFirst()
		if got := <-a; got != sinktest.Retry {
			t.Errorf("the message in the middle of its line: %s, want %s", got, sinktest.Retry)
		}
		stopSecond()
		if got := <-b; got != sinktest.Undelivered {
			t.Errorf("the message that waited for its turn: %s, want %s", got, sinktest.Undelivered)
		}
		if got := <-deliver(second, 3); got != sinktest.Undelivered {
			t.Errorf("a message whose context has ended: %s, want %s", got, sinktest.Undelivered)
		}

		c := deliver(t.Context(), 4)
		lines := bufio.NewScanner(r)
		for _, want := range []string{`{"id":1,`, `{"id":4,`} {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
				t.Errorf("the reader got %q, want %q first", lines.Text(), want)
			}
		}
		if got := <-c; got != sinktest.Done {
			t.Errorf("the message after the stall: %s, want %s", got, sinktest.Done)
		}
	})
}

func TestContextThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b bytes.Buffer
	s := New(&b)
	for range 50 {
		if got := sinktest.Outcome(s.Deliver(ctx, driver.Message{})); got != sinktest.Undelivered {
			t.Fatalf("%s, want %s", got, sinktest.Undelivered)
		}
	}
	if b.Len() > 0 {
		t.Errorf("wrote %q", b.String())
	}
}

// A line that is out counts, even where the context ends at the same moment.
func TestContextEndsWithTheWrite(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		w := &scripted{answers: []func([]byte) (int, error){func(p []byte) (int, error) { cancel(); return len(p), nil }}}
		s := New(w)
		err := s.Deliver(ctx, driver.Message{})
		if got := sinktest.Outcome(err); got != sinktest.Done && got != sinktest.Retry {
			t.Fatalf("%s (%v)", got, err)
		}
		<-s.turn // the writing goroutine is through
	}
}

// INV-2: a real process whose standard output is closed under it must live to hand
// its messages back.
func TestClosedPipeInARealProcess(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGPIPE on Windows")
	}
	for _, c := range []struct {
		mode string
		code int
		sig  syscall.Signal
	}{
		{"caught", 3, -1},
		{"not caught", -1, syscall.SIGPIPE},
	} {
		t.Run(c.mode, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "STDOUT_TEST_PRINT="+c.mode)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for i := range 3 {
				if !lines.Scan() || !strings.HasPrefix(lines.Text(), fmt.Sprintf(`{"id":%d,`, i)) {
					t.Errorf("line %d is %.60q", i, lines.Text())
				}
			}
			out.Close()
			_ = cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.ExitStatus() != c.code || status.Signal() != c.sig {
				t.Fatalf("%v, want exit %d or signal %v; stderr: %s", cmd.ProcessState, c.code, c.sig, stderr.String())
			}
			if c.code == 3 && !strings.Contains(stderr.String(), "sink is closed") {
				t.Errorf("stderr is %q", stderr.String())
			}
		})
	}
}

func TestRealPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := New(w)
	const messages = 50
	var wg sync.WaitGroup
	for i := range messages {
		wg.Go(func() {
			// More than a pipe holds, so that writes block and are taken in parts.
			m := driver.Message{DispatchKey: fmt.Sprint(i), Payload: bytes.Repeat([]byte{byte(i)}, 200_000)}
			if err := s.Deliver(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
	}
	go func() { wg.Wait(); w.Close() }()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	seen := map[string]bool{}
	for lines.Scan() {
		m := parseLine(t, lines.Bytes())
		seen[m.DispatchKey] = len(m.payload) == 200_000
	}
	if len(seen) != messages {
		t.Errorf("%d of %d messages came out", len(seen), messages)
	}
}

func FuzzLineReadsBack(f *testing.F) {
	f.Add("application/json", []byte("{\n\"a\": 1}"))
	f.Add("application/json", []byte("1,\"id\":5"))
	f.Add("text/x+json; a=b", []byte("\"\xff\n"))
	f.Fuzz(func(t *testing.T, contentType string, payload []byte) {
		text, err := appendLine(nil, driver.Message{ContentType: contentType, Payload: payload})
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
