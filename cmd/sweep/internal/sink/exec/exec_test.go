//go:build unix

package exec

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// TestMain lets this binary be the command, and the sweep that runs one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "report" {
		report(os.Args[2])
		return
	}
	if command := os.Getenv("EXEC_TEST_DELIVER"); command != "" {
		s, err := New(command, 0)
		if err != nil {
			panic(err)
		}
		fmt.Println(s.Deliver(context.Background(), driver.Delivery{}))
		return
	}
	goleak.VerifyTestMain(m)
}

// seen is what a command got to see.
type seen struct {
	Args    []string
	Environ []string
	SHA256  string
}

// report writes what this process sees to a new file in dir.
func report(dir string) {
	sum := sha256.New()
	if _, err := io.Copy(sum, os.Stdin); err != nil {
		panic(err)
	}
	text, err := json.Marshal(seen{os.Args, os.Environ(), hex.EncodeToString(sum.Sum(nil))})
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(dir, os.Getenv("FAIRCLAIM_ID")), text, 0o600); err != nil {
		panic(err)
	}
}

func newSink(t *testing.T, command string, timeout time.Duration) *Sink {
	t.Helper()
	s, err := New(command, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shell is the sink for a script, with $1 a directory of the test's own.
func shell(t *testing.T, script string, timeout time.Duration) (s *Sink, dir string) {
	t.Helper()
	dir = t.TempDir()
	return newSink(t, "sh -c "+quote(script)+" sh "+quote(dir), timeout), dir
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func TestExitCodes(t *testing.T) {
	for _, c := range []struct{ script, want, says string }{
		{"exit 0", sinktest.Done, ""},
		{"exit 1", sinktest.Retry, "exec:sh: exit status 1"},
		{"echo out; echo err >&2; exit 2", sinktest.Retry, "exit status 2: out err"},
		{"echo 'no such user'; exit 65", sinktest.Failed, "exit status 65: no such user"},
		{"exit 64", sinktest.Retry, "exit status 64"},
		{"exit 75", sinktest.Retry, "exit status 75"},
		{"exit 127", sinktest.Retry, "exit status 127"},
		{"no-such-command-anywhere", sinktest.Retry, "exit status 127: "},
		{"kill -KILL $$", sinktest.Retry, "signal: killed"},
		{"kill -TERM $$", sinktest.Retry, "signal: terminated"},
		{"kill -KILL 0", sinktest.Retry, "signal: killed"},
		{"echo x; exit 0", sinktest.Done, ""},
	} {
		t.Run(c.script, func(t *testing.T) {
			t.Parallel()
			s, _ := shell(t, c.script, 0)
			err := s.Deliver(t.Context(), driver.Delivery{Payload: []byte("p")})
			if got := sinktest.Outcome(err); got != c.want {
				t.Fatalf("%s (%v), want %s", got, err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %q, want %q in it", err, c.says)
			}
		})
	}
}

// deliverAndSee delivers messages to a sink whose command reports what it saw.
func deliverAndSee(t *testing.T, messages []driver.Delivery) map[int64]seen {
	t.Helper()
	t.Setenv("GORACE", "atexit_sleep_ms=0") // under -race a process sleeps a second before it exits
	dir := t.TempDir()
	s := newSink(t, quote(os.Args[0])+" report "+quote(dir), time.Minute)
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for _, m := range messages {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.Deliver(t.Context(), m); err != nil {
				t.Errorf("%d %q: %v", m.ID, m.Namespace, err)
			}
		})
	}
	wg.Wait()
	all := map[int64]seen{}
	for _, m := range messages {
		text, err := os.ReadFile(filepath.Join(dir, strconv.FormatInt(m.ID, 10)))
		if err != nil {
			t.Fatal(err)
		}
		var one seen
		if err := json.Unmarshal(text, &one); err != nil {
			t.Fatal(err)
		}
		if len(one.Args) != 3 {
			t.Errorf("message %d changed the arguments: %q", m.ID, one.Args)
		}
		sum := sha256.Sum256(m.Payload)
		if one.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("message %d: the payload of %d bytes did not arrive as it was", m.ID, len(m.Payload))
		}
		all[m.ID] = one
	}
	return all
}

func TestCommandSeesMessage(t *testing.T) {
	for name, value := range map[string]string{
		"DATABASE_URL": "postgres://u:hunter2@h/d", "PGPASSWORD": "hunter2", "PGPASSFILE": "hunter2",
		"FAIRCLAIM_SECRET": "hunter2", "SWEEP_TOKEN": "hunter2", "KEPT": "yes",
	} {
		t.Setenv(name, value)
	}
	m := driver.Delivery{
		ID: 42, ClaimToken: 4711, Namespace: "acme", TaskQueue: "mail", DispatchKey: "k-1", Attempt: 3,
		ContentType: "text/plain", Headers: map[string]string{"b": "<2>", "a": "\x00"}, Payload: []byte("hello\x00\xff"),
		CreatedAt: time.UnixMicro(1), DueAt: time.UnixMicro(2_000_000), ClaimedAt: time.UnixMicro(3_500_000),
	}
	environ := deliverAndSee(t, []driver.Delivery{m})[42].Environ
	have := strings.Join(environ, "\n") + "\n"
	for _, want := range []string{
		"FAIRCLAIM_ID=42", "FAIRCLAIM_NAMESPACE=acme", "FAIRCLAIM_TASK_QUEUE=mail", "FAIRCLAIM_DISPATCH_KEY=k-1",
		"FAIRCLAIM_CREATED_AT=1970-01-01T00:00:00.000001Z", "FAIRCLAIM_DUE_AT=1970-01-01T00:00:02.000000Z",
		"FAIRCLAIM_CLAIMED_AT=1970-01-01T00:00:03.500000Z", "FAIRCLAIM_ATTEMPT=3", "FAIRCLAIM_CONTENT_TYPE=text/plain", "KEPT=yes",
		`FAIRCLAIM_HEADERS={"a":"\u0000","b":"\u003c2\u003e"}`,
	} {
		if !strings.Contains(have, want+"\n") {
			t.Errorf("no %s in the environment", want)
		}
	}
	for _, secret := range []string{"hunter2", "4711", "DATABASE_URL", "PGPASS"} {
		if strings.Contains(have, secret) {
			t.Errorf("%s in the environment", secret)
		}
	}
}

func TestAwkwardNames(t *testing.T) {
	var messages []driver.Delivery
	for i, name := range sinktest.Awkward() {
		messages = append(messages, driver.Delivery{
			ID: int64(i), Namespace: name, TaskQueue: name, DispatchKey: name, ContentType: name,
			Headers: map[string]string{name: name}, Payload: []byte(name),
		})
	}
	for id, one := range deliverAndSee(t, messages) {
		name := messages[id].Namespace
		for _, variable := range []string{"NAMESPACE", "TASK_QUEUE", "DISPATCH_KEY", "CONTENT_TYPE"} {
			if !slices.Contains(one.Environ, "FAIRCLAIM_"+variable+"="+name) {
				t.Errorf("FAIRCLAIM_%s is not %q", variable, name)
			}
		}
	}
}

func TestPayloadSizes(t *testing.T) {
	var messages []driver.Delivery
	for i, size := range []int{0, 1, 4096, 65536, 65537, 1 << 20, 8 << 20} {
		messages = append(messages, driver.Delivery{ID: int64(i), Payload: bytes.Repeat([]byte{byte(i), '\n'}, size)[:size]})
	}
	deliverAndSee(t, messages)
}

func TestRealWebhooks(t *testing.T) {
	deliverAndSee(t, sinktest.Webhooks(t))
}

func TestCommandThatDoesNotReadItsInput(t *testing.T) {
	for _, script := range []string{"exit 0", "exec <&-; exit 0", "head -c 10 >/dev/null"} {
		s, _ := shell(t, script, time.Minute)
		if err := s.Deliver(t.Context(), driver.Delivery{Payload: make([]byte, 1<<20)}); err != nil {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func TestOutputIsCut(t *testing.T) {
	const noise = "yes 0123456789012345678901234567890123456789 | head -c 20000000"
	for _, c := range []struct{ name, script string }{
		{"20 MB on stderr", "echo the beginning; " + noise + " >&2; (echo; echo the end) >&2; exit 1"},
		{"20 MB on stdout", "echo the beginning; " + noise + "; echo; echo the end; exit 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := shell(t, c.script, time.Minute)
			err := s.Deliver(t.Context(), driver.Delivery{})
			if err == nil || !strings.Contains(err.Error(), ": the beginning ") || !strings.HasSuffix(err.Error(), " the end") {
				t.Fatalf("want beginning and end of the output, got %.200q", fmt.Sprint(err))
			}
			if n := len(err.Error()); n > maxOutput+200 {
				t.Errorf("the error is %d bytes long", n)
			}
		})
	}
	t.Run("success drains all", func(t *testing.T) {
		s, _ := shell(t, noise+"; exit 0", time.Minute)
		if err := s.Deliver(t.Context(), driver.Delivery{}); err != nil {
			t.Error(err)
		}
	})
}

func TestOutputIsCleaned(t *testing.T) {
	s, _ := shell(t, `printf 'a\033[2J\000\377\n\nb'; exit 1`, 0)
	err := s.Deliver(t.Context(), driver.Delivery{})
	if want := "exec:sh: exit status 1: a [2J \uFFFD b"; err == nil || err.Error() != want {
		t.Errorf("error is %q, want %q", err, want)
	}
}

func TestContextThatHasEnded(t *testing.T) {
	s, dir := shell(t, `touch "$1/ran"`, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Deliver(ctx, driver.Delivery{}); sinktest.Outcome(err) != sinktest.Undelivered {
		t.Errorf("%s (%v), want %s", sinktest.Outcome(err), err, sinktest.Undelivered)
	}
	if !s.failing.IsZero() {
		t.Error("it counts as a failed start")
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command ran")
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ command, says string }{
		{"", "no command"},
		{"  ", "no command"},
		{"''", "no command"},
		{"no-such-command-anywhere --token hunter2", `exec: command "no-such-command-anywhere": executable file not found in $PATH; give`},
		{"/no/such/file hunter2", "no such file"},
		{quote(plain) + " hunter2", "permission denied"},
		{quote(dir), "directory"},
		{"cat > hunter2", "exec:sh -c"},
	} {
		s, err := New(c.command, 0)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New(%q) = %v, %v, want an error with %q", c.command, s, err, c.says)
		}
	}
}

// INV-10: a node that has lost its command charges no attempt, does not spin, and
// gives up for good after a while.
func TestCommandThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "command")
	install := func() {
		if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	install()
	s := newSink(t, quote(path), 0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		deliver := func(want string, held time.Duration) {
			t.Helper()
			began := time.Now()
			err := s.Deliver(t.Context(), driver.Delivery{})
			if got := sinktest.Outcome(err); got != want || !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%s (%v), want %s", got, err, want)
			}
			if got := time.Since(began); got != held {
				t.Errorf("held for %v, want %v", got, held)
			}
		}
		for range int(startPatience / startPause) {
			deliver(sinktest.Undelivered, startPause)
		}
		deliver(sinktest.Closed, 0)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.failing = time.Time{}
		began := time.Now()
		if err := s.Deliver(ctx, driver.Delivery{}); sinktest.Outcome(err) != sinktest.Undelivered {
			t.Errorf("%s (%v), want %s", sinktest.Outcome(err), err, sinktest.Undelivered)
		}
		if held := time.Since(began); held != time.Second {
			t.Errorf("held for %v, though the context ended after 1s", held)
		}
	})

	install()
	if err := s.Deliver(t.Context(), driver.Delivery{}); err != nil {
		t.Fatal(err)
	}
	if !s.failing.IsZero() {
		t.Error("a good start does not end the row of failed ones")
	}
}

func TestScriptWithoutInterpreterLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "command")
	if err := os.WriteFile(path, []byte("exit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newSink(t, quote(path), 0)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := s.Deliver(ctx, driver.Delivery{})
	if sinktest.Outcome(err) != sinktest.Undelivered || !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("%s (%v), want undelivered, ENOEXEC", sinktest.Outcome(err), err)
	}
}

func TestHeadersTooLargeForTheEnvironment(t *testing.T) {
	s, _ := shell(t, "exit 0", 0)
	err := s.Deliver(t.Context(), driver.Delivery{Headers: map[string]string{"h": strings.Repeat("x", 200_000)}})
	if sinktest.Outcome(err) != sinktest.Failed || len(err.Error()) > 300 {
		t.Errorf("%s (%.300v)", sinktest.Outcome(err), err)
	}
	if err := s.Deliver(t.Context(), driver.Delivery{Headers: map[string]string{"h": strings.Repeat("x", 120_000)}}); err != nil {
		t.Error(err)
	}
	for i := range 20 { // each fits, all together do not
		s.environ = append(s.environ, fmt.Sprintf("LARGE%d=%s", i, strings.Repeat("x", 120_000)))
	}
	err = s.Deliver(t.Context(), driver.Delivery{})
	if sinktest.Outcome(err) != sinktest.Retry || !errors.Is(err, syscall.E2BIG) {
		t.Errorf("%s (%.300v), want retry, E2BIG", sinktest.Outcome(err), err)
	}
}

func TestNameHidesArguments(t *testing.T) {
	s := newSink(t, "sh -c 'exit 1' --token hunter2", 0)
	if got := s.String(); got != "exec:sh" {
		t.Errorf("String() = %q", got)
	}
	if err := s.Deliver(t.Context(), driver.Delivery{}); strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error shows arguments: %v", err)
	}
}
