package integration

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// sqlFunction is a function of the schema outbox, as the catalog has it.
type sqlFunction struct {
	Name      string
	Types     string   // of the arguments, where several functions have the name
	Arguments []string // their names
	Signature string   // as in a create function statement
	Comment   string
	Body      string
	Level     int // of the least role that may call it: an index of publicLevels, or len(publicLevels)
}

// publicLevels are the roles that the grant functions make, each with all rights of those before,
// and the owner, who alone may call these functions.
var publicLevels = []struct{ role, title, who string }{
	{"producer", "Functions for producers", "producer, worker, operator"},
	{"worker", "Functions for workers", "worker, operator"},
	{"operator", "Functions for operators", "operator"},
	{"", "Functions for the owner", "the owner of the schema"},
}

// describePublic is the generated part of docs/sql.md.
func describePublic(t *testing.T) string {
	t.Helper()
	db := pg.New(t)
	var roles []string
	for _, level := range publicLevels {
		if level.role != "" {
			roles = append(roles, db.Role(t).Name)
			run(t, db.Pool, "select outbox.grant_"+level.role+"($1)", roles[len(roles)-1])
		}
	}
	tx := begin(t, db.Connect(t))
	run(t, tx, "set local search_path = ''")
	run(t, tx, "set local intervalstyle = 'postgres'")
	rows, _ := tx.Query(t.Context(), publicFunctionsQuery, roles)
	functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sqlFunction])
	if err != nil {
		t.Fatal(err)
	}
	calls := newCallGraph(t, tx, functions)

	var out, index strings.Builder
	index.WriteString("\n| function or view | who may use it | what it does |\n| --- | --- | --- |\n")
	for i, level := range publicLevels {
		fmt.Fprintf(&out, "\n## %s\n", level.title)
		for _, f := range functions {
			if f.Level != i {
				continue
			}
			heading := f.Name + f.Types
			fmt.Fprintf(&index, "| [%s](#%s) | %s | %s |\n", heading, anchor(heading), level.who, f.Comment)
			fmt.Fprintf(&out, "\n### %s\n\n%s. Who may call it: %s.\n\n```sql\n%s\n```\n", heading, f.Comment, level.who, f.Signature)
			if text := headerComment(f.Body); text != "" {
				fmt.Fprintf(&out, "\n%s\n", text)
			}
			if refusals := calls.refusals(f); len(refusals) > 0 {
				fmt.Fprintf(&out, "\nErrors:\n\n- %s\n", strings.Join(refusals, "\n- "))
			}
		}
	}
	out.WriteString("\n## Views\n")
	who := publicLevels[len(roles)-1].who
	rows, _ = tx.Query(t.Context(), publicViewsQuery, roles[len(roles)-1])
	var name, comment, columns string
	if _, err := pgx.ForEachRow(rows, []any{&name, &comment, &columns}, func() error {
		fmt.Fprintf(&index, "| [%s](#%s) | %s | %s |\n", name, anchor(name), who, comment)
		fmt.Fprintf(&out, "\n### %s\n\n%s. Who may select from it: %s.\n\n| column | type |\n| --- | --- |\n%s\n", name, comment, who, columns)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "\n## The type outbox.config\n\nWhat `settings` and `configure` return.\n\n%s\n", one[string](t, tx, configTypeQuery))
	return index.String() + out.String()
}

// anchor is what the address of a heading ends with.
func anchor(heading string) string {
	return strings.ReplaceAll(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// headerComment is the comment that a function's body begins with, as paragraphs.
func headerComment(body string) string {
	var lines []string
	for line := range strings.Lines(strings.TrimLeft(body, "\n")) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "--")
		if !ok {
			break
		}
		lines = append(lines, strings.TrimPrefix(text, " "))
	}
	return strings.Join(lines, "\n")
}

// callGraph knows which functions a function calls, also by the triggers of the tables that it
// writes, as far as its text says so.
type callGraph struct {
	byName   map[string]sqlFunction
	triggers map[string]string // table: function
}

