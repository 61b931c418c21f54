package integration

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

var (
	clock   = regexp.MustCompile(`(\d{4,5}-\d\d-\d\d )?\d\d:\d\d:\d\d`)
	session = regexp.MustCompile(`pid \d+`)
	span    = regexp.MustCompile(`^(.*)\[(\d+)\.\.(\d+)\](.*)$`)
	moment  = regexp.MustCompile(`^-?\d+(s|m|h|d)$`)
)

// plain takes out of a text what differs from run to run.
func (s *scenario) plain(text string) string {
	text = clock.ReplaceAllString(text, "TIME")
	text = session.ReplaceAllString(text, "PID")
	return strings.ReplaceAll(text, s.db.Owner, "OWNER")
}

// do runs one command, and returns what it prints.
func (s *scenario) do(t *testing.T, line string) (string, error) {
	t.Helper()
	c := parse(line)
	switch c.name {
	case "config":
		return s.config(t, c)
	case "enqueue":
		return s.enqueue(t, c)
	case "claim":
		return s.claim(t, c)
	case "commit", "rollback":
		tx := s.sessions[c.args[0]]
		delete(s.sessions, c.args[0])
		if c.name == "commit" {
			return "", tx.Commit(t.Context())
		}
		return "", tx.Rollback(t.Context())
	case "explain":
		return s.explain(t, c)
	case "complete", "retry", "fail", "release", "extend":
		return s.settle(t, c)
	case "unreachable", "broken", "busy", "gone", "complete-all":
		return s.failDestination(t, c)
	case "hold", "lift", "shared", "ramp", "later", "observe", "holds", "destinations":
		return s.destination(t, c)
	case "pause", "resume", "end":
		return s.pause(t, c)
	case "due":
		when := "now"
		if len(c.args) > 0 && !strings.Contains(c.args[0], "/") {
			when, c.args = c.args[0], c.args[1:]
		}
		return "", s.exec(t, `update outbox.pending as p set visible_after = `+instant(when)+`, ripe = `+instant(when)+` <= clock_timestamp() from outbox.message as m
			where m.id = p.id and (m.dispatch_key = any ($1) or coalesce(cardinality($1::text[]), 0) = 0)`, c.args)
	case "expire":
		return "", s.exec(t, `update outbox.claimed as c set lease_until = clock_timestamp() - interval '1 s' from outbox.message as m
			where m.id = c.id and m.dispatch_key = any ($1)`, c.args)
	case "quota":
		if c.args[1] == "default" {
			return s.table(t, "select 'had none' from outbox.clear_quota($1) as c where not c", c.args[0])
		}
		return "", s.exec(t, "select outbox.set_quota($1, $2::text::int, $3)", c.args[0], c.args[1], slices.Contains(c.args[2:], "strict"))
	default:
		return s.ask(t, c)
	}
}

// ask runs one of the commands that print a table.
func (s *scenario) ask(t *testing.T, c command) (string, error) {
	t.Helper()
	switch c.name {
	case "why":
		return s.table(t, `select m.key || ': ' || concat_ws(', ', w.state, 'attempts ' || w.attempts) || ': ' || w.reason ||
			coalesce(e'\n  ' || array_to_string(w.failures, e'\n  '), '')
			from unnest($1::text[]) with ordinality as m(key, n), outbox.why(m.key) as w order by m.n`, c.args)
	case "rescue":
		return s.table(t, "select m.dispatch_key || ' is ' || r.state from outbox.rescue(coalesce($1::text::int, 1000)) as r join outbox.message as m on m.id = r.id order by m.id", c.opt("max"))
	case "cancel":
		return s.table(t, "select c.dispatch_key || ' was ' || c.was from outbox.cancel($1) as c order by 1", c.args)
	case "redrive":
		return s.table(t, `select m.dispatch_key || ' is back' from outbox.redrive(array(select m.id from outbox.message as m where m.dispatch_key = any ($1))) as r
			join outbox.message as m on m.id = r order by m.id`, c.args)
	case "cancel-namespace", "redrive-namespace":
		return s.table(t, "select n || ' messages' from outbox."+strings.Replace(c.name, "-", "_", 1)+"($1, $2::text::int) as n", c.args[0], c.opt("max"))
	case "prune":
		failed := c.has("failed")
		var age *string
		if len(c.args) > 0 {
			age = &c.args[0]
		}
		return s.table(t, "select n || ' messages' from outbox.prune($1::text::interval, failed => $2) as n", age, failed)
	case "show":
		return s.show(t, c)
	default:
		return "", fmt.Errorf("no such command: %s", c.name)
	}
}

