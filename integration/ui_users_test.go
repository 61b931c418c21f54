package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// usersFile writes a file of users with their passwords.
func usersFile(t *testing.T, pairs ...string) string {
	t.Helper()
	var lines strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		hash, err := bcrypt.GenerateFromPassword([]byte(pairs[i+1]), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s:%s\n", pairs[i], hash)
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every answer has the headers that keep browsers from guessing, keeping and loading; only GET and HEAD read, only POST acts.
func TestUIHeaders(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	ui := serveUI(t, db.DSN, "--actions")
	for _, path := range []string{"/", "/tenant?name=a", "/failed", "/message?key=k", "/nodes", "/style.css", "/script.js", "/icon.svg", "/none", "/tenant?name="} {
		for _, method := range []string{"GET", "HEAD"} {
			answer, body := ui.send(t, method, path, nil, nil)
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
				"X-Content-Type-Options":  "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
			} {
				if got := answer.Header.Get(name); got != want {
					t.Errorf("%s %s: %s is %q, want %q", method, path, name, got, want)
				}
			}
			if method == "HEAD" && body != "" {
				t.Errorf("HEAD %s has a body", path)
			}
			if path != "/icon.svg" { // its name of a language
				lacks(t, path, body, "style=", "onclick", "<style", "javascript:", "http://", "https://")
			}
		}
		for _, method := range []string{"PUT", "DELETE", "PATCH", "POST"} {
			if answer, _ := ui.send(t, method, path, nil, nil); answer.StatusCode != http.StatusMethodNotAllowed && answer.StatusCode != http.StatusNotFound {
				t.Errorf("%s %s answers %d", method, path, answer.StatusCode)
			}
		}
	}
	for _, path := range []string{"/pause", "/resume", "/quota", "/message/redrive", "/message/cancel", "/message/retry", "/failed/stop", "/nodes/check"} {
		if answer, _ := ui.send(t, "GET", path, nil, nil); answer.StatusCode != http.StatusMethodNotAllowed && answer.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s answers %d", path, answer.StatusCode)
		}
	}
	// From other sites nothing is done, and names that lead here are not answered.
	for _, header := range []http.Header{
		{"Sec-Fetch-Site": {"cross-site"}}, {"Sec-Fetch-Site": {"same-site"}}, {"Origin": {"http://evil.example"}}, {"Origin": {"null"}},
	} {
		if answer, body := ui.send(t, "POST", "/pause", formOf("namespace", "a"), header); answer.StatusCode != http.StatusForbidden {
			t.Errorf("POST with %v answers %d: %s", header, answer.StatusCode, textOf(body))
		}
	}
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example", ""} {
		if host == "" {
			continue
		}
		if answer, _ := ui.send(t, "GET", "/", nil, http.Header{"Host": {host}}); answer.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("as %q it answers %d", host, answer.StatusCode)
		}
	}
	for _, host := range []string{"localhost", "localhost:1234", "127.0.0.1", "127.1.2.3:80", "[::1]:80"} {
		if answer, _ := ui.send(t, "GET", "/", nil, http.Header{"Host": {host}}); answer.StatusCode != http.StatusOK {
			t.Errorf("as %q it answers %d", host, answer.StatusCode)
		}
	}
	if n := one[int](t, db.Pool, "select count(*)::int from outbox.pauses"); n != 0 {
		t.Errorf("%d pauses were made", n)
	}
}

// With a file of users nobody comes in without a name and a password; a change of the file counts at once; hashes
// and passwords stand in no output.
func TestUIUsers(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	path := usersFile(t, "alice", "s3cret-a", "bob:plain", "x")
	sweepFails(t, db.DSN, 2, []string{"ui", "--users", path}, "line 2", "bcrypt")
	path = usersFile(t, "alice", "s3cret-a", "bob", "s3cret-b")
	ui := serveUI(t, db.DSN, "--users", path, "--listen", "0.0.0.0:0")
	ui.url = strings.Replace(ui.url, "0.0.0.0", "127.0.0.1", 1)
	ui.url = strings.Replace(ui.url, "[::]", "127.0.0.1", 1)
	for _, try := range []struct {
		user, password string
		want           int
	}{
		{"", "", 401}, {"alice", "", 401}, {"alice", "s3cret-b", 401}, {"eve", "s3cret-a", 401}, {"alice", "s3cret-a", 200}, {"bob", "s3cret-b", 200}, {"alice", "s3cret-a", 200},
	} {
		ui.user, ui.password = try.user, try.password
		for _, path := range []string{"/", "/style.css", "/none"} {
			answer, _ := ui.send(t, "GET", path, nil, nil)
			if ok := answer.StatusCode != 401; ok != (try.want == 200) {
				t.Errorf("%v at %s: %d, want %d", try, path, answer.StatusCode, try.want)
			}
			if try.want == 401 && !strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Basic ") {
				t.Error("the browser is not told to ask for a password")
			}
		}
	}
	ui.user, ui.password = "alice", "s3cret-a"
	wantTexts(t, "the foot", ui.page(t, "/"), "You are alice")
	time.Sleep(10 * time.Millisecond) // the time of the file changes
	other, err := os.ReadFile(usersFile(t, "carol", "s3cret-c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, other, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alice is out", func() bool { a, _ := ui.send(t, "GET", "/", nil, nil); return a.StatusCode == 401 })
	ui.user, ui.password = "carol", "s3cret-c"
	ui.page(t, "/")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody is let in", func() bool { a, _ := ui.send(t, "GET", "/", nil, nil); return a.StatusCode == 401 })
	eventually(t, "the log says why", func() bool { return strings.Contains(ui.log.String(), "event=ui_users_unreadable") })
	lacks(t, "the log", ui.log.String(), "s3cret", "$2a$", db.Pool.Config().ConnConfig.Password)
	wantTexts(t, "the log", ui.log.String(), "event=ui_plain", "event=ui_denied user=alice", "event=ui_users_unreadable")
}

// The database role is the second lock: what it may not do is said in words.
func TestUIRights(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.enqueue('a', 'q', 'k', '')`)
	worker := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", worker.Name)
	ui := serveUI(t, worker.DSN, "--actions")
	for _, path := range []string{"/", "/tenant?name=a", "/failed", "/message?key=k", "/nodes"} {
		answer, body := ui.send(t, "GET", path, nil, nil)
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("GET %s answers %d", path, answer.StatusCode)
		}
		wantTexts(t, path, textOf(body), "The database refuses", worker.Name, "permission denied", "grant_operator")
	}
	answer, body := ui.send(t, "POST", "/pause", formOf("namespace", "a"), nil)
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("POST /pause answers %d", answer.StatusCode)
	}
	wantTexts(t, "/pause", textOf(body), "The database refuses", "permission denied for function pause")
}
