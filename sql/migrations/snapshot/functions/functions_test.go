package functions

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestParseObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string // the drop statements
	}{
		"defaults": {
			"create or replace function outbox.f(a text default 'x, (y', b int = 1,\n c interval DEFAULT null)\nreturns int language sql as $$ select 1 $$;",
			[]string{"drop function outbox.f(a text, b int, c interval);"},
		},
		"no arguments":       {"create function outbox.f() returns trigger language plpgsql as $$ $$;", []string{"drop function outbox.f();"}},
		"types with commas":  {"create function outbox.f(a numeric(10, 2), variadic b text[], inout \"only\" text) language sql as $$ $$;", []string{`drop function outbox.f(a numeric(10, 2), variadic b text[], inout "only" text);`}},
		"comments":           {"create function outbox.f(a int, -- the first, (see b)\n b int /* default 1, c int */) returns int language sql as $$ $$;", []string{"drop function outbox.f(a int, b int);"}},
		"only in a body":     {"create function outbox.f() returns int language plpgsql as $body$ create view outbox.g as select 'it''s' $body$;", []string{"drop function outbox.f();"}},
		"only in a constant": {"comment on function outbox.f is 'it''s: create view outbox.g';", nil},
		"atomic body":        {"create function outbox.f(a int) returns int language sql begin atomic select 1; select 2; end;", []string{"drop function outbox.f(a int);"}},
		"family":             {"create function outbox.f(a int) returns int language sql as $$ $$; create or replace procedure outbox.f(a text) language sql as $$ $$;", []string{"drop function outbox.f(a int);", "drop procedure outbox.f(a text);"}},
		"view":               {"create or replace view outbox.v with (security_barrier) as select 1;", []string{"drop view outbox.v;"}},
		"trigger":            {"create or replace trigger t before update\n on outbox.config for each row execute function outbox.f();", []string{"drop trigger t on outbox.config;"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("f.sql", tc.text)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range f.Objects {
				got = append(got, o.drop)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"another schema":     {"create function public.f() returns int language sql as $$ $$;", "must begin with outbox"},
		"no schema":          {"create view v as select 1;", "must begin with outbox"},
		"table":              {"create table outbox.t ();", "a migration of its own"},
		"transaction":        {"begin;\ncreate view outbox.v as select 1;\nCommit ;", "begins or ends a transaction"},
		"marker":             {"-- >>> sql/functions/f.sql\n", "marks the copies"},
		"endless constant":   {"comment on view outbox.v is 'x", "line 1: a string constant that does not end"},
		"endless body":       {"\ncreate function outbox.f() returns int language sql as $$ $b$;", "line 1: a body in $$ that does not end"},
		"backslash":          {"select 1;\nselect '\\n';", "line 2: a backslash"},
		"backslash in body":  {"create function outbox.f() returns int language sql as $$ select '\\n' $$;", "a backslash"},
		"no argument list":   {"create function outbox.f returns int;", "want an argument list"},
		"endless arguments":  {"create function outbox.f(a int", "does not end"},
		"trigger on a stray": {"create trigger t before update on config for each row execute function outbox.f();", "want: trigger name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f.sql", tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "f.sql: ") {
				t.Errorf("got %v, want f.sql: ... %s", err, tc.want)
			}
		})
	}
	if _, err := Parse("f.sql", "select E'\\'', $$ -- it's a \\ in a comment\n $$;"); err != nil {
		t.Errorf("an E'' constant and a comment: %v", err)
	}
}

