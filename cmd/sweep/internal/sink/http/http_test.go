package http

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server for the test.
func serve(t *testing.T, handler nethttp.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

func newSink(t *testing.T, rawURL string, timeout time.Duration) *Sink {
	t.Helper()
	s, err := New(rawURL, timeout, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// listen answers every connection to a raw TCP server with answer.
func listen(t *testing.T, answer func(c net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				answer(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// check fails the test if err is another outcome or lacks a text.
func check(t *testing.T, err error, want, says string) {
	t.Helper()
	if got := sinktest.Outcome(err); got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
	if says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
		t.Errorf("error is %v, want %q in it", err, says)
	}
}

func TestRequest(t *testing.T) {
	var got *nethttp.Request
	var body []byte
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	raw := strings.Replace(server.URL, "http://", "http://us%40er:p%3Aw@", 1) + "/hooks/{namespace}/{task_queue}?key=s3cret&ns={namespace}"
	err := newSink(t, raw, 0).Deliver(t.Context(), driver.Delivery{
		Namespace: "ac/me", TaskQueue: "mail", DispatchKey: "k é", Attempt: 2, ContentType: "text/plain; charset=utf-8",
		Headers: map[string]string{"X-Trace": "1", "Authorization": "forged"}, Payload: []byte("hello\x00\r\n"),
		CreatedAt: time.UnixMicro(1),
	})
	check(t, err, sinktest.Done, "")
	if got.Method != "POST" || got.RequestURI != "/hooks/ac%2Fme/mail?key=s3cret&ns=ac%2Fme" {
		t.Errorf("%s %s", got.Method, got.RequestURI)
	}
	if user, password, _ := got.BasicAuth(); user != "us@er" || password != "p:w" {
		t.Errorf("credentials are %q, %q", user, password)
	}
	if string(body) != "hello\x00\r\n" || got.ContentLength != 8 || got.TransferEncoding != nil {
		t.Errorf("body %q, length %d, coding %v", body, got.ContentLength, got.TransferEncoding)
	}
	for field, want := range map[string]string{
		"Content-Type": "text/plain; charset=utf-8", "Idempotency-Key": "k%20%C3%A9", "Fairclaim-Attempt": "2",
		"Fairclaim-Created-At": "1970-01-01T00:00:00.000001Z",
		"X-Trace":              "1", "User-Agent": "fairclaim", "Accept-Encoding": "",
	} {
		if got.Header.Get(field) != want {
			t.Errorf("%s is %q, want %q", field, got.Header.Get(field), want)
		}
	}
}

// Names, keys and headers that are made to break out of their place arrive whole
// or not at all, and add nothing to the request.
func TestAwkwardMessages(t *testing.T) {
	requests := make(chan *nethttp.Request, 1)
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) { requests <- r })
	inPath := newSink(t, server.URL+"/a/{namespace}/b/{task_queue}", 0)
	inQuery := newSink(t, server.URL+"/a?n={namespace}&q={task_queue}", 0)
	for _, name := range sinktest.Awkward() {
		m := driver.Delivery{
			Namespace: name, TaskQueue: name, DispatchKey: name, ContentType: name,
			Headers: map[string]string{name: "v", "X-Value": name},
		}
		common := func(r *nethttp.Request) {
			if key, err := url.PathUnescape(r.Header.Get("Idempotency-Key")); err != nil || key != name {
				t.Errorf("key %q arrived as %q, %v", name, key, err)
			}
			if r.Header.Get("X-Injected") != "" || r.Host != strings.TrimPrefix(server.URL, "http://") {
				t.Errorf("%q injected something: %v", name, r.Header)
			}
		}

		check(t, inQuery.Deliver(t.Context(), m), sinktest.Done, "")
		r := <-requests
		common(r)
		if q := r.URL.Query(); q.Get("n") != name || q.Get("q") != name || len(q) != 2 {
			t.Errorf("%q arrived as %v", name, q)
		}

		err := inPath.Deliver(t.Context(), m)
		if sinktest.Outcome(err) == sinktest.Failed && strings.Contains(err.Error(), "segment, which servers resolve") && strings.Contains(name, ".") {
			continue
		}
		check(t, err, sinktest.Done, "")
		r = <-requests
		common(r)
		segments := strings.Split(r.URL.EscapedPath(), "/")
		if len(segments) != 5 {
			t.Errorf("%q made the path %s", name, r.URL.EscapedPath())
			continue
		}
		for _, i := range []int{2, 4} {
			if s, err := url.PathUnescape(segments[i]); err != nil || s != name {
				t.Errorf("%q arrived as %q, %v", name, s, err)
			}
		}
	}
}

func TestPayloadSizes(t *testing.T) {
	var got []byte
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) { got, _ = io.ReadAll(r.Body) })
	s := newSink(t, server.URL, 0)
	for _, size := range []int{0, 1, 1 << 20, 8 << 20} {
		payload := bytes.Repeat([]byte{0xff}, size)
		check(t, s.Deliver(t.Context(), driver.Delivery{Payload: payload}), sinktest.Done, "")
		if !bytes.Equal(got, payload) {
			t.Errorf("%d bytes arrived as %d", size, len(got))
		}
	}
}

func TestRealWebhooks(t *testing.T) {
	var mu sync.Mutex
	got := map[string][]byte{}
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.Header.Get("Idempotency-Key")+" "+r.URL.Path+" "+r.Header.Get("X-GitHub-Event")] = body
	})
	s := newSink(t, server.URL+"/{namespace}/{task_queue}", 0)
	messages := sinktest.Webhooks(t)
	for _, m := range messages {
		check(t, s.Deliver(t.Context(), m), sinktest.Done, "")
	}
	for _, m := range messages {
		at := m.DispatchKey + " /" + m.Namespace + "/" + m.TaskQueue + " " + m.Headers["X-GitHub-Event"]
		if !bytes.Equal(got[at], m.Payload) {
			t.Errorf("%s did not arrive as it was", at)
		}
	}
}