func newCallGraph(t *testing.T, q querier, functions []sqlFunction) callGraph {
	t.Helper()
	g := callGraph{byName: map[string]sqlFunction{}, triggers: map[string]string{}}
	for _, f := range functions {
		// Of functions with one name, the others call the one that calls none of them.
		if _, ok := g.byName[f.Name]; !ok || !strings.Contains(f.Body, "outbox."+f.Name+"(") {
			g.byName[f.Name] = f
		}
	}
	rows, _ := q.Query(t.Context(), `select c.relname::text, p.proname::text
		from pg_trigger as t join pg_class as c on c.oid = t.tgrelid join pg_proc as p on p.oid = t.tgfoid
		where c.relnamespace = 'outbox'::regnamespace and not t.tgisinternal`)
	var table, function string
	if _, err := pgx.ForEachRow(rows, []any{&table, &function}, func() error {
		g.triggers[table] = function
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return g
}

var (
	sqlComment = regexp.MustCompile(`(?m)(^|\s)--.*$`)
	sqlCall    = regexp.MustCompile(`outbox\.(\w+)\(`)
	sqlWrite   = regexp.MustCompile(`(insert into|update|delete from) outbox\.(\w+)`)
	sqlRaise   = regexp.MustCompile(`(?s)raise exception '((?:[^']|'')*)'[^;]*?errcode = '(\w+)'(?:, hint = '((?:[^']|'')*)')?`)
	sqlCaught  = regexp.MustCompile(`(?s)\n\s*exception\s+when (.*?) then`)
	sqlString  = regexp.MustCompile(`'((?:[^']|'')*)'`)
	onDelete   = regexp.MustCompile(`(?s)\n  if tg_op = 'DELETE' then\n.*?\n  end if;`)
	raisesOf   = regexp.MustCompile(`^Raises (\d\w{4}) (.*)`)
	wordOf     = regexp.MustCompile(`\w+`)
)

// conditions are the SQLSTATEs of the conditions that functions raise by name, and the class by
// which another one catches it.
var conditions = map[string][2]string{
	"internal_error":         {"XX000", "internal_error"},
	"insufficient_privilege": {"42501", "insufficient_privilege"},
	"check_violation":        {"23514", "integrity_constraint_violation"},
}

// refusals are the errors that a function raises, itself or in what it calls: what is refused,
// and what to do.
func (g callGraph) refusals(f sqlFunction) []string {
	c := refusalCollector{callGraph: g, about: f, hints: map[string][]string{}, seen: map[string]bool{}}
	c.visit(f, f.Body, nil)
	slices.SortStableFunc(c.order, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Index(b, "OB"), strings.Index(a, "OB")), cmp.Compare(firstWord(a), firstWord(b)))
	})
	var lines []string
	last := ""
	for _, what := range c.order {
		hint := strings.Join(c.hints[what], " ")
		if argument, ok := strings.CutPrefix(what, "`OB001` for "); ok && hint == last {
			end := strings.Index(lines[len(lines)-1], ". ") // of the arguments that ask for the same
			lines[len(lines)-1] = lines[len(lines)-1][:end] + ", " + argument + ". " + hint
			continue
		}
		last = hint
		lines = append(lines, strings.TrimSpace(strings.TrimSuffix(what, ".")+". "+hint))
	}
	return lines
}

// refusalCollector gathers the errors that a function raises from the text of all that it calls.
type refusalCollector struct {
	callGraph
	about sqlFunction
	order []string            // what is refused
	hints map[string][]string // by what is refused
	seen  map[string]bool     // calls and tables that were visited
}

func (c *refusalCollector) add(what, hint string) {
	if _, ok := c.hints[what]; !ok {
		c.order = append(c.order, what)
		c.hints[what] = nil
	}
	if hint != "" && !slices.Contains(c.hints[what], hint) {
		c.hints[what] = append(c.hints[what], hint)
	}
}

