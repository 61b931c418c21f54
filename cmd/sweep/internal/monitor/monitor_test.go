package monitor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// newTestMonitor is a monitor whose clock stands still until the test moves it.
func newTestMonitor() (m *Monitor, clock *time.Time) {
	now := time.Unix(1e9, 0)
	return New(Options{
		Node: "n1", Sink: "stdout", Routes: map[string]string{"mail": "exec:send"},
		Version: "v1", Revision: "abc", Schema: "8", GoVersion: "go1.26",
		SurveyEvery: 15 * time.Second, Namespaces: true, now: func() time.Time { return now },
	}), &now
}

func messageOf(taskQueue string) *driver.Delivery { return &driver.Delivery{TaskQueue: taskQueue} }

// metricsTable is the table of all metrics, as the documentation has it.
func metricsTable(t *testing.T, m *Monitor) string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), namespace+"_") {
			continue
		}
		var labels []string
		for _, label := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+label.GetName()+"`")
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()),
			cmp.Or(strings.Join(labels, ", "), " "), f.GetHelp()))
	}
	return "| metric | type | labels | what it tells |\n| --- | --- | --- | --- |\n" + strings.Join(rows, "")
}

// docs/operations.md has the table of the metrics that there are.
func TestMetricsAreDocumented(t *testing.T) {
	m, clock := newTestMonitor()
	m.Message(messageOf("q"), node.Claimed)
	m.Turned(node.State{Heartbeat: *clock})
	m.Surveyed(aSurvey(*clock))
	table := strings.ReplaceAll(metricsTable(t, m), "|   |", "| |")
	text, err := os.ReadFile("../../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n\n"+table+"\n") {
		t.Errorf("docs/operations.md lacks this table, or a row of it:\n%s", table)
	}
}

// The linter finds nothing to say, with every metric in use.
func TestMetricsAreLinted(t *testing.T) {
	m, clock := newTestMonitor()
	m.Message(messageOf("q"), node.Claimed)
	m.Turned(node.State{Heartbeat: *clock})
	m.Surveyed(aSurvey(*clock))
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// samples are those of one metric, by the labels' values.
func samples(t *testing.T, m *Monitor, name string) map[string]float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() != namespace+"_"+name {
			continue
		}
		for _, sample := range f.GetMetric() {
			var labels []string
			for _, label := range sample.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			values[strings.Join(labels, " ")] = sample.GetCounter().GetValue() + sample.GetGauge().GetValue() + float64(sample.GetHistogram().GetSampleCount())
		}
	}
	return values
}