// table runs a query of one column, and prints its rows as lines. The redrive that
// has two forms needs the names of both, hence the replacement above.
func (s *scenario) table(t *testing.T, sql string, args ...any) (string, error) {
	t.Helper()
	rows, err := s.conn.Query(t.Context(), strings.Replace(sql, "outbox.redrive_namespace(", "outbox.redrive(", 1), args...)
	if err != nil {
		return "", err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if len(lines) == 0 {
		return "", err
	}
	return strings.Join(lines, "\n") + "\n", err
}

func (s *scenario) exec(t *testing.T, sql string, args ...any) error {
	t.Helper()
	_, err := s.conn.Exec(t.Context(), sql, args...)
	return err
}

// instant is SQL for a time: now, 1h from now, 1h ago as -1h, or an instant.
func instant(when string) string {
	switch {
	case when == "now":
		return "clock_timestamp()"
	case moment.MatchString(when):
		return "clock_timestamp() + interval '" + strings.Replace(when, "m", "min", 1) + "'"
	default:
		return "timestamptz '" + when + "'"
	}
}

func (s *scenario) config(t *testing.T, c command) (string, error) {
	var pairs []string
	for name, value := range c.opts {
		pairs = append(pairs, fmt.Sprintf("%q: %q", name, value))
	}
	return "", s.exec(t, "select outbox.configure($1)", "{"+strings.Join(pairs, ",")+"}")
}

// expand gives a1, a2, a3 for a[1..3].
func expand(word string) []string {
	m := span.FindStringSubmatch(word)
	if m == nil {
		return []string{word}
	}
	from, _ := strconv.Atoi(m[2])
	to, _ := strconv.Atoi(m[3])
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, expand(fmt.Sprintf("%s%0*d%s", m[1], len(m[3]), i, m[4]))...)
	}
	return all
}

// keyRange gives a/q/1, a/q/2, a/q/3 for a/q/[1..3], as enqueue names keys, and otherwise what expand gives.
func keyRange(word string) []string {
	m := span.FindStringSubmatch(word)
	if m == nil || m[4] != "" {
		return expand(word)
	}
	from, _ := strconv.Atoi(m[2])
	to, _ := strconv.Atoi(m[3])
	var keys []string
	for i := from; i <= to; i++ {
		keys = append(keys, m[1]+strconv.Itoa(i))
	}
	return keys
}

func (s *scenario) enqueue(t *testing.T, c command) (string, error) {
	var lanes []string
	add := func(n int) error {
		for range n {
			for _, lane := range lanes {
				s.count[lane]++
				if err := s.enqueueOne(t, c, lane, s.count[lane]); err != nil {
					return err
				}
			}
		}
		lanes = nil
		return nil
	}
	for _, arg := range c.args {
		if n, err := strconv.Atoi(strings.TrimPrefix(arg, "x")); err == nil && arg[0] == 'x' {
			if err := add(n); err != nil {
				return "", err
			}
			continue
		}
		if len(lanes) > 0 {
			if err := add(1); err != nil {
				return "", err
			}
		}
		lanes = expand(arg)
	}
	return "", add(min(1, len(lanes)))
}

func (s *scenario) enqueueOne(t *testing.T, c command, lane string, n int) error {
	namespace, queue, _ := strings.Cut(lane, "/")
	size, err := strconv.Atoi(c.or("bytes", "0"))
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s/%d", lane, n)
	if err := s.exec(t, "select outbox.enqueue($1, $2, $3, $4::bytea)", namespace, queue, key, make([]byte, size)); err != nil {
		return err
	}
	return s.exec(t, `update outbox.pending as p set shard = coalesce($2::text::int, p.shard), visible_after = `+instant(c.or("due", "-1h"))+`,
		  ripe = `+instant(c.or("due", "-1h"))+` <= clock_timestamp()
		where p.id = (select m.id from outbox.message as m where m.dispatch_key = $1)`, key, c.opt("shard"))
}

// shards turns 0-3,7 into SQL for an array.
func shards(list string) string {
	switch list {
	case "":
		return "outbox.all_shards()"
	case "none":
		return "'{}'"
	}
	var parts []string
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		parts = append(parts, fmt.Sprintf("array(select generate_series(%s, %s))", from, to))
	}
	return strings.Join(parts, " || ")
}

// session is an open transaction of that name.
func (s *scenario) session(t *testing.T, name string) pgx.Tx {
	t.Helper()
	if s.sessions[name] == nil {
		s.sessions[name] = begin(t, s.db.Connect(t, pgtest.Param("application_name", name)))
	}
	return s.sessions[name]
}

func (s *scenario) claim(t *testing.T, c command) (string, error) {
	t.Helper()
	var q querier = s.conn
	if name := c.opts["in"]; name != "" {
		q = s.session(t, name)
	}
	times, err := strconv.Atoi(c.or("times", "1"))
	if err != nil {
		return "", err
	}
	sum := c.has("sum")
	var out strings.Builder
	for range times {
		rows, _ := q.Query(t.Context(), "select "+claimColumns+" from outbox.claim_fair($1, "+shards(c.opts["shards"])+", $2::text::int, $3::text::bigint)",
			c.args[0], c.or("batch", "100"), c.opt("max_bytes"))
		got, err := pgx.CollectRows(rows, pgx.RowToStructByName[claimRow])
		if err != nil {
			return "", err
		}
		for _, row := range got {
			s.tokens[row.Key] = append(s.tokens[row.Key], row.Token)
		}
		out.WriteString(claimText(got, sum))
		if how := c.opts["then"]; how != "" {
			for _, row := range got {
				settle(t, q, how, row.ID, row.Token)
			}
		}
	}
	return out.String(), nil
}

