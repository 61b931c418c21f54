-- requires: hold_step.sql retry_delay.sql span.sql
create or replace function outbox.fold_report(
  inout destination outbox.destination, report outbox.report, fresh boolean, now timestamptz, config outbox.config)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- What a report makes of a destination: in, as it was; out, as it is now.
--
--   kind         what was seen                               the destination
--   up           a message was delivered                     is reached: its failures in a row are over
--   unreachable  it could not be reached, or turned away     4 for a message, 1 for one that counted already
--                whoever calls
--   broken       it broke on the message                     1 for a message
--   busy         it asked for time                           is held for that long, at least for a step, at most 1 h
--   gone         it is no more                               is held until somebody lifts it
--
-- It is held at 4 * config.hold_after: after that many messages in a row that could not reach it. The
-- route of all counts for itself, to 8 * hold_after from hold_after namespaces at least, and there busy
-- and gone are as unreachable: they may be one tenant's. Where it has just come back, two are enough.
--
-- While the route of all is held, not each probe that fails makes the hold longer than the last one, but every
-- hold_after namespaces, or when a second one of the same namespace fails: some may be broken for themselves, and the
-- others, whose probe would lift it, should not wait ever longer for each of them.
--
-- A fresh destination, one that was well until now, counts one report only: what was delivered at the
-- same time was not reported. Of a held one the probe alone says something: a success lifts the hold,
-- a failure makes it longer. What was claimed before the last lift says nothing.
declare
  v_is_all  boolean := (fold_report.destination).namespace is null;
  v_held    boolean := (fold_report.destination).state = 'held';
  v_counted boolean := (fold_report.report).message_id = any ((fold_report.destination).failed);
  v_after   int     := (fold_report.config).hold_after;
  v_enough  int     := 4 * v_after;
  v_step    int     := outbox.hold_step(destination, fold_report.now, outbox.span((fold_report.config).hold_cap));
  v_holds   boolean;
  v_until   timestamptz;
begin
  if v_held and ((fold_report.report).message_id, (fold_report.report).claim_token)
                is distinct from ((fold_report.destination).probe_id, (fold_report.destination).probe_token)
     or (fold_report.report).claim_token < (fold_report.destination).lift_token then
    return;
  end if;

  if (fold_report.report).kind = 'up' then
    if v_held then
      destination.lifted_at := fold_report.now;
      destination.lift_token := nextval('outbox.claim_token');
      destination.held_since := null;
      destination.held_until := null;
      destination.state := 'recovering';
    elsif (fold_report.destination).state = 'failing'
          or fold_report.now >= (fold_report.destination).lifted_at + interval '10 s' then
      destination.state := 'well';
    end if;
    destination.score := 0;
    destination.failed := '{}';
    destination.failed_of := '{}';
    return;
  end if;

  if not v_held then
    if fold_report.fresh and (fold_report.destination).score > 0 then
      v_holds := false;
    elsif not v_counted then
      destination.score := (fold_report.destination).score + case when (fold_report.report).kind = 'broken' then 1 else 4 end;
      destination.failed := (array_prepend((fold_report.report).message_id, (fold_report.destination).failed))[:8 * v_after];
      if v_is_all and cardinality((fold_report.destination).failed_of) < v_after and (fold_report.report).namespace <> all (destination.failed_of) then
        destination.failed_of := (fold_report.destination).failed_of || (fold_report.report).namespace; -- as many as decide it
      end if;
    elsif (fold_report.report).kind <> 'broken' then
      destination.score := (fold_report.destination).score + 1;
    end if;
    if (fold_report.destination).state = 'well' then
      destination.state := 'failing';
    end if;
    if v_is_all then
      v_enough := 8 * v_after;
    elsif (fold_report.destination).state = 'recovering' and fold_report.now < (fold_report.destination).lifted_at + interval '10 s' then
      v_enough := least(v_enough, 8);
    end if;
    v_holds := coalesce(v_holds, (fold_report.destination).score >= v_enough
                                 and (not v_is_all or cardinality((fold_report.destination).failed_of) >= v_after))
               or not v_is_all and (fold_report.report).kind in ('busy', 'gone');
    if not v_holds then
      return;
    end if;
  end if;
  if not v_held or (fold_report.destination).step = 0 then -- until now an operator held it
    destination.held_since := fold_report.now;
  end if;

  if v_is_all and v_held and (fold_report.destination).step > 0 and cardinality((fold_report.destination).failed_of) < v_after
     and (fold_report.report).namespace <> all ((fold_report.destination).failed_of) then
    destination.failed_of := (fold_report.destination).failed_of || (fold_report.report).namespace;
    v_step := v_step - 1; -- as long as the last one
  elsif v_is_all then
    destination.failed_of := array[(fold_report.report).namespace];
  end if;
  v_until := fold_report.now + outbox.retry_delay(v_step + 1, (fold_report.config).hold_base, 2, (fold_report.config).hold_cap,
                                                  0.2, random());
  if (fold_report.report).kind = 'busy' then
    v_until := greatest(v_until, fold_report.now + least(outbox.span((fold_report.report).hold), interval '1 h'));
  end if;
  if (fold_report.report).kind = 'gone' and not v_is_all
     or fold_report.now >= (fold_report.destination).held_since + outbox.span((fold_report.config).hold_give_up) then
    v_until := 'infinity';
  end if;
  destination.state := 'held';
  destination.step := least(v_step + 1, 60);
  destination.held_until := v_until;
  destination.held_by := (fold_report.report).node;
  destination.reason := (fold_report.report).reason;
  destination.probe_id := null;
  destination.probe_token := null;
end $$;
comment on function outbox.fold_report is 'What a report makes of a destination';
revoke all on function outbox.fold_report from public;
