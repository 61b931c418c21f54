create or replace function outbox.gate(destination outbox.destination, now timestamptz, probes boolean)
returns int
language sql stable
-- How many messages of a destination one claim may take: null for any number. None while it is held; one,
-- the probe, when the time of the hold is over, none is out, and the claim may probe. What a probe has come to is
-- a report in the moment when it is not out any more: until that is read, too, there is no other one, or a settle
-- beside the claim would make two of it. And after the hold 1, 2, 4 and so on, twice as many each second, for ten seconds.
begin atomic
  select case
    when (gate.destination).state = 'held' then
      case when gate.probes and (gate.destination).held_until <= gate.now
                and (select c.id from outbox.claimed as c
                     where c.id = (gate.destination).probe_id and c.claim_token + 0 = (gate.destination).probe_token) is null
                and (select r.id from outbox.report as r
                     where r.message_id = (gate.destination).probe_id and r.claim_token = (gate.destination).probe_token
                     order by r.message_id, r.claim_token limit 1) is null
           then 1 else 0 end
    when (gate.destination).state = 'recovering' and gate.now < (gate.destination).lifted_at + interval '10 s' then
      1 << greatest(floor(extract(epoch from gate.now - (gate.destination).lifted_at)), 0)::int
  end;
end;
comment on function outbox.gate is 'How many messages of a destination one claim may take';
revoke all on function outbox.gate from public;
