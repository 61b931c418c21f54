package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// failDestination says of claimed messages that their destination failed, or that they are delivered, in one call.
func (s *scenario) failDestination(t *testing.T, c command) (string, error) {
	t.Helper()
	back := 1
	if c.has("old") {
		back = 2
	}
	shared := c.has("shared")
	var keys []string
	var tokens []int64
	for _, arg := range c.args {
		for _, key := range keyRange(arg) {
			if len(s.tokens[key]) < back {
				return "", fmt.Errorf("%s was not claimed that often", key)
			}
			keys = append(keys, key)
			tokens = append(tokens, s.tokens[key][len(s.tokens[key])-back])
		}
	}
	var q querier = s.conn
	if name := c.opts["in"]; name != "" {
		q = s.session(t, name)
	}
	call, args := `outbox.fail_destination(x.ids, $2, array_fill($3::text, array[cardinality($2::bigint[])]),
		  array_fill($4::text, array[cardinality($2::bigint[])]), array_fill($5::text::interval, array[cardinality($2::bigint[])]),
		  array_fill($6::boolean, array[cardinality($2::bigint[])]), array_fill($7::text, array[cardinality($2::bigint[])]))`,
		[]any{keys, tokens, c.name, c.opt("error"), c.opt("hold"), shared, c.opt("reached")}
	if c.name == "complete-all" {
		call, args = "outbox.complete(x.ids, $2)", args[:2]
	}
	rows, _ := q.Query(t.Context(), `select count(f.*)::int from (
		  select array_agg(m.id order by k.n) as ids from unnest($1::text[]) with ordinality as k(key, n) join outbox.message as m on m.dispatch_key = k.key
		) as x cross join lateral `+call+` as f`, args...)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	if err == nil && n < len(keys) {
		return fmt.Sprintf("%d of %d are settled\n", n, len(keys)), nil
	}
	return "", err
}

// destination runs one of the commands about holds.
func (s *scenario) destination(t *testing.T, c command) (string, error) {
	t.Helper()
	of := func(what string) (*string, string) {
		namespace, queue, _ := strings.Cut(what, "/")
		if namespace == "*" {
			return nil, queue
		}
		return &namespace, queue
	}
	switch c.name {
	case "hold":
		namespace, queue := of(c.args[0])
		return s.table(t, `select 'held until ' || case h when 'infinity' then 'somebody lifts it' else to_char(h, 'HH24:MI:SS') end from outbox.hold($1, $2, $3::text::interval, $4) as h`,
			namespace, queue, c.opt("for"), c.opt("reason"))
	case "lift":
		namespace, queue := of(c.args[0])
		return s.table(t, "select 'was not held' from outbox.lift($1, $2) as l where not l", namespace, queue)
	case "shared":
		return "", s.exec(t, "select outbox.set_shared($1, nullif($2, 'nodes')::boolean)", c.args[0], c.args[1])
	case "ramp": // until 2d later
		namespace, queue := of(c.args[0])
		return "", s.exec(t, `update outbox.destination as d set lifted_at = clock_timestamp() + interval '1 day'
			where d.state = 'recovering' and d.namespace is not distinct from $1 and d.task_queue = $2`, namespace, queue)
	case "later":
		if err := s.exec(t, `update outbox.destination as d set held_since = d.held_since - $1::text::interval, held_until = d.held_until - $1::text::interval,
			lifted_at = d.lifted_at - $1::text::interval, changed_at = d.changed_at - $1::text::interval`, c.args[0]); err != nil {
			return "", err
		}
		return "", s.exec(t, `update outbox.pending as p set visible_after = p.visible_after - $1::text::interval,
			ripe = p.ripe or p.visible_after - $1::text::interval <= clock_timestamp()`, c.args[0])
	case "observe":
		var namespaces []*string
		var queues []string
		for _, arg := range c.args {
			namespace, queue := of(arg)
			namespaces, queues = append(namespaces, namespace), append(queues, queue)
		}
		return s.table(t, `select concat_ws(': ', ($3::text[])[o.n], o.state || coalesce(' until ' || case o.held_until when 'infinity' then 'it is lifted' else to_char(o.held_until, 'HH24:MI:SS') end, ''), o.reason)
			from outbox.observe($1, $2) as o order by o.n`, namespaces, queues, c.args)
	case "holds":
		return s.table(t, `select format('%s/%s is %s, after %s failures, step %s%s', coalesce(h.namespace, '*'), h.task_queue, h.state, h.failures, h.step,
			  concat(', by ' || h.by, ', "' || h.reason || '"', ', message ' || (select m.dispatch_key from outbox.message as m where m.id = h.probe_id) || ' is out with ' || h.probed_by))
			from outbox.holds as h order by h.namespace nulls last, h.task_queue`)
	default: // destinations
		return s.table(t, `select format('%s/%s: %s, score %s of %s, step %s%s', coalesce(d.namespace, '*'), d.task_queue, d.state, d.score, cardinality(d.failed), d.step,
			  case when d.namespace is null and cardinality(d.failed_of) > 0 then format(', of %s namespaces', cardinality(d.failed_of)) else '' end)
			from outbox.destination as d order by d.namespace nulls last, d.task_queue`)
	}
}
