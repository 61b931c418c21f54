create or replace function outbox.retry_delay(
  attempt int, base interval, multiplier float8, cap interval, jitter float8, rnd float8)
returns interval
language sql immutable parallel safe
-- Exponential backoff with proportional jitter: base * multiplier ^ (attempt - 1), at
-- most cap, times 1 +- jitter; rnd is uniform in [0, 1). The exponent is compared in
-- logarithms first, so that no attempt number overflows.
begin atomic
  select make_interval(secs =>
    case when (greatest(retry_delay.attempt, 1) - 1) * ln(retry_delay.multiplier)
              >= ln(extract(epoch from retry_delay.cap)::float8 / extract(epoch from retry_delay.base)::float8)
         then extract(epoch from retry_delay.cap)::float8
         else extract(epoch from retry_delay.base)::float8
              * power(retry_delay.multiplier, greatest(retry_delay.attempt, 1) - 1)
    end * (1 + retry_delay.jitter * (2 * retry_delay.rnd - 1)));
end;
comment on function outbox.retry_delay is 'The backoff after a failed attempt';
revoke all on function outbox.retry_delay from public;
