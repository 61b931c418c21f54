package integration

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// logField is a field of a line of a log.
var logField = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S+)`)

// eventsOf are the events in a log, by their name, with their fields.
func eventsOf(log string) map[string][]map[string]string {
	events := map[string][]map[string]string{}
	for line := range strings.Lines(log) {
		fields := map[string]string{}
		for _, m := range logField.FindAllStringSubmatch(line, -1) {
			if fields[m[1]] = m[2]; m[2][0] == '"' {
				fields[m[1]], _ = strconv.Unquote(m[2])
			}
		}
		if name := fields["event"]; name != "" {
			events[name] = append(events[name], fields)
		}
	}
	return events
}

// A node tells of dead letters, shards without an owner, a violation and a session that shuts claims out, in its log and
// as messages of the namespace that it was told, each once; and not of these messages, where they fail themselves.
func TestEvents(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	url, _ := answering(t)
	fill(t, db.Pool, "400", "q", 5, 10)
	bad := put(t, db.Pool, "200", "q", "violation")
	run(t, db.Pool, "select outbox.pause('200')")
	run(t, db.Pool, "update outbox.pending set payload_bytes = 99 where id = $1", bad)
	stranger := begin(t, db.Connect(t))
	run(t, stranger, "select pg_advisory_xact_lock(outbox.lock_class(), 15)")

	m := monitor(t, db.DSN, "--shards", "0-7", "--sink", url+"/{namespace}", "--events-namespace", "ops",
		"--route", "fairclaim.failed="+url+"/400", "--route", "fairclaim.violation="+url+"/200",
		"--route", "fairclaim.shut_out="+url+"/200", "--route", "fairclaim.unowned_shards="+url+"/200", "--survey-every", "200ms", "--check-every", "300ms")
	messages := func() (all []string) {
		return list[string](t, db.Pool, `select m.task_queue || ' ' || convert_from(m.payload, 'UTF8') from outbox.message as m where m.namespace = 'ops' order by m.id`)
	}
	count := func(name string) (n int) {
		for _, message := range messages() {
			if strings.HasPrefix(message, "fairclaim."+name+" ") {
				n++
			}
		}
		return n
	}
	due := one[int](t, db.Pool, "select count(*)::int from outbox.message as m where m.namespace = '400' and outbox.shard_of(m.dispatch_key, 16) < 8")
	if due == 0 {
		t.Fatal("no message is on the node's shards")
	}
	eventually(t, "all events are messages", func() bool {
		return count("failed") == due && count("unowned_shards") >= 1 && count("violation") >= 1 && count("shut_out") >= 1
	})
	await(t, db.Pool, `select not exists (select from outbox.messages as m where m.namespace = 'ops' and m.status in ('pending', 'claimed') and m.shard < 8)`)
	events := eventsOf(m.log.String())
	eventually(t, "some audits find the violation again", func() bool {
		events = eventsOf(m.log.String())
		return len(events["violation"]) >= 6
	})
	if n := count("violation"); n != 2 { // and the locks of the stranger
		t.Errorf("two violations have become %d messages", n)
	}
	if n := count("failed"); n != due || len(messages()) != due+count("unowned_shards")+2+count("shut_out") {
		t.Errorf("%d messages have failed, and these events are there: %q", due, messages())
	}
	if got := events["failed"][0]; got["namespace"] != "400" || got["task_queue"] != "q" || !strings.HasPrefix(got["dispatch_key"], "400-") ||
		got["attempt"] != "1" || !strings.Contains(got["error"], "400") || got["id"] == "" {
		t.Errorf("a dead letter is told as %v", got)
	}
	if got := events["unowned_shards"][0]; got["shards"] != "8" {
		t.Errorf("shards without an owner are told as %v", got)
	}
	if !slices.ContainsFunc(events["violation"], func(e map[string]string) bool {
		return e["subject"] == fmt.Sprint("message ", bad) && e["guarantee"] == "INV-13" && e["detail"] != "" && e["hint"] != ""
	}) {
		t.Errorf("violations are told as %v", events["violation"])
	}
	if got := events["shut_out"][0]; !strings.Contains(got["remedy"], "pg_terminate_backend") {
		t.Errorf("a stranger is told as %v", got)
	}
	ofOps := slices.ContainsFunc(events["failed"], func(e map[string]string) bool { return e["namespace"] == "ops" })
	failed := one[int](t, db.Pool, "select count(*)::int from outbox.settled as s where s.namespace = 'ops' and s.outcome = 'failed'")
	if ofOps != (failed > 0) {
		t.Errorf("%d events have failed themselves, and the log tells of that: %v", failed, ofOps)
	}
	m.stop(t)
}

// saying answers each request with the status that was set for the first element of its path, 200 where none was.
type saying struct {
	mu       sync.Mutex
	statuses map[string]int
	url      string
}

func newSaying(t *testing.T) *saying {
	s := &saying{statuses: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.WriteHeader(cmp.Or(s.statuses[strings.Split(r.URL.Path, "/")[1]], http.StatusOK))
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	s.url = server.URL
	return s
}

func (s *saying) says(name string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[name] = status
}

// What becomes of holds is told once, by one of two nodes, in its log and as a message: also a hold that ends
// before the next survey, and one that began while no node was up. A node that starts, and one that takes shard 0 over, tell
// nothing again. What the events themselves go to makes no message.
func TestHoldEvents(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	hooks := newSaying(t)
	run(t, db.Pool, `select outbox.configure('{"hold_after": 2, "retry_base": "1 ms", "retry_cap": "1 ms", "hold_base": "1 h", "hold_cap": "1 h", "node_lapse": "2 s"}')`)
	run(t, db.Pool, "select outbox.set_shared('hooks', false)")
	var nodes []*monitored
	start := func() *monitored {
		t.Helper()
		m := monitor(t, db.DSN, "--node", fmt.Sprint("n", len(nodes)), "--sink", hooks.url+"/{namespace}", "--events-namespace", "ops", "--survey-every", "100ms")
		nodes = append(nodes, m)
		return m
	}
	told := func(name, namespace string) (all []map[string]string) {
		for _, m := range nodes {
			for _, e := range eventsOf(m.log.String())[name] {
				if e["namespace"] == namespace {
					all = append(all, e)
				}
			}
		}
		return all
	}
	var want []string // of events, the name and the namespace
	await1 := func(name, namespace string) map[string]string {
		t.Helper()
		eventually(t, fmt.Sprintf("%s of %q is told", name, namespace), func() bool { return len(told(name, namespace)) > 0 })
		want = append(want, name+" "+namespace)
		return told(name, namespace)[0]
	}
	start()
	doomed := start()

	hooks.says("acme", http.StatusNotFound)
	fill(t, db.Pool, "acme", "hooks", 5, 10)
	held := await1("held", "acme")
	at := one[time.Time](t, db.Pool, "select d.held_since from outbox.destination as d where d.namespace = 'acme'").UTC().Format(time.RFC3339Nano)
	if held["since"] != at || held["at"] != at || held["task_queue"] != "hooks" || !strings.HasPrefix(held["by"], "n") || !strings.Contains(held["reason"], "404") {
		t.Errorf("a hold since %s is told as %v", at, held)
	}
	hooks.says("acme", http.StatusOK)
	run(t, db.Pool, "update outbox.destination set held_until = clock_timestamp() where namespace = 'acme'") // a message is tried
	if lifted := await1("lifted", "acme"); lifted["since"] != held["since"] || lifted["by"] != "" || lifted["at"] == held["at"] || lifted["reason"] != held["reason"] {
		t.Errorf("the end of %v is told as %v", held, lifted)
	}

	// Between two surveys, by an operator.
	tx := begin(t, db.Connect(t))
	run(t, tx, "select outbox.hold('between', 'q', '1 h', 'for a test')")
	run(t, tx, "select outbox.hold('between', 'q', '2 h')") // the same one
	run(t, tx, "select outbox.lift('between', 'q')")
	run(t, tx, "select outbox.lift('between', 'q')")
	commit(t, tx)
	owner := one[string](t, db.Pool, "select session_user::text")
	for _, name := range []string{"held", "lifted"} {
		if e := await1(name, "between"); e["by"] != owner || e["reason"] != "for a test" {
			t.Errorf("what %s did is told as %v", owner, e)
		}
	}

	// For too long, and for ever.
	hooks.says("down", http.StatusBadGateway)
	fill(t, db.Pool, "down", "hooks", 5, 10)
	since := await1("held", "down")["since"]
	run(t, db.Pool, "update outbox.destination set held_since = held_since - interval '6 days', held_until = clock_timestamp() where namespace = 'down'")
	if e := await1("gave_up", "down"); e["since"] >= since || !strings.Contains(e["reason"], "502") {
		t.Errorf("a hold that is given up is told as %v", e)
	}
	hooks.says("gone", http.StatusGone)
	put(t, db.Pool, "gone", "hooks", "gone")
	await1("held", "gone")
	await1("gave_up", "gone")

	// Of all, and what the events go to.
	run(t, db.Pool, "select outbox.hold(null, 'mail'), outbox.hold('ops', 'fairclaim.other'), outbox.hold(null, 'fairclaim.other')")
	await1("held", "")
	await1("held", "ops")
	eventually(t, "both routes of all are told", func() bool { return len(told("held", "")) == 2 })
	want = append(want, "held ")

	// A node takes over, none is there, and a node starts.
	_ = doomed.cmd.Process.Kill()
	<-doomed.done
	run(t, db.Pool, "select outbox.hold('take-over', 'q')")
	await1("held", "take-over")
	nodes[0].stop(t)
	run(t, db.Pool, "select outbox.hold('long ago', 'q')")
	run(t, db.Pool, "update outbox.hold_event set at = at - interval '25 h' where namespace = 'long ago'")
	run(t, db.Pool, "select outbox.hold('night', 'q')")
	start()
	if e := await1("held", "night"); e["at"] != e["since"] {
		t.Errorf("a hold that began while no node was up is told as %v", e)
	}
	nodes[2].stop(t)

	var got []string
	for _, m := range nodes {
		for name, events := range eventsOf(m.log.String()) {
			for _, e := range events {
				got = append(got, name+" "+e["namespace"])
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told are   %q\nwanted are %q", got, want)
	}
	want = slices.DeleteFunc(want, func(line string) bool { return line == "held ops" })
	want = slices.Delete(want, slices.Index(want, "held "), slices.Index(want, "held ")+1) // the other one is of 'mail'
	messages := list[string](t, db.Pool, `select x.event || ' ' || x.namespace
		from (select convert_from(m.payload, 'UTF8')::jsonb ->> 'event' as event, convert_from(m.payload, 'UTF8')::jsonb ->> 'namespace' as namespace, m.task_queue
		      from outbox.message as m where m.namespace = 'ops') as x
		where x.task_queue = 'fairclaim.' || x.event`)
	slices.Sort(messages)
	if !slices.Equal(messages, want) {
		t.Errorf("messages are %q\nwanted are   %q", messages, want)
	}
}

// However many destinations are held at one moment, a node tells of few, and how many others there are.
func TestHoldEventsOfMany(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const many = 10_000
	one[int](t, db.Pool, "select count(outbox.hold('ns' || n, 'q')) from generate_series(1, $1::int) as n", many)
	m := monitor(t, db.DSN, "--sink", "stdout", "--events-namespace", "ops", "--survey-every", "100ms")
	destinations := func() (n int) {
		for _, e := range eventsOf(m.log.String())["held"] {
			more, err := strconv.Atoi(cmp.Or(e["destinations"], "1"))
			if err != nil {
				t.Fatal(err)
			}
			n += more
		}
		return n
	}
	eventually(t, "all are told", func() bool { return destinations() >= many })
	await(t, db.Pool, "select count(*) > 0 from outbox.message as m where m.namespace = 'ops' and convert_from(m.payload, 'UTF8')::jsonb ? 'destinations'")
	m.stop(t)
	if n, lines := destinations(), len(eventsOf(m.log.String())["held"]); n != many || lines > 100 || strings.Contains(m.log.String(), "omitted") {
		t.Errorf("of %d destinations %d are told, in %d lines", many, n, lines)
	}
}

// An outbox of the version before, or one that has not given a node's role the right, does not say what becomes of holds:
// the node says so once, and surveys all the same.
func TestHoldEventsWithoutTheRight(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	run(t, db.Pool, "revoke execute on function outbox.hold_events from "+role.Name)
	m := monitor(t, role.DSN, "--sink", "stdout", "--survey-every", "50ms")
	failures := func(s scraped) float64 { return s[`fairclaim_call_failures_total{call="hold_events"}`] }
	eventually(t, "it has asked", func() bool { s, _ := m.scrape(t); return failures(s) == 1 })
	for n, call := range []string{"pause('a')", "pause('b')", "pause('c')"} {
		run(t, db.Pool, "select outbox."+call)
		eventually(t, "it surveys", func() bool { s, _ := m.scrape(t); return s.sum("fairclaim_outbox_pauses") == float64(n+1) })
	}
	if s, _ := m.scrape(t); failures(s) != 1 {
		t.Errorf("it has asked %v times", failures(s))
	}
	const says = "their events are missing"
	if log := m.log.String(); strings.Count(log, says) != 1 || !strings.Contains(log, "outbox.grant_worker") || strings.Contains(log, "cannot survey") {
		t.Errorf("the log is %s", log)
	}
	m.stop(t)
}
