package sink

import (
	"bytes"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for _, c := range []struct{ spec, name string }{
		{"stdout", "stdout"},
		{"exec:sh -c 'exit 0' hunter2", "exec:sh"},
		{"exec: sh", "exec:sh"},
		{"http://user:hunter2@h/hunter2?a=hunter2", "http://h"},
		{"https://h:8443/{namespace}", "https://h:8443"},
		{"HTTPS://h", "https://h"},
	} {
		s, err := Parse(c.spec, Options{})
		if err != nil || s.String() != c.name {
			t.Errorf("Parse(%q) = %v, %v, want %s", c.spec, s, err, c.name)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ spec, says string }{
		{"", "no sink; use stdout, exec:COMMAND"},
		{"kafka", `unknown kind of sink "kafka"; use stdout, exec:COMMAND`},
		{"stdout:", `unknown kind of sink "stdout:..."; use stdout,`},
		{" stdout", `" stdout"`},
		{"STDOUT", `"STDOUT"; use stdout`},
		{"exec", `"exec"; use stdout, exec:COMMAND`},
		{"exec:", "no command; write exec:COMMAND"},
		{"exec:no-such-command-anywhere hunter2", `command "no-such-command-anywhere"`},
		{"exec:cat | hunter2", "exec:sh -c"},
		{"htps://user:hunter2@h", `unknown kind of sink "htps:..."`},
		{"user:hunter2@h", `"user:..."`},
		{"http:h", "begins with http:// or https://"},
		{"https:/h", "begins with http:// or https://"},
		{"https://user:hunter2@h:x/", "host or port"},
		{strings.Repeat("é", 500), "...\"; use stdout"},
		{"\x1b[31m", `"\x1b[31m"`},
	} {
		s, err := Parse(c.spec, Options{})
		if s != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Parse(%.60q) = %v, %v, want an error with %q", c.spec, s, err, c.says)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 300 {
			t.Errorf("Parse(%.60q) says %q", c.spec, err)
		}
	}
}

func TestParseRoute(t *testing.T) {
	for _, c := range []struct{ value, queue, spec string }{
		{"mail=stdout", "mail", "stdout"},
		{"mail=exec:env A=b cmd", "mail", "exec:env A=b cmd"},
		{"mail=exec:env A=exec:x", "mail", "exec:env A=exec:x"},
		{"mail=https://h/?a=b&c=http://d", "mail", "https://h/?a=b&c=http://d"},
		{"a=b=stdout", "a=b", "stdout"},
		{"a==exec:x", "a=", "exec:x"},
		{"==stdout", "=", "stdout"},
		{"stdout=stdout", "stdout", "stdout"},
		{" a b =stdout", " a b ", "stdout"},
		{"🦉/%3D\n=HTTP://h", "🦉/%3D\n", "HTTP://h"},
		{strings.Repeat("q", 512) + "=stdout", strings.Repeat("q", 512), "stdout"},
	} {
		r, err := ParseRoute(c.value)
		if err != nil || r != (Route{c.queue, c.spec}) {
			t.Errorf("ParseRoute(%.60q) = %+v, %v, want %q, %q", c.value, r, err, c.queue, c.spec)
		}
	}
	for _, c := range []struct{ value, says string }{
		{"", "is not QUEUE=SINK"},
		{"mail", `"mail" is not QUEUE=SINK`},
		{"https://user:hunter2@h", `"https:..." is not QUEUE=SINK`},
		{"=stdout", "no task queue before the '='"},
		{"mail=", `task queue "mail": no sink; use stdout`},
		{"mail=kafka:hunter2", `task queue "mail": unknown kind of sink "kafka:..."; use stdout`},
		{strings.Repeat("q", 513) + "=stdout", "has 513 bytes"},
	} {
		r, err := ParseRoute(c.value)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseRoute(%.60q) = %+v, %v, want an error with %q", c.value, r, err, c.says)
		}
	}
}

// sinkFor is how a node chooses the sink of a task queue.
func sinkFor(r *Routes, queue string) node.Sink {
	if s, ok := r.ByQueue[queue]; ok {
		return s
	}
	return r.Default
}