func TestReadOrder(t *testing.T) {
	files, err := Read(fstest.MapFS{
		"a.sql":      {Data: []byte("-- requires: z.sql\n-- requires: m.sql views.sql\nselect 1;")},
		"grants.sql": {Data: []byte("select 1;")},
		"b.sql":      {Data: []byte("select 1;")},
		"m.sql":      {Data: []byte("-- requires: z.sql\nselect 1;")},
		"views.sql":  {Data: []byte("select 1;\n\n")},
		"z.sql":      {Data: []byte("select 1;")},
		"README.md":  {Data: []byte("no")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(files), "z m views a b grants"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}

	for want, dir := range map[string]fstest.MapFS{
		"a.sql -> b.sql -> a.sql":   {"a.sql": {Data: []byte("-- requires: b.sql\n")}, "b.sql": {Data: []byte("-- requires: a.sql\n")}},
		"a.sql requires b.sql, whi": {"a.sql": {Data: []byte("-- requires: b.sql\n")}},
	} {
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func names(files []File) string {
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name, ".sql"))
	}
	return strings.Join(all, " ")
}

func TestDiff(t *testing.T) {
	f := "create or replace function outbox.f(a int) returns int language sql begin atomic select 1; end;"
	g := "-- requires: f.sql\ncreate or replace function outbox.g() returns int language sql begin atomic select outbox.f(1); end;"
	h := "-- requires: g.sql\ncreate or replace view outbox.h as select outbox.g();"
	before := map[string]string{"f": f, "g": g, "h": h}
	for name, tc := range map[string]struct {
		to                 map[string]string
		recreate           []string
		installed, dropped string
		rights             string // names that it reads the rights on before, and grants again
	}{
		"nothing":            {to: map[string]string{"f": f + "\n\n"}},
		"another body":       {to: map[string]string{"f": strings.Replace(f, "select 1", "select 2", 1)}, installed: "f"},
		"another default":    {to: map[string]string{"f": strings.Replace(f, "a int", "a int default 1", 1)}, installed: "f"},
		"another argument":   {to: map[string]string{"f": strings.Replace(f, "a int", "a bigint", 1)}, installed: "f g h", dropped: "h g f", rights: "'f', 'g' 'h'"},
		"another name of it": {to: map[string]string{"f": strings.Replace(f, "a int", "b int", 1)}, installed: "f g h", dropped: "h g f", rights: "'f', 'g' 'h'"},
		"another result":     {to: map[string]string{"g": strings.Replace(g, "returns int", "returns bigint", 1)}, installed: "g h", dropped: "h g", rights: "'g' 'h'"},
		"one more overload":  {to: map[string]string{"f": f + "\ncreate function outbox.f(a text) returns int language sql as $$ $$;"}, installed: "f", rights: "'f'"},
		"a new file":         {to: map[string]string{"e": "-- requires: h.sql\ncreate view outbox.e as select 1;"}, installed: "e"},
		"no file":            {to: map[string]string{"h": ""}, dropped: "h"},
		"recreate":           {recreate: []string{"h.sql"}, installed: "h", dropped: "h", rights: "'h'"},
		"recreate the first": {recreate: []string{"f.sql"}, installed: "f g h", dropped: "h g f", rights: "'f', 'g' 'h'"},
	} {
		t.Run(name, func(t *testing.T) {
			after := map[string]string{"f": f, "g": g, "h": h}
			for name, text := range tc.to {
				after[name] = text
				if text == "" {
					delete(after, name)
				}
			}
			from, to := set(t, before), set(t, after)
			c, err := Diff(from, to, tc.recreate)
			if err != nil {
				t.Fatal(err)
			}
			trim := strings.NewReplacer(".sql", "")
			if got := trim.Replace(strings.Join(c.Installed, " ")); got != tc.installed {
				t.Errorf("installed %q, want %q", got, tc.installed)
			}
			if got := trim.Replace(strings.Join(c.Dropped, " ")); got != tc.dropped {
				t.Errorf("dropped %q, want %q", got, tc.dropped)
			}
			if got := rightsRead(c.SQL); got != tc.rights {
				t.Errorf("reads the rights on %s, want %s", got, tc.rights)
			}
			first, err := Diff(nil, from, nil)
			if err != nil {
				t.Fatal(err)
			}
			replayed, err := Installed(fstest.MapFS{"1": {Data: []byte(first.SQL)}, "2": {Data: []byte(c.SQL)}}, []string{"1", "2"})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(replayed, to, func(a, b File) bool { return a.Name == b.Name && a.Text == b.Text }) {
				t.Errorf("read back from the migrations: %v, want %v", names(replayed), names(to))
			}
		})
	}
	if _, err := Diff(nil, set(t, before), []string{"x.sql"}); err == nil {
		t.Error("a file that is not there was to be created again")
	}
}

// rightsRead returns the names of the functions and of the views whose rights a change
// carries over.
func rightsRead(sql string) string {
	if !strings.HasPrefix(sql, "-- Rights on") || !strings.HasSuffix(sql, "end $rights$;\n\n") {
		return ""
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?:proname|relname) in \((.*)null\)`).FindAllStringSubmatch(sql, -1) {
		if names := strings.TrimSuffix(m[1], ", "); names != "" {
			got = append(got, names)
		}
	}
	return strings.Join(got, " ")
}

// set is files in their order, by name without extension.
func set(t *testing.T, texts map[string]string) []File {
	t.Helper()
	dir := fstest.MapFS{}
	for name, text := range texts {
		dir[name+".sql"] = &fstest.MapFile{Data: []byte(text)}
	}
	files, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestInstalledRefuses(t *testing.T) {
	for want, text := range map[string]string{
		"does not end":             "-- >>> sql/functions/f.sql\nselect 1;\n",
		"ends without a beginning": "-- <<< sql/functions/f.sql\n",
		"requires g.sql":           "-- >>> sql/functions/f.sql\n-- requires: g.sql\nselect 1;\n-- <<< sql/functions/f.sql\n",
	} {
		if _, err := Installed(fstest.MapFS{"1": {Data: []byte(text)}}, []string{"1"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestDiffBindsAgain: what a migration without the pinned search_path bound to names is
// installed once more by the next one, and not dropped; other files are left alone.
func TestDiffBindsAgain(t *testing.T) {
	to := set(t, map[string]string{
		"atomic": "create or replace function outbox.atomic() returns int language sql begin atomic select 1; end;",
		"late":   "create or replace function outbox.late() returns int language sql as $$ select 1 $$;",
		"sight":  "create or replace view outbox.sight as select 1 as a;",
	})
	first, err := Diff(nil, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{first.SQL: "atomic.sql sight.sql", Pin + first.SQL: ""} {
		installed, err := Installed(fstest.MapFS{"1": {Data: []byte(text)}}, []string{"1"})
		if err != nil {
			t.Fatal(err)
		}
		c, err := Diff(installed, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(c.Installed, " "); got != want || len(c.Dropped) > 0 {
			t.Errorf("installed %q, dropped %v, want %q and none", got, c.Dropped, want)
		}
	}
}
