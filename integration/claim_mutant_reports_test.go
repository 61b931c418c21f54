package integration

// mutantsOfReports are faults of what is made of reports, and of calls by operators.
func mutantsOfReports() map[string]mutant {
	return map[string]mutant{
		"INV-16 a hold of all gets longer with each namespace": {
			"fold_report.sql", "v_step := v_step - 1; -- as long as the last one", "null;", mutantHolds(11),
		},
		"INV-16 a hold of all gets longer one namespace too soon": {
			"fold_report.sql", "failed_of) < v_after\n", "failed_of) < v_after - 1\n", mutantHolds(35),
		},
		"INV-16 a hold of all does not get longer where one namespace fails again": {
			"fold_report.sql", "and (fold_report.report).namespace <> all ((fold_report.destination).failed_of) then", "then", mutantHolds(15),
		},
		"INV-16 nobody notes whose probe made a hold of all longer": {
			"fold_report.sql", "destination.failed_of := array[(fold_report.report).namespace];", "null;", mutantHolds(3),
		},
		"INV-16 a namespace's own hold gets longer as that of all": {
			"fold_report.sql", "if v_is_all and v_held and", "if v_held and", mutantHolds(1),
		},
		"INV-16 an operator's hold of all counts as the first of the namespaces": {
			"fold_report.sql", "(fold_report.destination).step > 0 and cardinality", "true and cardinality", mutantHolds(11),
		},
		"INV-16 a hold begins with an operator's": {
			"fold_report.sql", "if not v_held or (fold_report.destination).step = 0 then", "if not v_held then", mutantHolds(1),
		},
		"INV-16 who fails again does not count": {
			"fold_report.sql", "elsif (fold_report.report).kind <> 'broken' then", "elsif false then", mutantScenario("hold_lone"),
		},
		"INV-16 who breaks again counts": {
			"fold_report.sql", "elsif (fold_report.report).kind <> 'broken' then", "else", mutantScenario("hold_counts"),
		},
		"INV-16 one namespace holds the route of all": {
			"fold_report.sql", "cardinality((fold_report.destination).failed_of) >= v_after)", "true)", mutantScenario("hold_shared"),
		},
		"INV-16 one that has just come back is held as late as any": {
			"fold_report.sql", "v_enough := least(v_enough, 8);", "null;", mutantScenario("hold_steps"),
		},
		"INV-16 the first success ends the ramp": {
			"fold_report.sql", "or fold_report.now >= (fold_report.destination).lifted_at + interval '10 s' then", "or true then", mutantHolds(9),
		},
		"INV-16 what has come back is never well": {
			"fold_report.sql", "or fold_report.now >= (fold_report.destination).lifted_at + interval '10 s' then", "then", mutantHolds(49),
		},
		"INV-16 a success leaves the failures": {
			"fold_report.sql", "    destination.failed := '{}';\n    destination.failed_of := '{}';\n", "", mutantHolds(5),
		},
		"INV-16 what was claimed before a success lifted counts": {
			"fold_report.sql", "destination.lift_token := nextval('outbox.claim_token');", "", mutantHolds(3),
		},
		"INV-16 who is busy says for how long, without an end": {
			"fold_report.sql", "interval '1 h'", "interval '1000 h'", mutantHolds(9),
		},
		"INV-16 a hold is as long as the one before": {
			"fold_report.sql", "outbox.retry_delay(v_step + 1,", "outbox.retry_delay(v_step,", mutantHolds(23),
		},
		"INV-16 steps do not fade": {
			"hold_step.sql", "extract(epoch from hold_step.now - (hold_step.destination).lifted_at) /", "0 /", mutantHolds(71),
		},
		"INV-16 what is wrong with all is held against one": {
			"fold_reports.sql", "continue when v_all and", "continue when false and", mutantHolds(7),
		},
		"INV-16 the probe of one is not heard while all is held": {
			"fold_reports.sql", " and (v_was.state = 'held') is not true;", ";", mutantHolds(15),
		},
		"INV-16 a hold of all hears only who shares it": {
			"fold_reports.sql", "continue when not v_all\n          and not case", "continue when not case", mutantHolds(51),
		},
		"INV-16 what was lifted is forgotten with the next success": {
			"fold_reports.sql", "and coalesce(v_is.lifted_at + outbox.span(v_config.hold_cap) <= fold_reports.now, true)", "", mutantHolds(49),
		},
		"INV-16 a success of one who does not share says nothing of all": {
			"fold_reports.sql", "when v_report.kind = 'up' then coalesce(v_was.state, 'well') <> 'well'", "when false then false", mutantHolds(57),
		},
		"INV-16 a probe before its time": {
			"gate.sql", "and (gate.destination).held_until <= gate.now", "", mutantHolds(1),
		},
		"INV-16 two probes": {
			"gate.sql", "where c.id = (gate.destination).probe_id and", "where false and", mutantHolds(3),
		},
		"INV-16 twice as much after a hold": {
			"gate.sql", "1 << greatest", "2 << greatest", mutantHolds(9),
		},
		"INV-16 the flow grows for two seconds": {
			"gate.sql", "interval '10 s'", "interval '2 s'", mutantHolds(3),
		},
		"INV-16 no gate where none is held and some come back": {
			"gates.sql", "in ('held', 'recovering')", "in ('held')", mutantHolds(3),
		},
		"INV-16 the probes of all are of one namespace": {
			"claim_walk.sql", "passed := cardinality(visits) + v_last;", "null;", mutantHolds(23),
		},
		"INV-16 who fails after the lift is charged": {
			"fail_destination.sql", "u.claim_token < d.lift_token", "false", mutantHolds(3),
		},
		"INV-16 the probe that failed is due at once": {
			"fail_destination.sql", "case when f.counts then v_now + v_base else", "case when false then v_now else", mutantHolds(1),
		},
		"INV-16 the probe that failed is charged": {
			"fail_destination.sql", "greatest(f.attempt - 1, 0)", "f.attempt", mutantHolds(1),
		},
		"INV-16 what fails while its destination is held is reported": {
			"fail_destination.sql", "from f where f.counts and", "from f where", mutantHolds(3),
		},
		"INV-16 who is busy is so since long": {
			"fail_destination.sql", "greatest(f.hold, '0')", "f.hold", mutantHolds(3),
		},
		"INV-16 a success is that of the first claim": {
			"report_up.sql", "order by c.claim_token desc", "order by c.claim_token", mutantHolds(5),
		},
		"INV-16 a success says nothing of all": {
			"report_up.sql", "d.task_queue = r.task_queue and d.namespace is null", "false", mutantHolds(3),
		},
		"INV-16 a success says nothing": {
			"complete.sql", "where t.state <> 'well'", "where false", mutantHolds(3),
		},
		"INV-16 who asks hears of failures before holds": {
			"observe.sql", "when 'held' then 1 when 'failing' then 2", "when 'held' then 2 when 'failing' then 1", mutantHolds(1),
		},
		"INV-16 who asks hears nothing of all": {
			"observe.sql", "d.task_queue = u.task_queue and d.namespace is null", "false", mutantHolds(1),
		},
		"INV-16 a probe that is out lifts a longer hold": {
			"hold.sql", "    v_is.probe_token := null;\n", "", mutantHolds(19),
		},
		"INV-16 an operator's hold keeps the failures": {
			"hold.sql", "    v_is.score := 0;\n", "", mutantHolds(19),
		},
		"INV-16 an operator's hold begins again": {
			"hold.sql", "if v_is.state <> 'held' then", "if true then", mutantHolds(17),
		},
		"INV-16 an operator's lift keeps the steps": {
			"lift.sql", "  v_is.step := 0;\n", "", mutantHolds(1),
		},
		"INV-16 an operator's lift keeps the failures": {
			"lift.sql", "  v_is.score := 0;\n", "", mutantHolds(13),
		},
		"INV-16 who is shared no more keeps the namespaces": {
			"set_shared.sql", "    v_is.failed_of := '{}';\n", "", mutantHolds(9),
		},
		"INV-16 an operator takes his word back, and nothing counts on": {
			"set_shared.sql", "if set_shared.shared = false and", "if", mutantHolds(5),
		},
		"INV-16 prune forgets what an operator has said": {
			"prune.sql", "and i.shared is null", "", mutantHolds(3),
		},
		"INV-16 prune forgets what failed a moment ago": {
			"prune.sql", "and i.changed_at < clock_timestamp() - (select interval '1 day'", "and i.changed_at < clock_timestamp() + (select interval '1000 day'", mutantHolds(7),
		},
		"INV-16 prune forgets a hold of all": {
			"prune.sql", "where t.namespace is not null\n", "where true\n", mutantHolds(7),
		},
	}
}
