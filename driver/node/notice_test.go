package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// someNotices are a notice of each kind.
func someNotices() []notice {
	it := claimed(7, "acme")
	it.reason = "boom"
	since := time.Unix(1e9, 0)
	hold := func(name Notice) driver.HoldEvent {
		return driver.HoldEvent{
			ID: 1, At: since, Event: string(name), Destination: driver.Destination{Namespace: "acme", TaskQueue: "q"}, Since: since, By: "n", Reason: "why",
		}
	}
	return []notice{
		failedNotice(it), rescuedNotice(3), (&loop{clock: func() int64 { return 1 }}).unownedNotice(4),
		violationNotice(driver.Violation{Guarantee: "INV-4", Subject: "s", Detail: "d", Hint: "h"}),
		shutOutNotice(driver.Obstacle{Session: "pid 1", Shards: []int32{1}, Remedy: "r"}, since),
		holdNotice(hold(NoticeHeld)), holdNotice(hold(NoticeLifted)), holdNotice(hold(NoticeGaveUp)),
		holdsNotice(hold(NoticeHeld), 2), holdsNotice(hold(NoticeLifted), 2), holdsNotice(hold(NoticeGaveUp), 2),
	}
}

// docs/events.md lists every notice, and the fields of each.
func TestNoticesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	documented, last := map[string][]string{}, []string(nil)
	word := regexp.MustCompile("`(\\w+)`")
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\| ([^|]*) \\|$").FindAllStringSubmatch(string(text), -1) {
		var fields []string
		for _, m := range word.FindAllStringSubmatch(row[2], -1) {
			fields = append(fields, m[1])
		}
		if row[2] == "the same" {
			fields = last
		}
		documented[row[1]], last = fields, fields
		names = append(names, row[1])
	}
	var want []string
	for _, n := range Notices() {
		want = append(want, string(n))
	}
	if !slices.Equal(names, want) {
		t.Errorf("documented are %v, want %v", names, want)
	}
	seen := map[string]map[string]bool{}
	for _, n := range someNotices() {
		if seen[string(n.name)] == nil {
			seen[string(n.name)] = map[string]bool{}
		}
		for i := 0; i < len(n.fields); i += 2 {
			seen[string(n.name)][n.fields[i].(string)] = true
		}
	}
	for name, fields := range documented {
		for _, field := range fields {
			if !seen[name][field] {
				t.Errorf("%s has no field %s", name, field)
			}
		}
		if len(seen[name]) != len(fields) {
			t.Errorf("%s has the fields %v, documented are %v", name, seen[name], fields)
		}
	}
}

// noticing is a loop that can only notify, and what it has logged.
func noticing(namespace string) (l *loop, log *bytes.Buffer, now *int64) {
	log, now = &bytes.Buffer{}, new(int64)
	*now = 1
	return &loop{
		config: Config{Node: "n", EventsNamespace: namespace}, clock: func() int64 { return *now },
		log: slog.New(slog.NewJSONHandler(log, nil)),
	}, log, now
}

// A notice is a line of the log with its name and fields, and a message with the same ones, whose key is the same
// where the same thing is noticed again, and no other's.
func TestNotify(t *testing.T) {
	l, log, _ := noticing("ops")
	all := someNotices()
	for range 2 {
		for _, n := range all {
			l.notify(n)
		}
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2*len(all) {
		t.Fatalf("%d lines, want %d", len(lines), 2*len(all))
	}
	keys := map[string]int{}
	for _, m := range l.notices.queued {
		keys[m.DispatchKey]++
		var payload map[string]any
		if err := json.Unmarshal(m.Payload, &payload); err != nil || m.Validate() != nil || m.Namespace != "ops" ||
			m.TaskQueue != fmt.Sprint("fairclaim.", payload["event"]) || !strings.HasPrefix(m.DispatchKey, "ops/fairclaim/") || payload["node"] != "n" {
			t.Errorf("a message is %+v, %v", m, err)
		}
		same := func(line string) bool {
			var fields map[string]any
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatal(err)
			}
			for name, value := range payload {
				if name != "node" && fmt.Sprint(fields[name]) != fmt.Sprint(value) {
					return false
				}
			}
			return true
		}
		if !slices.ContainsFunc(lines, same) {
			t.Errorf("no line has what the message %s has", m.Payload)
		}
	}
	if len(keys) != len(all)-1 || len(l.notices.queued) != 2*(len(all)-1) { // that of a rescue is no message
		t.Errorf("%d keys of %d messages, want %d of twice as many", len(keys), len(l.notices.queued), len(all)-1)
	}
}