// visit reads the body of a function, or what counts of it. given has the expressions that the
// caller gave for its arguments.
func (c *refusalCollector) visit(function sqlFunction, body string, given map[string]string) {
	body = sqlComment.ReplaceAllString(body, "")
	plain := sqlString.ReplaceAllStringFunc(body, func(s string) string { return strings.Repeat("'", len(s)) })
	if m := raisesOf.FindStringSubmatch(function.Comment); m != nil {
		c.add("`"+m[1]+"` "+m[2], "")
	}
	for _, m := range sqlRaise.FindAllStringSubmatch(body, -1) {
		message := unquote(m[1])
		if _, rest, ok := strings.Cut(message, ": "); ok && strings.HasPrefix(message, "outbox.") {
			message = rest
		}
		c.add("`"+stateOf(m[2])+"`: "+message, unquote(m[3]))
	}
	for _, at := range sqlCall.FindAllStringSubmatchIndex(plain, -1) {
		c.call(function, body[at[2]:at[3]], callArguments(body[at[1]:]), given)
	}
	for _, m := range sqlWrite.FindAllStringSubmatch(plain, -1) {
		if trigger, ok := c.byName[c.triggers[m[2]]]; ok && !c.seen[m[2]] && trigger.Name != function.Name {
			c.seen[m[2]] = true
			body := trigger.Body
			if m[1] != "delete from" {
				body = onDelete.ReplaceAllString(body, "")
			}
			c.visit(trigger, body, nil)
		}
	}
	// What the function catches does not come out of it.
	for _, m := range sqlCaught.FindAllStringSubmatch(body, -1) {
		for condition, state := range conditions {
			if strings.Contains(m[1], state[1]) {
				c.order = slices.DeleteFunc(c.order, func(what string) bool { return strings.HasPrefix(what, "`"+stateOf(condition)+"`") })
			}
		}
	}
}

// call takes in one call that a function makes.
func (c *refusalCollector) call(function sqlFunction, name string, args []string, given map[string]string) {
	if name == "bad_argument" {
		if what, ok := refusedArgument(c.about, cmp.Or(given[args[1]], args[1])); ok {
			for _, m := range sqlString.FindAllStringSubmatch(args[3], -1) {
				if hint := unquote(m[1]); strings.HasSuffix(hint, ".") {
					c.add(what, hint)
				}
			}
		}
		return
	}
	called, ok := c.byName[name]
	key := name + "(" + strings.Join(args, ",")
	if !ok || called.Body == function.Body || c.seen[key] {
		return
	}
	c.seen[key] = true
	passed := map[string]string{}
	for i, argument := range called.Arguments {
		if i < len(args) {
			passed[name+"."+argument] = cmp.Or(given[args[i]], args[i])
		}
	}
	c.visit(called, called.Body, passed)
}

func firstWord(what string) string { return wordOf.FindString(what) }

// stateOf is that of a condition, which may be given as one.
func stateOf(condition string) string {
	if state, ok := conditions[condition]; ok {
		return state[0]
	}
	return condition
}

// refusedArgument says which argument of f an OB001 is about, by the expression that names it;
// false where it is about one that f does not have.
func refusedArgument(f sqlFunction, expression string) (string, bool) {
	literals := sqlString.FindAllStringSubmatch(expression, -1)
	if literals == nil {
		return "`OB001` for an array that does not fit the others", true
	}
	name := unquote(literals[0][1])
	if name == "…[…]" {
		return "`OB001` for an element of an array", true
	}
	for _, word := range wordOf.FindAllString(name, -1) {
		if word != "or" && !slices.Contains(f.Arguments, word) {
			return "", false
		}
	}
	return "`OB001` for `" + strings.NewReplacer(", ", "`, `", " or ", "` or `").Replace(name) + "`", true
}

// unquote is what a string literal says, with an ellipsis for what is filled in.
func unquote(literal string) string {
	return regexp.MustCompile(`%s?`).ReplaceAllString(strings.ReplaceAll(literal, "''", "'"), "…")
}

