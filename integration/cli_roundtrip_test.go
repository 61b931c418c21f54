package integration

import (
	"strings"
	"testing"
)

// TestCLIRoundTrip: what a stdout sink writes, sweep enqueue reads, byte for byte.
func TestCLIRoundTrip(t *testing.T) {
	t.Parallel()
	from, to := pg.New(t), pg.New(t)
	run(t, from.Pool, `
		select outbox.enqueue('acme', 'mail', 'json', '{"a" : [1, 2]}', headers => '{"X-A": "b"}'),
		       outbox.enqueue('acme', 'mail', 'bytes', '\xff00fe'::bytea, 'application/octet-stream'),
		       outbox.enqueue(E'ac"me\n', 'mail', 'empty', '', 'text/plain')`)
	lines := sweep(t, from.DSN, "once", "--sink", "stdout")
	if n := strings.Count(lines, "\n"); n != 3 {
		t.Fatalf("%d lines: %s", n, lines)
	}
	call := sweepCall{dsn: to.DSN, args: []string{"enqueue"}, stdin: lines}
	if got := call.do(t); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	const all = `select string_agg(concat_ws('|', namespace, task_queue, dispatch_key, content_type, headers::text,
		encode(payload, 'hex')), E'\n' order by dispatch_key) from outbox.message`
	if a, b := one[string](t, from.Pool, all), one[string](t, to.Pool, all); a != b {
		t.Errorf("%s\nbecame\n%s", a, b)
	}
}