// A notice about a message of the namespace of the notices becomes none; a long namespace still fits.
func TestNotifyMakesNoLoop(t *testing.T) {
	l, log, _ := noticing("acme")
	l.notify(failedNotice(claimed(1, "acme")))
	if len(l.notices.queued) > 0 || !strings.Contains(log.String(), `"event":"failed"`) {
		t.Errorf("queued are %v; the log has %s", l.notices.queued, log)
	}
	l, _, _ = noticing(strings.Repeat("é", 256))
	l.notify(failedNotice(claimed(1, "acme")))
	if len(l.notices.queued) != 1 || l.notices.queued[0].Validate() != nil {
		t.Errorf("queued are %v", l.notices.queued)
	}
	l, log, _ = noticing("")
	l.notify(failedNotice(claimed(1, "")))
	if len(l.notices.queued) > 0 || log.Len() == 0 {
		t.Errorf("without a namespace, queued are %v", l.notices.queued)
	}
}

// However much fails, a node tells of a bounded number, and how many it has left out.
func TestNotifyIsBounded(t *testing.T) {
	l, log, now := noticing("ops")
	told := func() int { return strings.Count(log.String(), `"event":`) }
	for i := range 10 * maxNotices {
		l.notify(failedNotice(claimed(int64(i), "acme")))
	}
	if told() != maxNotices || len(l.notices.queued) != maxNotices {
		t.Errorf("it tells of %d, and has queued %d", told(), len(l.notices.queued))
	}
	*now += int64(noticeWindow)
	l.closeNotices()
	if !strings.Contains(log.String(), fmt.Sprintf(`"omitted":%d`, 9*maxNotices)) {
		t.Errorf("it does not say how many it has left out: %s", log)
	}
	for range 20 { // the database is away
		*now += int64(noticeWindow)
		for i := range maxNotices {
			l.notify(failedNotice(claimed(int64(i), "acme")))
		}
	}
	if told() != 21*maxNotices || len(l.notices.queued) != maxQueued || l.notices.dropped != 21*maxNotices-maxQueued {
		t.Errorf("it tells of %d, has queued %d and dropped %d", told(), len(l.notices.queued), l.notices.dropped)
	}
}

