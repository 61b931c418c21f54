package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

// repository is a root with one migration by hand and the given files of
// sql/functions.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	put(t, root, "sql/migrations/000001_tables.up.sql", "create table outbox.t ();\n")
	put(t, root, "sql/migrations/000001_tables.down.sql", "drop table outbox.t;\n")
	for name, text := range files {
		put(t, root, "sql/functions/"+name, text)
	}
	return root
}

func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func mustRun(t *testing.T, root string, args ...string) string {
	t.Helper()
	var out strings.Builder
	if err := run(append([]string{"-root", root}, args...), &out); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out.String()
}

const (
	one = "create or replace view outbox.v as select 1 as a;\n"
	two = "create or replace view outbox.v as select 1 as a, 2 as b;\n"
)

func TestSnapshot(t *testing.T) {
	root := repository(t, map[string]string{"v.sql": one})
	if err := run([]string{"-root", root, "-check"}, io.Discard); err == nil || !strings.Contains(err.Error(), "v.sql") {
		t.Errorf("-check before the snapshot: %v", err)
	}
	mustRun(t, root, "-name", "views")
	mustRun(t, root, "-check")
	wantFile(t, root, "sql/migrations/000002_views.up.sql", functions.Pin+`
-- >>> snapshot

-- >>> sql/functions/v.sql
`+one+`-- <<< sql/functions/v.sql

-- <<< snapshot

insert into outbox.migration (version) values (2);
`)
	wantFile(t, root, "sql/migrations/000002_views.down.sql", functions.Pin+`delete from outbox.migration where version = 2;

-- >>> snapshot

-- dropped: sql/functions/v.sql
drop view outbox.v;

-- <<< snapshot
`)

	if out := mustRun(t, root, "-name", "again"); !strings.Contains(out, "nothing changed") {
		t.Errorf("a second snapshot: %s", out)
	}
	put(t, root, "sql/functions/v.sql", two)
	mustRun(t, root, "-name", "wider")
	wantFile(t, root, "sql/migrations/000003_wider.down.sql", functions.Pin+`delete from outbox.migration where version = 3;

-- >>> snapshot

-- >>> sql/functions/v.sql
`+one+`-- <<< sql/functions/v.sql

-- <<< snapshot
`)
}

func wantFile(t *testing.T, root, name, want string) {
	t.Helper()
	if got := get(t, root, name); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
	}
}

// TestAmend keeps what was written by hand, on both sides.
func TestAmend(t *testing.T) {
	root := repository(t, map[string]string{"v.sql": one})
	mustRun(t, root, "-name", "views")
	const up = "sql/migrations/000002_views.up.sql"
	put(t, root, up, strings.NewReplacer(functions.Pin, functions.Pin+"alter table outbox.t add a int;\n",
		"\ninsert", "\nupdate outbox.t set a = 1;\ninsert").Replace(get(t, root, up)))
	put(t, root, "sql/functions/v.sql", two)
	mustRun(t, root, "-amend")
	wantFile(t, root, up, functions.Pin+`alter table outbox.t add a int;

-- >>> snapshot

-- >>> sql/functions/v.sql
`+two+`-- <<< sql/functions/v.sql

-- <<< snapshot

update outbox.t set a = 1;
insert into outbox.migration (version) values (2);
`)
	mustRun(t, root, "-check")
}

// TestRecreate drops and creates in both directions, and says what that costs.
func TestRecreate(t *testing.T) {
	root := repository(t, map[string]string{"v.sql": two})
	mustRun(t, root, "-name", "views")
	put(t, root, "sql/functions/v.sql", one)
	out := mustRun(t, root, "-name", "narrower", "-recreate", "v.sql")
	if !strings.Contains(out, "v.sql: dropped and created again") {
		t.Errorf("it says %q", out)
	}
	for _, name := range []string{"up", "down"} {
		text := get(t, root, "sql/migrations/000003_narrower."+name+".sql")
		if !strings.Contains(text, "drop view outbox.v;\n\n-- >>> sql/functions/v.sql\n") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// TestRecreateOneWay: a line by hand has a file dropped and created again in that direction alone.
func TestRecreateOneWay(t *testing.T) {
	root := repository(t, map[string]string{"v.sql": one})
	mustRun(t, root, "-name", "views")
	put(t, root, "sql/functions/v.sql", two)
	mustRun(t, root, "-name", "wider")
	down := "sql/migrations/000003_wider.down.sql"
	put(t, root, down, strings.Replace(get(t, root, down), sectionBegin, "-- recreate: v.sql\n\n"+sectionBegin, 1))
	for range 2 { // the line stays
		mustRun(t, root, "-amend")
		if text := get(t, root, down); !strings.Contains(text, "drop view outbox.v;\n\n-- >>> sql/functions/v.sql\n") {
			t.Errorf("down:\n%s", text)
		}
		if text := get(t, root, "sql/migrations/000003_wider.up.sql"); strings.Contains(text, "drop view") {
			t.Errorf("up:\n%s", text)
		}
	}
}

func TestUsage(t *testing.T) {
	root := repository(t, map[string]string{"v.sql": one})
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, `-name ""`},
		{[]string{"-name", "Upper"}, "small letters"},
		{[]string{"-name", "../x"}, "small letters"},
		{[]string{"-name", "1st"}, "a letter first"},
		{[]string{"-name", strings.Repeat("x", 61)}, "at most 60"},
		{[]string{"-amend", "-name", "x"}, "leave out -name"},
		{[]string{"-check", "-amend"}, "neither"},
		{[]string{"-amend"}, "no section that this program wrote"},
		{[]string{"-name", "x", "-recreate", "w.sql"}, "no sql/functions/w.sql"},
	} {
		err := run(append([]string{"-root", root}, tc.args...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %s", tc.args, err, tc.want)
		}
	}
	if names, err := filepath.Glob(filepath.Join(root, "sql", "migrations", "*")); err != nil || len(names) != 2 {
		t.Errorf("wrong calls wrote files: %v, %v", names, err)
	}
}
