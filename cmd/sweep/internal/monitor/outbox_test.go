package monitor

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// aSurvey is a survey in which nothing is missing.
func aSurvey(at time.Time) *node.Survey {
	expired := int64(3)
	return &node.Survey{
		Outbox: driver.OutboxSurvey{
			Due: 1000, Unripe: 200, Claimed: 30, Failed: 4, Expired: &expired, Failing: 1, Held: 2, Recovering: 3,
			Pauses: 5, ShardCount: 16, Unowned: 6, HeldOfAll: 1,
		},
		Horizon: driver.Horizon{Age: time.Minute, Transactions: 99}, Longest: time.Hour, LongestHeld: 3 * time.Hour, LongestPaused: 2 * time.Hour, Lap: 45 * time.Second, Waiting: 12,
		Namespaces: []driver.NamespaceSurvey{
			{Namespace: "acme", At: at, OldestDue: at.Add(-time.Hour), Due: 7, Unripe: 1, Claimed: 2, Failed: 3, Quota: 4, Paused: true},
			{Namespace: "globex", At: at, Quota: 256},
		},
		Others: node.OtherNamespaces{Namespaces: 10, Due: 993, Unripe: 199, Claimed: 28, Failed: 1, Waited: time.Minute},
		Audit:  &node.Audit{At: at, Violations: make([]driver.Violation, 2)},
	}
}

// What a survey says is shown, of the whole and of single namespaces, as long as surveys come.
func TestOutboxAsSurveyed(t *testing.T) {
	m, clock := newTestMonitor()
	if got := samples(t, m, "outbox_due_messages"); len(got) > 0 {
		t.Errorf("before the first survey there is %v", got)
	}
	m.Surveyed(aSurvey(*clock))
	*clock = clock.Add(10 * time.Second)
	for name, want := range map[string]map[string]float64{
		"outbox_due_messages": {"": 1000}, "outbox_unripe_messages": {"": 200}, "outbox_claimed_messages": {"": 30},
		"outbox_failed_messages": {"": 4}, "outbox_expired_leases": {"": 3}, "outbox_oldest_due_age_seconds": {"false": 3600, "true": 7200},
		"outbox_oldest_held_age_seconds": {"": 10800}, "outbox_held_routes_of_all": {"": 1},
		"outbox_destinations": {"failing": 1, "held": 2, "recovering": 3}, "outbox_pauses": {"": 5}, "outbox_shards": {"": 16},
		"outbox_unowned_shards": {"": 6}, "outbox_horizon_age_seconds": {"": 60}, "outbox_horizon_age_transactions": {"": 99},
		"outbox_lap_seconds": {"": 45}, "outbox_waiting_namespaces": {"": 12}, "outbox_violations": {"": 2}, "outbox_check_age_seconds": {"": 10}, "outbox_survey_age_seconds": {"": 10},
		"namespace_oldest_due_age_seconds": {"acme": 3600, "globex": 0, "_other": 60},
		"namespace_due_messages":           {"acme": 7, "globex": 0, "_other": 993},
		"namespace_unripe_messages":        {"acme": 1, "globex": 0, "_other": 199},
		"namespace_claimed_messages":       {"acme": 2, "globex": 0, "_other": 28},
		"namespace_failed_messages":        {"acme": 3, "globex": 0, "_other": 1},
		"namespace_quota_messages":         {"acme": 4, "globex": 256},
		"namespace_paused":                 {"acme": 1, "globex": 0},
	} {
		if got := samples(t, m, name); !maps.Equal(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}

	s := aSurvey(*clock)
	s.Namespaces[0].Namespace = "initech"
	m.Surveyed(s)
	if got := slices.Sorted(maps.Keys(samples(t, m, "namespace_due_messages"))); fmt.Sprint(got) != "[_other globex initech]" {
		t.Errorf("after acme has left there are %v", got)
	}
	*clock = clock.Add(61 * time.Second)
	if got := samples(t, m, "outbox_due_messages"); len(got) > 0 {
		t.Errorf("a minute after the last survey there is %v", got)
	}
	if got := samples(t, m, "outbox_survey_age_seconds"); got[""] != 61 {
		t.Errorf("the last survey is %v s old, want 61", got)
	}
	m.Surveyed(nil)
	if got := samples(t, m, "outbox_survey_age_seconds"); len(got) > 0 {
		t.Errorf("once another node surveys there is %v", got)
	}
}

// A tenant that calls itself as the others are called, or by odd characters, fails no scrape.
func TestOutboxOddNames(t *testing.T) {
	m, clock := newTestMonitor()
	s := aSurvey(*clock)
	s.Namespaces[0].Namespace = otherNamespaces
	s.Namespaces[1].Namespace = "a\"b\\c\nd{}\x01é"
	m.Surveyed(s)
	if problems, err := testutil.GatherAndLint(m.registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if got := samples(t, m, "namespace_due_messages"); len(got) != 2 || got[otherNamespaces] != 993 {
		t.Errorf("there are %v", got)
	}
}

// Without names for namespaces, there are none at all.
func TestOutboxWithoutNamespaces(t *testing.T) {
	m := New(Options{SurveyEvery: time.Second})
	m.Surveyed(aSurvey(time.Now()))
	if got := samples(t, m, "namespace_due_messages"); len(got) > 0 {
		t.Errorf("there are %v", got)
	}
	if got := samples(t, m, "outbox_due_messages"); got[""] != 1000 {
		t.Errorf("%v messages are due", got)
	}
}