// However many destinations are held at once, some are told one by one, and how many others there are; and what
// the notices themselves go to makes no message.
func TestNoticeHolds(t *testing.T) {
	event := func(id int64, name Notice, namespace, taskQueue string) driver.HoldEvent {
		return driver.HoldEvent{ID: id, Event: string(name), Destination: driver.Destination{Namespace: namespace, TaskQueue: taskQueue}, Since: time.Unix(id, 0)}
	}
	for _, c := range []struct {
		what           string
		of             func(id int64) (namespace, taskQueue string)
		lines, queued  int
		n              int64
		destinations   int
		queuedIsCounts int // messages that say how many there are
	}{
		{"none", nil, 0, 0, 0, 0, 0},
		{"one", func(int64) (string, string) { return "acme", "q" }, 1, 1, 1, 0, 0},
		{"one of all", func(int64) (string, string) { return "", "q" }, 1, 1, 1, 0, 0},
		{"10,000", func(id int64) (string, string) { return fmt.Sprint("ns", id), "q" }, maxHolds + 1, maxHolds + 1, 10_000, 10_000 - maxHolds, 1},
		{"those of the notices", func(int64) (string, string) { return "ops", "fairclaim.held" }, maxHolds + 1, 0, 100, 100 - maxHolds, 0},
		{"that of the notices of all", func(int64) (string, string) { return "", "fairclaim.held" }, 1, 0, 1, 0, 0},
		{"the last is another one", func(id int64) (string, string) {
			return map[bool]string{true: "acme", false: "ops"}[id == 100], "q"
		}, maxHolds + 1, 1, 100, 100 - maxHolds, 1},
	} {
		l, log, _ := noticing("ops")
		var events []driver.HoldEvent
		for id := int64(1); id <= c.n; id++ {
			namespace, taskQueue := c.of(id)
			for _, name := range []Notice{NoticeHeld, NoticeLifted, NoticeGaveUp} {
				events = append(events, event(id, name, namespace, taskQueue))
			}
		}
		l.noticeHolds(events)
		for _, name := range []Notice{NoticeHeld, NoticeLifted, NoticeGaveUp} {
			var lines, destinations, queued, counts int
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, fmt.Sprintf(`"event":%q`, name)) {
					lines++
				}
			}
			for _, m := range l.notices.queued {
				if m.TaskQueue == noticeQueue(name) {
					queued++
					if strings.Contains(string(m.Payload), `"destinations"`) {
						counts++
					}
				}
			}
			if m := regexp.MustCompile(fmt.Sprintf(`"event":%q,"destinations":(\d+)`, name)).FindStringSubmatch(log.String()); m != nil {
				fmt.Sscan(m[1], &destinations) //nolint:errcheck // a number
			}
			if lines != c.lines || queued != c.queued || destinations != c.destinations || counts != c.queuedIsCounts {
				t.Errorf("%s, %s: %d lines, %d messages, %d of them say how many, %d more destinations; want %d, %d, %d, %d",
					c.what, name, lines, queued, counts, destinations, c.lines, c.queued, c.queuedIsCounts, c.destinations)
			}
		}
		if l.notices.omitted > 0 {
			t.Errorf("%s: %d were left out", c.what, l.notices.omitted)
		}
	}
}

// What a surveyor has read of holds is told also where the node loses shard 0 before it has come to it.
func TestNoticeHoldsOfTheLastSurvey(t *testing.T) {
	l, log, _ := noticing("")
	l.config.Observer = nobody{}
	done := make(chan struct{})
	close(done)
	s := &surveyor{told: make(chan surveyed, 4), stop: func() {}, done: done}
	ended, end := context.WithCancel(t.Context())
	end()
	for id := range int64(4) {
		s.tell(ended, surveyed{holds: []driver.HoldEvent{{ID: id, Event: string(NoticeHeld), Since: time.Unix(id, 0)}}})
	}
	s.tell(ended, surveyed{}) // for which there is no room
	l.surveyor = s
	l.endSurvey()
	if n := strings.Count(log.String(), `"event":"held"`); n != 4 {
		t.Errorf("%d are told, want 4", n)
	}
}

// Shards without an owner are told from the second survey on, when there are more, and every ten minutes; an
// audit once.
func TestNoticeSurvey(t *testing.T) {
	l, log, now := noticing("")
	audit := &Audit{At: time.Unix(1, 0), Violations: make([]driver.Violation, maxAudited+2)}
	for i, step := range []struct {
		shards int
		after  time.Duration
		want   int // notices of shards so far
	}{
		{3, 0, 0},
		{3, time.Second, 1},
		{3, time.Second, 1},
		{5, time.Second, 2},
		{2, time.Second, 2},
		{2, surveyLogEvery, 3},
		{0, time.Second, 3},
		{1, time.Second, 3},
		{0, time.Second, 3},
		{1, surveyLogEvery, 3},
		{1, time.Second, 4},
	} {
		*now += int64(step.after)
		l.noticeSurvey(&Survey{Outbox: driver.OutboxSurvey{Unowned: step.shards}, Audit: audit})
		if got := strings.Count(log.String(), `"event":"unowned_shards"`); got != step.want {
			t.Errorf("step %d: %d notices, want %d", i, got, step.want)
		}
	}
	if got := strings.Count(log.String(), `"event":"violation"`); got != maxAudited || !strings.Contains(log.String(), `"more":2`) {
		t.Errorf("%d violations are told", got)
	}
}