func wantSamples(t *testing.T, m *Monitor, name string, want map[string]float64) {
	t.Helper()
	if got := samples(t, m, name); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// Task queues beyond the limit count as one, whatever is sent to how many of them; those with a
// sink of their own never do.
func TestTaskQueuesAreBounded(t *testing.T) {
	m, _ := newTestMonitor()
	for i := range 10 * maxTaskQueues {
		m.Message(messageOf(fmt.Sprint("queue", i)), node.Claimed)
	}
	for range 2 {
		m.Message(messageOf("queue0"), node.Claimed)
		m.Message(messageOf("mail"), node.Claimed)
		m.Delivered(messageOf("new"), node.Delivered{Said: node.Retried})
	}
	got := samples(t, m, "messages_claimed_total")
	if n := len(got); n != maxTaskQueues+2 {
		t.Errorf("there are %d series, want %d", n, maxTaskQueues+2)
	}
	for labels, want := range map[string]float64{
		"stdout queue0": 3, "stdout queue99": 1, "stdout _other": 9 * maxTaskQueues, "exec:send mail": 2,
	} {
		if got[labels] != want {
			t.Errorf("%s is %v, want %v", labels, got[labels], want)
		}
	}
	wantSamples(t, m, "delivery_duration_seconds", map[string]float64{
		"done exec:send": 0, "done stdout": 0, "failed exec:send": 0, "failed stdout": 0,
		"released exec:send": 0, "released stdout": 0, "retried exec:send": 0, "retried stdout": 2,
	})
}

// How long a message was due before its claim is noted for its sink, once a claim, by the database's
// clock alone; less than nothing, where that clock went back, counts as nothing.
func TestClaimWait(t *testing.T) {
	m, _ := newTestMonitor()
	due := time.Unix(1, 0)
	for _, waited := range []time.Duration{2 * time.Second, 3 * time.Hour, 100 * time.Hour, -time.Hour} {
		d := &driver.Delivery{TaskQueue: "mail", DueAt: due, ClaimedAt: due.Add(waited)}
		for _, became := range []node.Event{node.Claimed, node.Parked, node.Done} {
			m.Message(d, became)
		}
	}
	wantSamples(t, m, "claim_wait_seconds", map[string]float64{"exec:send": 4, "stdout": 0})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "fairclaim_claim_wait_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		below := map[float64]uint64{}
		for _, b := range h.GetBucket() {
			below[b.GetUpperBound()] = b.GetCumulativeCount()
		}
		if h.GetSampleSum() != 2+103*3600 || below[0.005] != 1 || below[1] != 1 || below[2.5] != 2 || below[3600] != 2 || below[4*3600] != 3 || below[24*3600] != 3 {
			t.Errorf("the histogram is %v", h)
		}
	}
}