func TestRoutes(t *testing.T) {
	var out bytes.Buffer
	r, err := NewRoutes("stdout", []string{
		"a=exec:sh -c 'exit 65'", "b=exec:sh -c 'exit 0'", "c=exec:sh -c 'exit 65'", "d=stdout", "cafe\u0301=https://h/?x=1", "caf\u00e9=https://h/?x=2",
	}, Options{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// Queues whose specs are equal share a sink; queues whose specs differ do not, also
	// where the sinks' names are equal.
	sinks := map[string]node.Sink{}
	for _, c := range []struct{ queue, spec, name string }{
		{"other", "stdout", "stdout"},
		{"", "stdout", "stdout"},
		{"A", "stdout", "stdout"},
		{"a ", "stdout", "stdout"},
		{"d", "stdout", "stdout"},
		{"a", "exit 65", "exec:sh"},
		{"c", "exit 65", "exec:sh"},
		{"b", "exit 0", "exec:sh"},
		{"cafe\u0301", "x=1", "https://h"},
		{"caf\u00e9", "x=2", "https://h"},
	} {
		s := sinkFor(r, c.queue)
		if name := fmt.Sprint(s); name != c.name {
			t.Errorf("the sink of %q is %q, want %q", c.queue, name, c.name)
		}
		if before, ok := sinks[c.spec]; ok && before != s {
			t.Errorf("two sinks for %q", c.spec)
		}
		for spec, other := range sinks {
			if spec != c.spec && other == s {
				t.Errorf("one sink for %q and %q", spec, c.spec)
			}
		}
		sinks[c.spec] = s
	}
	if len(r.all) != len(sinks) || len(r.ByQueue) != 6 || !r.ToStdout {
		t.Errorf("%d sinks, want %d; %d queues; to stdout: %v", len(r.all), len(sinks), len(r.ByQueue), r.ToStdout)
	}
	for spec, toStdout := range map[string]bool{"exec:true": false, "https://stdout": false, "stdout": true} {
		if r, err := NewRoutes(spec, nil, Options{Stdout: &out}); err != nil || r.ToStdout != toStdout {
			t.Errorf("%s goes to stdout: %+v, %v", spec, r, err)
		}
	}
	for queue, want := range map[string]string{"a": sinktest.Failed, "b": sinktest.Done, "x": sinktest.Done} {
		if got := sinktest.Outcome(sinkFor(r, queue).Deliver(t.Context(), driver.Delivery{TaskQueue: queue})); got != want {
			t.Errorf("queue %q: %s, want %s", queue, got, want)
		}
	}
	if !strings.Contains(out.String(), `"task_queue":"x"`) || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("stdout has %q", out.String())
	}
}

func TestRoutesRefuses(t *testing.T) {
	for _, c := range []struct {
		sink   string
		routes []string
		says   string
	}{
		{"", nil, `--sink "": no sink; use`},
		{"kafka:hunter2", nil, `--sink "kafka:...": unknown kind of sink "kafka:..."`},
		{"exec:no-such-command-anywhere", nil, `--sink "exec:...": exec: command "no-such-command-anywhere"`},
		{"stdout", []string{"mail"}, `--route: "mail" is not QUEUE=SINK`},
		{"stdout", []string{"mail=stdout", "mail=stdout"}, `--route: the task queue "mail" has two sinks`},
		{"stdout", []string{"mail=http://user:hunter2@h:x"}, `--route "mail=http:...": http: the URL's host or port`},
	} {
		_, err := NewRoutes(c.sink, c.routes, Options{})
		if err == nil || !strings.HasPrefix(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("NewRoutes(%q, %q): %v, want %q first", c.sink, c.routes, err, c.says)
		}
	}
}

// The options reach the sinks.
func TestTimeouts(t *testing.T) {
	server := httptest.NewServer(nethttp.HandlerFunc(func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer server.Close()
	r, err := NewRoutes(server.URL, []string{"q=exec:sleep 60"}, Options{HTTPTimeout: 50 * time.Millisecond, ExecTimeout: 60 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for queue, says := range map[string]string{"other": "timed out after 50ms", "q": "timed out after 60ms"} {
		if err := sinkFor(r, queue).Deliver(t.Context(), driver.Delivery{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("queue %q: %v, want %q", queue, err, says)
		}
	}
}

// The real input, spread over three sinks at once.
func TestRealWebhooksOverRoutes(t *testing.T) {
	messages := sinktest.Webhooks(t)
	posted := make(chan string, len(messages))
	server := httptest.NewServer(nethttp.HandlerFunc(func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		posted <- r.Header.Get("Idempotency-Key")
	}))
	defer server.Close()
	dir := t.TempDir()
	var out bytes.Buffer
	r, err := NewRoutes("stdout", []string{
		"push=" + server.URL,
		fmt.Sprintf(`issues=exec:sh -c 'cat > "$1/$FAIRCLAIM_ID"' sh '%s'`, dir),
	}, Options{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := map[string]int{}
	for _, m := range messages {
		s := sinkFor(r, m.TaskQueue)
		name := fmt.Sprint(s)
		want[name]++
		if err := s.Deliver(t.Context(), m); err != nil {
			t.Fatalf("%s to %s: %v", m.DispatchKey, name, err)
		}
		if m.TaskQueue == "issues" {
			if got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(m.ID))); err != nil || !bytes.Equal(got, m.Payload) {
				t.Errorf("%s did not arrive as it was: %v", m.DispatchKey, err)
			}
		}
	}
	if got := bytes.Count(out.Bytes(), []byte("\n")); got != want["stdout"] || got == 0 {
		t.Errorf("%d lines for %d messages", got, want["stdout"])
	}
	if got := len(posted); got != want[server.URL] || got == 0 {
		t.Errorf("%d posts for %d messages", got, want[server.URL])
	}
	if want["exec:sh"] == 0 {
		t.Error("no message for the command")
	}
}

func FuzzParseRoute(f *testing.F) {
	for _, value := range []string{"a=b=stdout", "=stdout", "q=exec:env A=http:b", "q=kafka:x", "http://a=b"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r, err := ParseRoute(value)
		if err != nil {
			return
		}
		if r.TaskQueue+"="+r.Spec != value || r.TaskQueue == "" || len(r.TaskQueue) > maxTaskQueue {
			t.Fatalf("ParseRoute(%q) = %+v", value, r)
		}
	})
}
