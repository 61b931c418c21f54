package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	sqlReference      = "../docs/sql.md"
	settingsReference = "../docs/settings.md"
	// generatedMark ends the part of docs/sql.md that is written by hand.
	generatedMark = "<!-- Generated from the catalog behind this line: make schema writes it. -->\n"
)

// TestSQLReference compares docs/sql.md with the catalog of a migrated database: the public
// functions and views, who may use each, and which errors each raises.
func TestSQLReference(t *testing.T) {
	t.Parallel()
	head, want, ok := strings.Cut(readDoc(t, sqlReference), generatedMark)
	if !ok {
		t.Fatalf("%s has no line %q", sqlReference, generatedMark)
	}
	got := describePublic(t)
	if *update {
		if err := os.WriteFile(sqlReference, []byte(head+generatedMark+got), 0o644); err != nil {
			t.Fatal(err)
		}
		want = got
	}
	if diff := lineDiff(want, got); diff != "" {
		t.Errorf("%s is not what the catalog says (make schema writes it again):\n%s", sqlReference, diff)
	}
}

// TestSQLStates: each SQLSTATE of the outbox's own has one row in docs/sql.md, and each row is of
// one that some function raises.
func TestSQLStates(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(functionsDir, "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s, %v", len(files), functionsDir, err)
	}
	raised := map[string]bool{}
	for _, name := range files {
		for _, m := range regexp.MustCompile(`errcode\s*=\s*'(OB\w{3})'`).FindAllStringSubmatch(readDoc(t, name), -1) {
			raised[m[1]] = true
		}
	}
	rows := map[string]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(OB\\w{3})` \\|").FindAllStringSubmatch(readDoc(t, sqlReference), -1) {
		rows[m[1]]++
	}
	for code := range raised {
		if rows[code] != 1 {
			t.Errorf("%s has %d rows for %s, which %s raises", sqlReference, rows[code], code, functionsDir)
		}
	}
	for code := range rows {
		if !raised[code] {
			t.Errorf("%s has a row for %s, which nothing in %s raises", sqlReference, code, functionsDir)
		}
	}
}

// TestSQLColumns: each column of a public function's result or of a view has one row in
// docs/sql.md, and each row is of such a column.
func TestSQLColumns(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t).Name
	run(t, db.Pool, "select outbox.grant_operator($1)", role)
	columns := list[string](t, db.Pool, `
		select a.name from pg_proc as p cross join lateral unnest(p.proargnames, p.proargmodes) as a(name, mode)
		where p.pronamespace = 'outbox'::regnamespace and a.mode = 't' and has_function_privilege($1, p.oid, 'execute')
		union
		select a.attname from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v' and has_table_privilege($1, c.oid, 'select')`, role)
	sameNames(t, columns, namesIn(section(t, sqlReference, "## Columns")))
}

// TestSettingsReference: docs/settings.md has each setting with its default, and each flag of a node.
func TestSettingsReference(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	text := section(t, settingsReference, "## Settings of the outbox")
	types := map[string]string{}
	rows, _ := conn.Query(t.Context(), `select attname::text, format_type(atttypid, atttypmod) from pg_attribute
		where attrelid = 'outbox.config'::regclass and attnum > 0 and not attisdropped and attname <> 'singleton'`)
	var name, kind string
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
		types[name] = kind
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	sameNames(t, slices.Collect(maps.Keys(types)), namesIn(text))
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\|").FindAllStringSubmatch(text, -1) {
		value := "$1::text::" + types[m[1]]
		if strings.HasSuffix(m[2], "iB") {
			value = "pg_size_bytes(replace($1, 'iB', 'B'))"
		}
		if !one[bool](t, conn, fmt.Sprintf("select %s = %s from outbox.settings()", m[1], value), strings.ReplaceAll(m[2], ",", "")) {
			t.Errorf("%s: the default of %s is not %s", settingsReference, m[1], m[2])
		}
	}

	flags := map[string]bool{}
	for _, command := range []string{"run", "once"} {
		help := sweepCall{args: []string{command, "--help"}}.do(t).stdout
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, |    )--([a-z0-9-]+)`).FindAllStringSubmatch(help, -1) {
			flags[m[1]] = true
		}
	}
	for _, common := range []string{"help", "version", "json"} {
		delete(flags, common)
	}
	sameNames(t, slices.Collect(maps.Keys(flags)), namesIn(section(t, settingsReference, "## Flags of sweep run and sweep once")))
}

// namesIn are the names in the first column of a table, without the dashes of flags.
func namesIn(text string) []string {
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(text, -1) {
		cell, _, _ := strings.Cut(row[1], " (")
		for _, m := range regexp.MustCompile("`(?:--)?([\\w-]+)`").FindAllStringSubmatch(cell, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// sameNames fails for what only one of two lists has, or what one has twice.
func sameNames(t *testing.T, want, got []string) {
	t.Helper()
	if diff := lineDiff(strings.Join(slices.Sorted(slices.Values(want)), "\n"), strings.Join(slices.Sorted(slices.Values(got)), "\n")); diff != "" {
		t.Errorf("what there is (-) and what the table has (+):\n%s", diff)
	}
}

// section is the text behind a heading, up to the next one of its level.
func section(t *testing.T, name, heading string) string {
	t.Helper()
	_, text, ok := strings.Cut(readDoc(t, name), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", name, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// TestDocLinks: what README.md and the files of docs link to in this repository is there, and so is
// the heading that a link names.
func TestDocLinks(t *testing.T) {
	t.Parallel()
	files := []string{"../README.md"}
	for _, pattern := range []string{"../docs/*.md", "../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	link := regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	for _, name := range files {
		for _, m := range link.FindAllStringSubmatch(readDoc(t, name), -1) {
			if strings.Contains(m[1], ":") {
				continue // elsewhere
			}
			target := name
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(name), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if m[2] != "" && !slices.Contains(anchorsOf(readDoc(t, target)), m[2]) {
				t.Errorf("%s links to %s#%s: no such heading", name, m[1], m[2])
			}
		}
	}
}

// TestGuaranteesNameTests: the test files and scenarios that docs/guarantees.md names for a guarantee are there.
func TestGuaranteesNameTests(t *testing.T) {
	t.Parallel()
	named := 0
	for _, row := range regexp.MustCompile(`(?m)^\| \*\*INV-\d+\*\*.*$`).FindAllString(readDoc(t, "../docs/guarantees.md"), -1) {
		cells := strings.Split(strings.TrimSuffix(row, " |"), " | ")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[len(cells)-1], -1) {
			pattern := m[1]
			switch {
			case !strings.HasSuffix(pattern, ".go"):
				pattern = "testdata/scenarios/" + pattern + "*"
			case strings.Contains(pattern, "/"):
				pattern = "../" + pattern
			}
			if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
				t.Errorf("%.30s...: there is no %s", row, m[1])
			}
			named++
		}
	}
	if named < 50 {
		t.Errorf("only %d files are named", named)
	}
}

// anchorsOf are those of the headings of a Markdown text.
func anchorsOf(text string) []string {
	var anchors []string
	for _, m := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(text, -1) {
		anchors = append(anchors, anchor(m[1]))
	}
	return anchors
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