// A message costs the node no allocation for its metrics, once its task queue is known.
func TestMessagesAllocateNothing(t *testing.T) {
	m, _ := newTestMonitor()
	d := messageOf("q")
	call := node.Call{Name: "complete"}
	if n := testing.AllocsPerRun(1000, func() {
		m.Message(d, node.Claimed)
		m.Delivered(d, node.Delivered{Waited: time.Millisecond, Took: time.Second, Said: node.Done})
		m.Message(d, node.Done)
		m.Called(call)
		m.Turned(node.State{})
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// Calls are counted by name, claims by how they ended too.
func TestCalls(t *testing.T) {
	m, _ := newTestMonitor()
	boom := errors.New("boom")
	m.Called(node.Call{Name: "claim", Outcome: driver.ShutOut})
	m.Called(node.Call{Name: "claim", Err: boom})
	m.Called(node.Call{Name: "retry"})
	m.Called(node.Call{Name: "heartbeat"})
	m.Called(node.Call{Name: "heartbeat", Err: boom})
	wantSamples(t, m, "claims_total", map[string]float64{"served": 0, "cut": 0, "cut_past_end": 0, "all_round": 0, "shut_out": 1})
	wantSamples(t, m, "call_duration_seconds", map[string]float64{
		"claim": 1, "payloads": 0, "begin_delivery": 0, "complete": 0, "retry": 1, "fail": 0, "fail_destination": 0, "release": 0,
	})
	wantSamples(t, m, "call_failures_total", map[string]float64{
		"claim": 1, "payloads": 0, "begin_delivery": 0, "check": 0, "survey": 0, "enqueue_batch": 0, "complete": 0, "retry": 0, "fail": 0, "fail_destination": 0, "release": 0,
		"settings": 0, "extend": 0, "rescue": 0, "heartbeat": 1, "prune": 0, "claim_obstacles": 0, "observe": 0, "hold_events": 0,
	})
}

// Each message in flight is in one place.
func TestPlaces(t *testing.T) {
	m, _ := newTestMonitor()
	m.Turned(node.State{Stats: node.Stats{InFlight: 100, Parked: 30}, Stashed: 20, Suspects: 5, Unread: 7})
	wantSamples(t, m, "in_flight_messages", map[string]float64{"out": 58, "unread": 7, "stashed": 20, "parked": 10, "suspect": 5})
}

// What supervisors are told.
func TestHealth(t *testing.T) {
	const limit = 20 * time.Second
	beat := time.Unix(1, 0)
	for name, test := range map[string]struct {
		state        node.State
		silent       time.Duration
		alive, ready string // what the answers begin with; an answer of no begins with '!'
	}{
		"works":         {node.State{Shards: 3, Heartbeat: beat}, 0, "alive", "ready: 3 shards"},
		"paused":        {node.State{Shards: 3, Heartbeat: beat, Paused: "queues full"}, 0, "alive", "ready: 3 shards; claiming is paused: queues full"},
		"stands by":     {node.State{Heartbeat: beat}, 0, "alive", "ready: on standby"},
		"quiet":         {node.State{Shards: 3, Heartbeat: beat}, limit, "alive: the loop was heard of 20s ago", "ready"},
		"stuck":         {node.State{Shards: 3, Heartbeat: beat}, limit + 1e6, "!stuck", "!stuck"},
		"no heartbeat":  {node.State{Shards: 3}, 0, "alive", "!not ready: no heartbeat"},
		"fails":         {node.State{Shards: 3, Heartbeat: beat, Failing: "claim"}, 0, "alive", "!not ready: the database failed the call claim"},
		"drains":        {node.State{Heartbeat: beat, Paused: "draining"}, 0, "alive", "!not ready: draining"},
		"has ended":     {node.State{Shards: 3, Heartbeat: beat, Ended: true}, 0, "alive", "!not ready: the node has ended"},
		"drains, stuck": {node.State{Heartbeat: beat, Paused: "draining"}, time.Hour, "!stuck", "!stuck"},
	} {
		m, clock := newTestMonitor()
		test.state.StuckAfter = limit
		m.Turned(test.state)
		*clock = clock.Add(test.silent)
		wantVerdict(t, name+": alive", m.alive, test.alive)
		wantVerdict(t, name+": ready", m.ready, test.ready)
		m.Called(node.Call{Name: "claim"}) // a sign of life
		wantVerdict(t, name+": alive after a call", m.alive, "alive: the loop was heard of 0s ago")
	}

	m, clock := newTestMonitor()
	wantVerdict(t, "starts", m.alive, "starting")
	wantVerdict(t, "starts", m.ready, "!not ready: starting")
	*clock = clock.Add(startLimit + time.Second)
	wantVerdict(t, "never starts", m.alive, "!stuck")
}

func wantVerdict(t *testing.T, what string, judge func() (bool, string), want string) {
	t.Helper()
	ok, why := judge()
	if !ok {
		why = "!" + why
	}
	if !strings.HasPrefix(why, want) {
		t.Errorf("%s: %q, want %q", what, why, want)
	}
}

// An address is local where no other machine reaches it.
func TestLocal(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": true, "localhost:0": true, "127.9.9.9:0": true, "0.0.0.0:0": false, ":0": false} {
		l, err := Listen(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if Local(l) != want {
			t.Errorf("%s, which is %v, is local: %t", address, l.Addr(), !want)
		}
		l.Close()
	}
}

// Each event has a help text of its own.
func TestEventsHaveHelp(t *testing.T) {
	if len(eventHelp) != len(node.Events()) || slices.Contains(eventHelp[:], "") {
		t.Errorf("%d help texts for %d events, or an empty one", len(eventHelp), len(node.Events()))
	}
}

func BenchmarkMessage(b *testing.B) {
	m, _ := newTestMonitor()
	d := messageOf("q")
	b.ReportAllocs()
	for b.Loop() {
		m.Message(d, node.Claimed)
		m.Delivered(d, node.Delivered{Waited: time.Millisecond, Took: time.Second, Said: node.Done})
		m.Message(d, node.Done)
	}
}

func BenchmarkTurn(b *testing.B) {
	m, _ := newTestMonitor()
	b.ReportAllocs()
	for b.Loop() {
		m.Called(node.Call{Name: "complete"})
		m.Turned(node.State{})
	}
}