func TestRetryAfterOverTheWire(t *testing.T) {
	for _, c := range []struct {
		header, want string
		delay        time.Duration
	}{
		{"Retry-After: 100000\r\n", sinktest.Busy, time.Hour},
		{"Retry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n", sinktest.Busy, time.Minute},
		{"Retry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\nDate: Sun, 06 Nov 1994 08:50:38 GMT\r\n", sinktest.Busy, 0},
		{"Retry-After: 0\r\n", sinktest.Busy, 0},
		{"Retry-After: Sun, 06 Nov 2094 08:50:37 GMT\r\n", sinktest.Unreachable, -1},
		{"Retry-After: -1\r\n", sinktest.Unreachable, -1},
		{"", sinktest.Unreachable, -1},
	} {
		address := listen(t, func(c2 net.Conn) {
			_, _ = nethttp.ReadRequest(bufio.NewReader(c2))
			fmt.Fprintf(c2, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n%s\r\n", c.header)
		})
		err := newSink(t, "http://"+address, 0).Deliver(t.Context(), driver.Delivery{})
		check(t, err, c.want, "answered 503 Service Unavailable")
		if got := sinktest.Delay(err); got != c.delay {
			t.Errorf("%q: delay %v, want %v", c.header, got, c.delay)
		}
	}
}

func TestNameHidesSecrets(t *testing.T) {
	s := newSink(t, "https://user:hunter2@host.example:8443/hunter2/{namespace}?token=hunter2", 0)
	if got := s.String(); got != "https://host.example:8443" {
		t.Errorf("String() = %q", got)
	}
	if _, err := New("http://user:hunter2@h:x/", 0, 0, false); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("New: %v", err)
	}
}

func TestNamesThatTheURLCannotHold(t *testing.T) {
	server := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { t.Error("a request was sent") })
	err := newSink(t, server.URL+"/{namespace}", 0).Deliver(t.Context(), driver.Delivery{Namespace: ".."})
	check(t, err, sinktest.Failed, "put the placeholder into the query")
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if r.Header.Get("Fairclaim-Attempt") == "2" {
			w.WriteHeader(500)
		}
		_, _ = w.Write(make([]byte, maxBody-1))
	}))
	server.Config.ConnState = func(_ net.Conn, state nethttp.ConnState) {
		if state == nethttp.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	s := newSink(t, server.URL, 0)
	for i := range 20 {
		_ = s.Deliver(t.Context(), driver.Delivery{Attempt: int32(1 + i%2)})
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for 20 requests", n)
	}
}

func TestConcurrentDeliveries(t *testing.T) {
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) != r.Header.Get("Idempotency-Key") || "/"+string(body) != r.URL.Path {
			w.WriteHeader(400)
		}
	})
	s := newSink(t, server.URL+"/{namespace}", 0)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 10 {
				name := fmt.Sprintf("m%d-%d", i, j)
				check(t, s.Deliver(t.Context(), driver.Delivery{Namespace: name, DispatchKey: name, Payload: []byte(name)}), sinktest.Done, "")
			}
		})
	}
	wg.Wait()
}