// claimText prints claimed rows: the keys by pass, or how many of each namespace.
func claimText(rows []claimRow, sum bool) string {
	if len(rows) == 0 {
		return "nothing\n"
	}
	var passes [3][]string
	counts := map[string]int{}
	for _, row := range rows {
		passes[row.Pass] = append(passes[row.Pass], row.Key)
		counts[row.Namespace]++
	}
	if sum {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
		}
		probes := ""
		if len(passes[0]) > 0 {
			probes = fmt.Sprintf("%d probes, ", len(passes[0]))
		}
		return fmt.Sprintf("%s%d and %d: %s\n", probes, len(passes[1]), len(passes[2]), strings.Join(parts, ", "))
	}
	text := ""
	if len(passes[0]) > 0 {
		text = "probes:   " + strings.Join(passes[0], " ") + "\n"
	}
	if len(passes[1]) > 0 {
		text += "slices:   " + strings.Join(passes[1], " ") + "\n"
	}
	if len(passes[2]) > 0 {
		text += "leftover: " + strings.Join(passes[2], " ") + "\n"
	}
	return text
}

func (s *scenario) explain(t *testing.T, c command) (string, error) {
	return s.table(t, `select case when x.namespace is null then x.reason
			else format('%s: due %s, claimed %s, quota %s, ceiling %s, headroom %s, slice %s, %s + %s: %s', x.namespace, x.due,
				x.claimed, x.quota, x.ceiling, x.headroom, coalesce(x.slice::text, '-'), x.pass1, x.pass2, x.reason) end
		from outbox.explain_claim($1, `+shards(c.opts["shards"])+`, $2::text::int, $3::text::bigint, $4) as x`,
		c.args[0], c.or("batch", "100"), c.opt("max_bytes"), c.opt("only"))
}

func (s *scenario) settle(t *testing.T, c command) (string, error) {
	back := 1
	if c.has("old") {
		back = 2
	}
	quiet := c.has("quiet")
	var q querier = s.conn
	if name := c.opts["in"]; name != "" {
		q = s.session(t, name)
	}
	var keys []string
	for _, arg := range c.args {
		keys = append(keys, keyRange(arg)...)
	}
	var out strings.Builder
	for _, key := range keys {
		tokens := s.tokens[key]
		if len(tokens) < back {
			return out.String(), fmt.Errorf("%s was not claimed that often", key)
		}
		sql := "select count(*) from outbox." + c.name + "(array(select m.id from outbox.message as m where m.dispatch_key = $1), array[$2::bigint]"
		args := []any{key, tokens[len(tokens)-back]}
		if c.name == "retry" || c.name == "fail" {
			sql += ", array[$3::text]"
			args = append(args, c.opt("error"))
		}
		if c.name == "retry" {
			sql += ", array[$4::text::interval]"
			args = append(args, c.opt("delay"))
		}
		rows, _ := q.Query(t.Context(), sql+")", args...)
		n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		if err != nil {
			return out.String(), err
		}
		if quiet && n == 1 {
			continue
		}
		fmt.Fprintf(&out, "%s: %s\n", key, [...]string{"lost", c.name}[n])
	}
	return out.String(), nil
}

func (s *scenario) pause(t *testing.T, c command) (string, error) {
	namespace, queue, isRoute := strings.Cut(c.args[0], "/")
	args := []any{&namespace, &queue}
	if namespace == "*" {
		args[0] = nil
	}
	if !isRoute {
		args[1] = nil
	}
	switch c.name {
	case "end":
		return "", s.exec(t, `update outbox.pause as p set until = clock_timestamp()
			where p.namespace is not distinct from $1 and p.task_queue is not distinct from $2`, args...)
	case "resume":
		return s.table(t, "select 'was not paused' from outbox.resume($1, $2) as r where not r", args...)
	}
	until := "null"
	if when := c.opts["until"]; when != "" {
		until = instant(when)
	}
	return s.table(t, "select 'was paused' from outbox.pause($1, $2, $3, "+until+", $4) as p where not p", append(args, c.opt("note"), namespace == "*" && !isRoute)...)
}

func (s *scenario) show(t *testing.T, c command) (string, error) {
	sum := c.has("sum")
	var namespace *string
	if len(c.args) > 0 {
		namespace = &c.args[0]
	}
	if sum {
		return s.table(t, `select m.namespace || ': ' || string_agg(m.status || ' ' || m.n, ', ' order by m.status)
			from (select m.namespace, m.status, count(*) as n from outbox.messages as m where m.namespace = coalesce($1, m.namespace) group by 1, 2) as m
			group by m.namespace order by 1`, namespace)
	}
	return s.table(t, `select m.dispatch_key || ' ' || m.status || ', attempt ' || m.attempt
		|| case when m.status <> 'pending' then '' when m.visible_after <= clock_timestamp() then ', due' else ', not due' end
		|| coalesce(', by ' || m.claimed_by, '') || coalesce(', ' || m.error, '')
		from outbox.messages as m where m.namespace = coalesce($1, m.namespace) order by m.id`, namespace)
}
