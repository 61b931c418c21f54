package integration

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

// TestSnapshotChange runs what the snapshot tool writes for changes that the
// server cannot make by create or replace, in both directions.
func TestSnapshotChange(t *testing.T) {
	t.Parallel()
	f := "create or replace function outbox.f(a int) returns int language sql begin atomic select a; end;\nrevoke all on function outbox.f from public;\n"
	g := "-- requires: f.sql\ncreate or replace function outbox.g() returns int language sql begin atomic select outbox.f(1); end;\n"
	v := "-- requires: g.sql\ncreate or replace view outbox.v as select outbox.g() as a, 2 as b;\n"
	w := "create or replace function outbox.w() returns trigger language plpgsql as $$ begin return new; end $$;\n" +
		"create or replace trigger w before update on outbox.t for each row execute function outbox.w();\n"
	base := map[string]string{"f.sql": f, "g.sql": g, "v.sql": v, "w.sql": w}

	for name, tc := range map[string]struct {
		change   map[string]string
		recreate []string
	}{
		"another type, dependents": {change: map[string]string{"f.sql": strings.Replace(f, "a int", "a bigint", 1)}},
		"another name":             {change: map[string]string{"f.sql": strings.NewReplacer("a int", "b int", "select a", "select b").Replace(f)}},
		"one more parameter":       {change: map[string]string{"f.sql": strings.Replace(f, "a int", "a int, b text default 'x'", 1)}},
		"another result":           {change: map[string]string{"g.sql": strings.Replace(g, "returns int", "returns bigint", 1)}},
		"a narrower view":          {change: map[string]string{"v.sql": strings.Replace(v, ", 2 as b", "", 1)}, recreate: []string{"v.sql"}},
		"a new overload":           {change: map[string]string{"w.sql": w + "create function outbox.w(a int default 1) returns int language sql as 'select 1';\n"}},
		"files gone":               {change: map[string]string{"v.sql": "", "w.sql": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := emptyDatabase(t).Connect(t)
			execScript(t, conn, "create schema outbox; create table outbox.t (a int)")
			after := fstest.MapFS{}
			before := fstest.MapFS{}
			for file, text := range base {
				before[file] = &fstest.MapFile{Data: []byte(text)}
				if changed, ok := tc.change[file]; ok {
					text = changed
				}
				if text != "" {
					after[file] = &fstest.MapFile{Data: []byte(text)}
				}
			}
			from, to := readFunctions(t, before), readFunctions(t, after)
			execScript(t, conn, functionsDiff(t, nil, from, nil).SQL)
			first := describeSchema(t, conn, true)
			up := functionsDiff(t, from, to, tc.recreate)
			execScript(t, conn, up.SQL)
			second := describeSchema(t, conn, true)
			if first == second {
				t.Error("the change changed nothing")
			}
			execScript(t, conn, functionsDiff(t, to, from, tc.recreate).SQL)
			wantSchema(t, conn, first)

			fresh := emptyDatabase(t).Connect(t)
			execScript(t, fresh, "create schema outbox; create table outbox.t (a int)")
			execScript(t, fresh, functionsDiff(t, nil, to, nil).SQL)
			wantSchema(t, fresh, second)
		})
	}
}

func readFunctions(t *testing.T, dir fstest.MapFS) []functions.File {
	t.Helper()
	files, err := functions.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func functionsDiff(t *testing.T, from, to []functions.File, recreate []string) functions.Change {
	t.Helper()
	c, err := functions.Diff(from, to, recreate)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
