package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockEnv moves the wall clock of a sweep that wrongClockBinary has built by so many
// seconds.
const clockEnv = "FAIRCLAIM_TEST_CLOCK"

// wrongClockBinary builds sweep as it is, upon a standard library whose time.Now is off by
// what the environment says: every package sees the wrong wall clock, as on a machine
// that has one. (A real one cannot be had without setting the clock for all: Linux has no
// namespace for it, and Go asks no C library.)
func wrongClockBinary(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const reading = "sec, nsec, mono := runtimeNow()\n"
	head, tail, ok := strings.Cut(string(text), "func Now() Time {\n\t"+reading)
	if !ok {
		t.Fatalf("time.Now of this Go does not begin with %q: look at how it reads the clock now", reading)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for name, text := range map[string]string{
		"time.go": head + "func Now() Time {\n\t" + reading + "\tsec += wrongBy\n" + tail,
		"wrong.go": `package time

import "syscall"

var wrongBy = func() (by int64) {
	text, _ := syscall.Getenv("` + clockEnv + `")
	for _, c := range []byte(text) {
		if c != '-' {
			by = 10*by + int64(c-'0')
		}
	}
	if text != "" && text[0] == '-' {
		by = -by
	}
	return by
}()
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(source, name)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "sweep")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, "github.com/fairclaim/fairclaim/cmd/sweep")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build sweep: %v\n%s", err, out)
	}
	return binary
}

// INV-15: nodes whose clocks are a quarter of an hour ahead and behind, and whose time
// zones change their clocks, do what one with a right clock does: no message early, no
// lease too short or too long, and what a killed one held is back when its lease is over.
func TestClocksOfNodesAreWrong(t *testing.T) {
	t.Parallel()
	if os.Getenv("FAIRCLAIM_CI") == "" {
		t.Skip("it builds the standard library anew, which takes a minute or more: FAIRCLAIM_CI=1 runs it")
	}
	binary := wrongClockBinary(t)
	b := newBadDay(t, pg.New(t))
	const quarter = 15 * time.Minute
	node := func(name string, off time.Duration, zone string) *sweepProcess {
		return b.nodeOf(binary, name, b.db.DSN, []string{fmt.Sprintf("%s=%d", clockEnv, int(off.Seconds())), "TZ=" + zone})
	}
	ahead := node("ahead", quarter, "America/New_York")
	behind := node("behind", -quarter, "Australia/Lord_Howe")
	for _, n := range []*sweepProcess{ahead, behind} {
		off := quarter
		if n == behind {
			off = -quarter
		}
		eventually(t, n.name+" has started", func() bool { return strings.Contains(n.log.String(), "msg=sweeping") })
		stamp, _, _ := strings.Cut(strings.TrimPrefix(n.log.String(), "time="), " ")
		at, err := time.Parse(time.RFC3339, stamp)
		if d := time.Until(at) - off; err != nil || d.Abs() > 2*time.Minute {
			t.Fatalf("the clock of %s is off by %v, %v; this test shows nothing", n.name, time.Until(at), err)
		}
	}
	await(t, b.db.Pool, "select count(*) = 2 from outbox.nodes where live")
	const later = "10 min" // one clock says that these are due, the other that they will be for longer
	run(t, b.db.Pool, "select outbox.enqueue('ns0', 'q', 'later' || i, '', delay => $1::interval) from generate_series(1, 20) as i", later)
	stop := b.feed()
	eventually(t, "both work", func() bool { return b.hooks.from("ahead") > 100 && b.hooks.from("behind") > 100 })
	stop()
	eventually(t, "all that is due is settled", func() bool {
		return one[int](t, b.db.Pool, "select count(*) from outbox.settled") == len(b.keys)
	})
	if n := one[int](t, b.db.Pool, "select count(*) from outbox.pending where attempt = 0"); n != 20 {
		t.Errorf("%d of 20 messages wait that are due in %s", n, later)
	}
	if n := one[int](t, b.db.Pool, "select count(*) from outbox.settled where attempts > 1 or settled_at not between $1 and clock_timestamp()",
		one[time.Time](t, b.db.Pool, "select min(created_at) from outbox.message")); n != 0 {
		t.Errorf("%d messages were tried twice, or settled at another time than now", n)
	}

	b.hooks.hold("ahead")
	b.hooks.hold("behind")
	claimed := map[string]int{"ahead": b.hooks.from("ahead"), "behind": b.hooks.from("behind")}
	eventually(t, "both have some", func() bool {
		b.put(t.Context(), 1)
		return b.hooks.from("ahead") > claimed["ahead"] && b.hooks.from("behind") > claimed["behind"]
	})
	wrong := list[string](t, b.db.Pool, `select c.claimed_by || ' ' || (c.lease_until - clock_timestamp()) from outbox.claimed as c
where c.lease_until - clock_timestamp() not between '-30 s' and '2.1 s'`)
	if len(wrong) > 0 {
		t.Errorf("leases that are not of two seconds: %v", wrong)
	}
	b.hooks.let("ahead")
	b.hooks.let("behind")
	eventually(t, "all that is due is settled", func() bool {
		return one[int](t, b.db.Pool, "select count(*) from outbox.settled") == len(b.keys)
	})
	ahead.stop(t)
	b.hooks.hold("behind")
	b.put(t.Context(), 1)
	eventually(t, "it has all", func() bool { return one[int](t, b.db.Pool, "select count(*) from outbox.claimed") == 4 })
	behind.signal(t, 9)
	again := node("again", quarter, "UTC")
	eventually(t, "all is settled", func() bool {
		return one[int](t, b.db.Pool, "select count(*) from outbox.settled") == len(b.keys)
	})
	again.stop(t)
	run(t, b.db.Pool, "delete from outbox.message where dispatch_key like 'later%'")
	run(t, b.db.Pool, "delete from outbox.pending")
	b.account(len(b.keys), 0)
}
