package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// dockerCommand runs docker, which must succeed, and returns what it printed.
func dockerCommand(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// sweepImage builds the container image of sweep, under a tag that goes with the test.
func sweepImage(t *testing.T) string {
	t.Helper()
	if err := exec.Command("docker", "version").Run(); err != nil {
		t.Skip("no Docker engine answers: the image is not tested")
	}
	if strings.Contains(dockerCommand(t, "info", "--format", "{{.OperatingSystem}}"), "Docker Desktop") {
		t.Skip("containers of this Docker engine do not share the network of this machine")
	}
	tag := fmt.Sprintf("fairclaim-sweep-test:%x", time.Now().UnixNano())
	build := exec.Command(filepath.Join("images", "sweep"), tag)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the image: %v\n%s", err, out)
	}
	t.Cleanup(func() { dockerCommand(t, "image", "rm", "--force", tag) })
	return tag
}

// imageRun starts a container as an operator would who trusts nobody: nothing can be
// written, nothing gained.
func imageRun(t *testing.T, image, dsn string, args ...string) string {
	t.Helper()
	command := append([]string{
		"run", "--detach", "--network", "host", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--env", "DATABASE_URL=" + dsn, image,
	}, args...)
	id := dockerCommand(t, command...)
	t.Cleanup(func() { dockerCommand(t, "rm", "--force", "--volumes", id) })
	return id
}

// wantExit waits for a container's end.
func wantExit(t *testing.T, id, code string, texts ...string) {
	t.Helper()
	got := dockerCommand(t, "wait", id)
	logs := dockerCommand(t, "logs", id)
	if got != code {
		t.Errorf("exit code %s, want %s\n%s", got, code, logs)
	}
	for _, text := range texts {
		if !strings.Contains(logs, text) {
			t.Errorf("the log lacks %q:\n%s", text, logs)
		}
	}
}

// holdingServer takes posts and answers them when it is let.
type holdingServer struct {
	*httptest.Server
	begun chan string // dispatch keys
	let   func()
}

func newHoldingServer(t *testing.T) *holdingServer {
	let := make(chan struct{})
	h := &holdingServer{begun: make(chan string, 10_000), let: sync.OnceFunc(func() { close(let) })}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		h.begun <- r.Header.Get("Idempotency-Key")
		select {
		case <-let:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { h.let(); h.Close() })
	return h
}

// TestImage: sweep as process 1 of a container, as nobody, on a file system that cannot be
// written to. `docker stop` drains it within the grace period, and exit codes are those
// of the process.
func TestImage(t *testing.T) {
	t.Parallel()
	image := sweepImage(t)
	t.Run("stop finishes what is in flight", func(t *testing.T) {
		t.Parallel()
		db := pg.New(t)
		server := newHoldingServer(t)
		fill(t, db.Pool, "a", "q", 20, 10)
		id := imageRun(t, image, db.DSN, "run", "--slots", "4", "--share", "1", "--sink", server.URL)
		eventually(t, "deliveries are under way", func() bool { return len(server.begun) == 4 })
		if top := strings.Fields(dockerCommand(t, "top", id, "-eo", "pid,uid,args")); len(top) < 6 || top[4] == "0" || !strings.HasSuffix(top[5], "/sweep") {
			t.Errorf("the container runs %q, want sweep alone and not as uid 0", top)
		}
		if path := dockerCommand(t, "inspect", "--format", "{{.Path}}", id); path != "/usr/local/bin/sweep" {
			t.Errorf("process 1 is %s, want /usr/local/bin/sweep", path)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- exec.Command("docker", "stop", "--time", "60", id).Run() }()
		await(t, db.Pool, "select coalesce(bool_or(n.paused = 'draining'), false) from outbox.node as n")
		put(t, db.Pool, "a", "q", "late")
		server.let()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		wantExit(t, id, "0")
		wantOutcomes(t, db.Pool, map[string]int{"done": 20, "pending": 1})
		wantUntouched(t, db, 1)
	})
	t.Run("stop releases what hangs", func(t *testing.T) {
		t.Parallel()
		db := pg.New(t)
		server := newHoldingServer(t)
		fill(t, db.Pool, "a", "q", 20, 10)
		id := imageRun(t, image, db.DSN, "run", "--sink", server.URL)
		eventually(t, "deliveries are under way", func() bool { return len(server.begun) > 0 })
		if env := dockerCommand(t, "inspect", "--format", "{{.Config.Env}}", id); !strings.Contains(env, "SWEEP_DRAIN_TIMEOUT=8s") {
			t.Errorf("a drain does not fit into the 10 s that docker stop gives by default: %s", env)
		}
		dockerCommand(t, "stop", "--time", "30", id) // this machine may be busy
		wantExit(t, id, "0")
		wantUntouched(t, db, 20)
	})
	t.Run("kill leaves all to the lease", func(t *testing.T) {
		t.Parallel()
		db := pg.New(t)
		server := newHoldingServer(t)
		fill(t, db.Pool, "a", "q", 20, 10)
		id := imageRun(t, image, db.DSN, "run", "--sink", server.URL)
		eventually(t, "deliveries are under way", func() bool { return len(server.begun) > 0 })
		dockerCommand(t, "kill", id)
		wantExit(t, id, "137")
		expire(t, db.Pool, "a")
		again := imageRun(t, image, db.DSN, "once", "--sink", "stdout")
		wantExit(t, again, "0", "a-1", "a-20")
		wantOutcomes(t, db.Pool, map[string]int{"done": 20})
	})
	t.Run("payloads that its memory could not hold at once", func(t *testing.T) {
		t.Parallel()
		db := pg.New(t)
		server := newHoldingServer(t)
		server.let()
		fill(t, db.Pool, "large", "q", 90, 1<<20)
		for i := range 20 {
			fill(t, db.Pool, fmt.Sprint("small", i), "q", 1, 100)
		}
		id := dockerCommand(t, "run", "--detach", "--network", "host", "--memory", "64m", "--memory-swap", "64m",
			"--env", "DATABASE_URL="+db.DSN, image, "once", "--sink", server.URL)
		t.Cleanup(func() { dockerCommand(t, "rm", "--force", "--volumes", id) })
		wantExit(t, id, "0")
		wantOutcomes(t, db.Pool, map[string]int{"done": 110})
	})
	t.Run("exit codes", func(t *testing.T) {
		t.Parallel()
		wantExit(t, imageRun(t, image, "postgres://u:hunter2@127.0.0.1:1/d", "run", "--sink", "stdout"), "1", "cannot connect", "127.0.0.1:1")
		wantExit(t, imageRun(t, image, "postgres://u@127.0.0.1:1/d"), "2", "missing flags: --sink")
		wantExit(t, imageRun(t, image, "", "version"), "0", "sweep")
		wantExit(t, imageRun(t, image, "", "run", "--help"), "0", "SWEEP_DRAIN_TIMEOUT")
	})
}
