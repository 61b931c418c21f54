package ui

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// usersOf is a file of users whose passwords are their names in capitals, with the cost of each.
func usersOf(t *testing.T, costs map[string]int) *Users {
	t.Helper()
	var lines strings.Builder
	for name, cost := range costs {
		hash, err := bcrypt.GenerateFromPassword([]byte(strings.ToUpper(name)), cost)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s:%s\n", name, hash)
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := ReadUsers(path)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Many who guess passwords take nothing from a user whose password has been right before: neither his turn nor his
// slot. Those who would be too many are turned away at once, and those who wait after a bounded time.
func TestGuessesShutNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &Server{
			Options: Options{Users: usersOf(t, map[string]int{"alice": 4, "bob": 5}), Log: slog.New(slog.NewTextHandler(&log, nil))},
			slots:   make(chan struct{}, maxRequests),
		}
		h := s.handler()
		ask := func(name, password string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/icon.svg", nil)
			r.SetBasicAuth(name, password)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		if got := ask("alice", "ALICE"); got.Code != http.StatusOK {
			t.Fatalf("alice gets %d", got.Code)
		}
		for range maxCompared { // comparisons that do not end
			s.Users.turn <- struct{}{}
		}
		const guesses = 64
		answers := make(chan *httptest.ResponseRecorder, guesses)
		for range guesses {
			go func() { answers <- ask("alice", "wr0ng") }()
		}
		synctest.Wait() // no time has passed
		if got := len(answers); got != guesses-maxAsked {
			t.Errorf("%d of %d are turned away at once, want all but %d", got, guesses, maxAsked)
		}
		began := time.Now()
		if got := ask("alice", "ALICE"); got.Code != http.StatusOK {
			t.Errorf("alice, who was in before, gets %d", got.Code)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("alice, who was in before, waited %v", waited)
		}
		for range guesses {
			got := <-answers
			if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") == "" {
				t.Errorf("a guess gets %d, with Retry-After %q", got.Code, got.Header().Get("Retry-After"))
			}
		}
		if waited := time.Since(began); waited != maxAskTime {
			t.Errorf("the last guess waited %v, want %v", waited, maxAskTime)
		}
		for range maxCompared {
			<-s.Users.turn
		}
		if len(s.Users.ask) != 0 {
			t.Errorf("%d still wait", len(s.Users.ask))
		}
		if got := ask("bob", "BOB"); got.Code != http.StatusOK {
			t.Errorf("bob gets %d afterwards", got.Code)
		}
		if got := ask("bob", "wr0ng"); got.Code != http.StatusUnauthorized {
			t.Errorf("a wrong password gets %d afterwards", got.Code)
		}
		for _, secret := range []string{"wr0ng", "ALICE", "BOB", "$2a$"} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log has %q:\n%s", secret, log.String())
			}
		}
	})
}

// A wrong password takes as long whoever's it is, a stranger's too: the time tells nobody which names there are.
func TestWrongPasswordsTakeAsLong(t *testing.T) {
	const cost = 9
	u := usersOf(t, map[string]int{"cheap": 4, "dear": cost})
	used := map[string]time.Duration{}
	for _, name := range []string{"cheap", "dear", "stranger"} {
		before := cpu(t)
		if ok, err := u.allow(t.Context(), name, "wrong"); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
		used[name] = cpu(t) - before
	}
	for _, name := range []string{"cheap", "stranger"} {
		if ratio := float64(used[name]) / float64(used["dear"]); ratio < 0.25 || ratio > 4 {
			t.Errorf("a wrong password of %s uses %.2f times as much CPU time as that of the dearest hash: %v", name, ratio, used)
		}
	}
	for is := bcrypt.MinCost; is <= maxCost; is++ {
		if got, err := bcrypt.Cost(nobody(is)); got != is || err != nil {
			t.Errorf("the hash of nobody costs %d, want %d: %v", got, is, err)
		}
	}
}

// cpu is the CPU time that this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
