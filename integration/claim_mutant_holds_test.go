package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// mutantHolds finds by histories in which destinations fail, beginning with one that finds it as long as histories are
// what they are today.
func mutantHolds(seed uint64) func(context.Context, *testing.T, *pgtest.DB) error {
	return func(ctx context.Context, t *testing.T, db *pgtest.DB) error {
		t.Helper()
		conn := db.Connect(t)
		if err := modelHistory(ctx, conn, seed, modelSteps); err != nil {
			return err
		}
		for seed := range uint64(60) {
			if err := modelHistory(ctx, conn, 2*seed+1, modelSteps); err != nil {
				return err
			}
		}
		return nil
	}
}

// mutantScenario finds by one of the scenarios.
func mutantScenario(name string) func(context.Context, *testing.T, *pgtest.DB) error {
	return func(_ context.Context, t *testing.T, db *pgtest.DB) error {
		t.Helper()
		text, err := os.ReadFile("testdata/scenarios/" + name + ".txt")
		if err != nil {
			return err
		}
		if diff := lineDiff(string(text), newScenario(t, db).play(t, string(text))); diff != "" {
			return fmt.Errorf("scenario %s: %s", name, diff)
		}
		return nil
	}
}

// mutantsOfHolds are faults of destinations in trouble.
func mutantsOfHolds() map[string]mutant {
	return map[string]mutant{
		"INV-16 no gate of namespaces": {
			"route_gate.sql", "route_gate.gates & 1 > 0 and", "false and", mutantHolds(1),
		},
		"INV-16 no gate of all": {
			"route_gate.sql", "route_gate.gates & 4 > 0 and", "false and", mutantHolds(17),
		},
		"INV-16 a gate of all is that of a namespace": {
			"route_gate.sql", "d.task_queue = route_gate.task_queue and d.namespace is null", "d.task_queue = route_gate.task_queue", mutantHolds(9),
		},
		"INV-16 a hold does not get longer": {
			"hold_step.sql", "then (hold_step.destination).step else", "then 0 else", mutantHolds(1),
		},
		"INV-16 what was claimed before a hold counts": {
			"fold_report.sql", "if v_held and (", "if false and (", mutantHolds(9),
		},
		"INV-16 what was claimed before a lift counts": {
			"fold_report.sql", "or (fold_report.report).claim_token < (fold_report.destination).lift_token then", "then", mutantHolds(15),
		},
		"INV-16 a broken one counts as much as an unreachable one": {
			"fold_report.sql", "then 1 else 4 end", "then 4 else 4 end", mutantHolds(1),
		},
		"INV-16 what got through before a failure was read says nothing": {
			"complete.sql", "\n     or exists (select from outbox.report as r where r.id >= (select e.last_value from outbox.report_edge as e)) then", " then", mutantScenario("hold_reached"),
		},
		"INV-16 what got through elsewhere before a failure was read says nothing": {
			"report_up.sql", "(f.namespace = r.namespace or f.shared)", "f.namespace = r.namespace", mutantScenario("hold_reached"),
		},
		"INV-16 a failure counts though others of the namespace got through since": {
			"fail_destination.sql", "and (f.held or f.passed is not true)", "", mutantHolds(1),
		},
		"INV-16 a failure counts for all though others got through since": {
			"fold_reports.sql", "v_report.shared is not null and coalesce(", "coalesce(", mutantHolds(1),
		},
		"INV-16 what comes in together counts in full": {
			"fold_report.sql", "if fold_report.fresh and", "if false and", mutantHolds(9),
		},
		"INV-16 the route of all is held as soon as one of a namespace": {
			"fold_report.sql", "v_enough := 8 * v_after;", "v_enough := 4 * v_after;", mutantHolds(9),
		},
		"INV-16 one who is busy holds the route of all": {
			"fold_report.sql", "or not v_is_all and (fold_report.report).kind in", "or (fold_report.report).kind in", mutantHolds(9),
		},
		"INV-16 one who is busy is held for a step": {
			"fold_report.sql", "if (fold_report.report).kind = 'busy' then", "if false then", mutantHolds(9),
		},
		"INV-16 one who is gone is tried": {
			"fold_report.sql", "(fold_report.report).kind = 'gone' and not v_is_all", "false", mutantHolds(9),
		},
		"INV-16 nobody gives up": {
			"fold_report.sql", "outbox.span((fold_report.config).hold_give_up)", "interval '1000 years'", mutantHolds(1),
		},
		"INV-16 all flows at once after a hold": {
			"fold_report.sql", "destination.state := 'recovering';", "destination.state := 'well';", mutantHolds(9),
		},
		"INV-16 a success lifts no hold": {
			"fold_report.sql", "    if v_held then\n", "    if false then\n", mutantHolds(9),
		},
		"INV-16 the one who failed lasts": {
			"fold_report.sql", "destination.probe_token := null;", "", mutantHolds(1),
		},
		"INV-16 an operator's word of a route does not count": {
			"fold_reports.sql", "coalesce(v_was.shared, v_report.shared)", "v_report.shared", mutantHolds(1),
		},
		"INV-16 what is well is never forgotten": {
			"fold_reports.sql", "if v_is.state = 'well' and v_is.shared is null", "if false", mutantHolds(5),
		},
		"INV-16 who is busy is charged": {
			"fail_destination.sql", "not s.counts or u.kind in ('busy', 'gone') as uncharged", "not s.counts as uncharged", mutantHolds(9),
		},
		"INV-16 a success reports all of what is held": {
			"report_up.sql", "where t.state <> 'held' or", "where true or", mutantHolds(15),
		},
		"INV-16 who asks reads no reports": {
			"observe.sql", "perform outbox.fold_reports(v_now, false);", "null;", mutantHolds(45),
		},
		"INV-16 a hold gets shorter": {
			"hold.sql", "if v_until > v_is.held_until or v_is.held_until is null then", "if true then", mutantHolds(17),
		},
		"INV-16 a hold that gets longer forgets the probe that is out": {
			"hold.sql", "v_is.lift_token := nextval('outbox.claim_token');", "v_is.probe_id := null; v_is.probe_token := null;", mutantHolds(1),
		},
		"INV-16 a probe lifts a hold that got longer meanwhile": {
			"hold.sql", "v_is.lift_token := nextval('outbox.claim_token');", "", mutantHolds(1),
		},
		"INV-16 what a probe says of a hold that got longer meanwhile is reported": {
			"fail_destination.sql", "d.probe and not d.old", "d.probe", mutantScenario("hold_operator"),
		},
		"INV-16 what was claimed before an operator's lift counts": {
			"lift.sql", "v_is.lift_token := nextval('outbox.claim_token');", "", mutantHolds(1),
		},
		"INV-16 an operator's lift lets all flow at once": {
			"lift.sql", "v_is.state := 'recovering';", "v_is.state := 'well';", mutantHolds(1),
		},
		"INV-16 who is shared no more counts on": {
			"set_shared.sql", "v_is.state = 'failing'", "false", mutantHolds(9),
		},
		"INV-16 what is held is due, in several routes": {
			"due_routes.sql", "(least(g.own, g.common) = 0", "(false", mutantHolds(9),
		},
		"INV-16 a claim takes more than its gate lets through": {
			"claim_read.sql", "v_parts[r] := least(v_parts[r], route_caps[r]);", "", mutantHolds(9),
		},
		"INV-16 nobody notes the probe of a namespace": {
			"claim_fair.sql", "d.state = 'held' and d.task_queue = x.task_queue and d.namespace = x.namespace", "false", mutantHolds(1),
		},
		"INV-16 nobody notes the probe of all": {
			"claim_fair.sql", "d.state = 'held' and d.task_queue = x.task_queue and d.namespace is null", "false", mutantHolds(17),
		},
		"INV-16 a claim reads no reports": {
			"claim_fair.sql", "perform outbox.fold_reports(v_now, v_late);", "", mutantHolds(1),
		},
	}
}