// callArguments are the arguments of a call, given the text behind its opening parenthesis.
func callArguments(text string) []string {
	depth, quoted, from := 0, false, 0
	var args []string
	for i, c := range text {
		switch {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(' || c == '[':
			depth++
		case depth > 0 && (c == ')' || c == ']'):
			depth--
		case depth == 0 && (c == ',' || c == ')'):
			args = append(args, strings.TrimSpace(text[from:i]))
			from = i + 1
			if c == ')' {
				return args
			}
		}
	}
	return args
}

// publicFunctionsQuery gives all functions, in the order of their names. $1: the roles of
// publicLevels.
const publicFunctionsQuery = `
with arg as (
  select p.oid, a.n, a.name, format_type(a.type, null) as type, a.mode,
         ' default ' || regexp_replace(
           pg_get_function_arg_default(p.oid, (a.n)::int), '^(NULL|''.*''|[^:]+)::[a-z]+( [a-z]+)*(\[\])?$', '\1') as preset
  from pg_proc as p
  cross join lateral unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]),
    coalesce(p.proargmodes, array_fill('i'::"char", array[p.pronargs::int]))) with ordinality as a(name, type, mode, n)
  where p.pronamespace = 'outbox'::regnamespace
), part as (
  select a.oid,
         coalesce(array_agg(a.name order by a.n) filter (where a.mode <> 't'), '{}') as names,
         string_agg(concat(rpad(quote_ident(a.name), w.width), ' ', a.type,
           lower(a.preset)), E',\n  ' order by a.n) filter (where a.mode <> 't') as takes,
         string_agg(concat(rpad(quote_ident(a.name), w.width), ' ', a.type),
           E',\n  ' order by a.n) filter (where a.mode = 't') as gives
  from arg as a
  cross join lateral (
    select max(length(quote_ident(b.name))) as width from arg as b
    where b.oid = a.oid and (b.mode = 't') = (a.mode = 't')
  ) as w
  group by a.oid
)
select p.proname::text,
       case when count(*) over (partition by p.proname) > 1 then format('(%s)', oidvectortypes(p.proargtypes)) else '' end,
       coalesce(a.names, '{}'),
       concat('outbox.', p.proname, '(', case when p.pronargs > 1 then E'\n  ' end, a.takes, ')', E'\nreturns ',
         coalesce(E'table (\n  ' || a.gives || ')', lower(pg_get_function_result(p.oid)))),
       coalesce(obj_description(p.oid, 'pg_proc'), ''),
       p.prosrc || coalesce(pg_get_function_sqlbody(p.oid), ''),
       case when p.proname ~ '^(grant|revoke)_' then cardinality($1::text[])
            else coalesce((select min(r.n) - 1 from unnest($1::text[]) with ordinality as r(name, n)
                           where has_function_privilege(r.name, p.oid, 'execute')), 99) end::int
from pg_proc as p left join part as a on a.oid = p.oid
where p.pronamespace = 'outbox'::regnamespace
order by p.proname collate "C", oidvectortypes(p.proargtypes) collate "C"`

// publicViewsQuery gives name, comment and columns of each view. $1: the role that may select from them.
const publicViewsQuery = `
select c.relname::text, obj_description(c.oid, 'pg_class'),
         (select string_agg(format('| %s | %s |', a.attname, format_type(a.atttypid, a.atttypmod)), E'\n' order by a.attnum)
          from pg_attribute as a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)
from pg_class as c
where c.relnamespace = 'outbox'::regnamespace and has_table_privilege($1, c.oid, 'select')
order by c.relname collate "C"`

// configTypeQuery gives the columns of outbox.config, which some functions return.
const configTypeQuery = `
select E'| column | type | default | |\n| --- | --- | --- | --- |\n'
       || string_agg(format('| %s | %s | %s | %s |', a.attname, format_type(a.atttypid, a.atttypmod),
            regexp_replace(pg_get_expr(d.adbin, d.adrelid), '::[a-z ]+$', ''),
            coalesce(col_description(a.attrelid, a.attnum), 'Always true: there is one row')), E'\n' order by a.attnum)
from pg_attribute as a
left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = 'outbox.config'::regclass and a.attnum > 0 and not a.attisdropped`
