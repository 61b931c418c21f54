package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// sweepBinary returns the path of the sweep command, built once for all tests.
func sweepBinary(t testing.TB) string {
	t.Helper()
	built, err := buildSweep()
	if err != nil {
		t.Fatal(err)
	}
	return built.path
}

// builtSweep is a binary that goes when this process does.
type builtSweep struct {
	path  string
	alive io.Closer // the janitor's standard input: it ends with this process, however that ends
}

var buildSweep = sync.OnceValues(func() (b builtSweep, err error) {
	dir, err := os.MkdirTemp("", "fairclaim-sweep-")
	if err != nil {
		return b, err
	}
	janitor := exec.Command("sh", "-c", `cat; rm -rf "$0"`, dir)
	if b.alive, err = janitor.StdinPipe(); err != nil {
		return b, err
	}
	if err := janitor.Start(); err != nil {
		return b, err
	}
	b.path = filepath.Join(dir, "sweep")
	build := exec.Command("go", "build", "-o", b.path, "github.com/fairclaim/fairclaim/cmd/sweep")
	if out, err := build.CombinedOutput(); err != nil {
		return b, fmt.Errorf("build sweep: %w\n%s", err, out)
	}
	return b, nil
})

// sweepCall is a call of sweep.
type sweepCall struct {
	dsn   string // goes into DATABASE_URL
	env   []string
	stdin string
	args  []string
}

// sweepOutcome is what came of it.
type sweepOutcome struct {
	stdout, stderr string
	code           int
}

// start prepares the process, with nothing of the caller's environment that sweep
// would look at. One that hangs is killed in the end, long after a test gave it up.
func (c sweepCall) start(t testing.TB) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, sweepBinary(t), c.args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, c.env...)
	if c.dsn != "" {
		cmd.Env = append(cmd.Env, "DATABASE_URL="+c.dsn)
	}
	cmd.Stdin = strings.NewReader(c.stdin)
	return cmd
}

// do runs the command to its end.
func (c sweepCall) do(t testing.TB) sweepOutcome {
	t.Helper()
	cmd := c.start(t)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("sweep %q: %v", c.args, err)
	}
	return sweepOutcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// sweep runs a command that must succeed, and returns what it printed.
func sweep(t testing.TB, dsn string, args ...string) string {
	t.Helper()
	return sweepWith(t, dsn, "", args...)
}

// sweepWith is sweep with a standard input.
func sweepWith(t testing.TB, dsn, stdin string, args ...string) string {
	t.Helper()
	got := sweepCall{dsn: dsn, stdin: stdin, args: args}.do(t)
	if got.code != 0 {
		t.Fatalf("sweep %q: exit %d\n%s%s", args, got.code, got.stdout, got.stderr)
	}
	return got.stdout
}

// sweepFails runs a command that must end with code, and returns what it printed. Its
// standard error must hold each text.
func sweepFails(t testing.TB, dsn string, code int, args []string, texts ...string) sweepOutcome {
	t.Helper()
	got := sweepCall{dsn: dsn, args: args}.do(t)
	got.want(t, code, args, texts...)
	return got
}

func (o sweepOutcome) want(t testing.TB, code int, args []string, stderr ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("sweep %q: exit %d, want %d\n%s%s", args, o.code, code, o.stdout, o.stderr)
	}
	for _, text := range stderr {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("sweep %q: standard error lacks %q:\n%s", args, text, o.stderr)
		}
	}
}

// fromJSON reads what a command printed with --json.
func fromJSON[T any](t testing.TB, text string) (v T) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in: %s", err, text)
	}
	if dec.More() {
		t.Errorf("more than one JSON value: %s", text)
	}
	return v
}

// webhookFile is the file of real messages, or skips the test.
func webhookFile(t testing.TB) string {
	t.Helper()
	path := os.Getenv("FAIRCLAIM_WEBHOOKS")
	if path == "" {
		path = filepath.Join("..", "..", "shared", "data", "github-webhooks.ndjson")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no webhook data: set FAIRCLAIM_WEBHOOKS to an NDJSON file of messages (looked for %s)", path)
	}
	return path
}
