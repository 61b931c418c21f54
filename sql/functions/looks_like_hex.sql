create or replace function outbox.looks_like_hex(payload text)
returns boolean
language sql immutable parallel safe
-- Whether a text is what bytea prints: a backslash, an x, and pairs of hex digits.
begin atomic
  select left(looks_like_hex.payload, 2) = chr(92) || 'x' and substr(looks_like_hex.payload, 3) ~ '^([0-9a-fA-F]{2})*$';
end;
comment on function outbox.looks_like_hex is 'Whether a text is what bytea prints in its hex form';
revoke all on function outbox.looks_like_hex from public;
