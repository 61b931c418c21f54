package integration

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/sql/migrations"
	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

var update = flag.Bool("update", false, "write testdata/schema.txt and the generated part of docs/sql.md again from the database")

const (
	functionsDir  = "../sql/functions"
	migrationsDir = "../sql/migrations"
	schemaGolden  = "testdata/schema.txt"
)

// TestSchemaGolden fails on every change of the schema that nobody meant. Bodies
// are left out: they stand in sql/functions for everybody to review.
func TestSchemaGolden(t *testing.T) {
	t.Parallel()
	got := describeSchema(t, pg.New(t).Connect(t), false)
	if *update {
		if err := os.WriteFile(schemaGolden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaGolden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := lineDiff(string(want), got); diff != "" {
		t.Errorf("the schema is not that of %s (where this is meant: go test ./integration -run TestSchemaGolden -update):\n%s", schemaGolden, diff)
	}
}

// TestSchemaDrift proves that migrating gives the same database as the tables of
// the migrations with the files of sql/functions installed as they are.
func TestSchemaDrift(t *testing.T) {
	t.Parallel()
	migrated := describeSchema(t, pg.New(t).Connect(t), true)

	conn := emptyDatabase(t).Connect(t)
	execScript(t, conn, "create schema outbox; create table outbox.schema_migrations (version bigint not null primary key, dirty boolean not null)")
	files, err := functions.Read(os.DirFS(functionsDir))
	if err != nil {
		t.Fatal(err)
	}
	var install strings.Builder
	for _, f := range files {
		install.WriteString(f.Text)
	}
	section := regexp.MustCompile(`(?s)-- >>> snapshot\n.*-- <<< snapshot\n`)
	block := regexp.MustCompile(`(?s)do \$\$.*?end \$\$;`)
	var scripts []string
	last := 0 // the last one with a section, whose hand-written end may use the functions
	for i, name := range migrationFiles(t, "*.up.sql") {
		text, err := os.ReadFile(filepath.Join(migrationsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, string(text))
		if section.MatchString(scripts[i]) {
			last = i
		}
	}
	for i, script := range scripts {
		switch at := section.FindStringIndex(script); {
		case i == last:
			script = section.ReplaceAllLiteralString(script, install.String())
		case at != nil: // and without what is done with the functions, which are not there yet
			script = script[:at[0]] + block.ReplaceAllLiteralString(script[at[1]:], "")
		}
		execScript(t, conn, script)
	}
	if diff := lineDiff(migrated, describeSchema(t, conn, true)); diff != "" {
		t.Errorf("migrating (-) and installing sql/functions (+) differ: run make snapshot\n%s", diff)
	}
}

// TestSnapshotIsCurrent finds what TestSchemaDrift cannot: texts that differ in
// comments or spacing alone.
func TestSnapshotIsCurrent(t *testing.T) {
	t.Parallel()
	installed, err := functions.Installed(os.DirFS(migrationsDir), migrationFiles(t, "*.up.sql"))
	if err != nil {
		t.Fatal(err)
	}
	current, err := functions.Read(os.DirFS(functionsDir))
	if err != nil {
		t.Fatal(err)
	}
	change, err := functions.Diff(installed, current, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change.SQL != "" {
		t.Errorf("not in the migrations as it stands in sql/functions: %v; no longer there: %v; run make snapshot", change.Installed, change.Dropped)
	}
}

// TestSchemaDown proves that each down file takes away exactly what its up file
// brought, and that the way up again leads to the same schema.
func TestSchemaDown(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	conn := db.Connect(t)
	all, err := migrations.List()
	if err != nil {
		t.Fatal(err)
	}
	var before []string // by migration
	for _, m := range all {
		before = append(before, describeSchema(t, conn, true))
		if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{To: m.Version}); err != nil {
			t.Fatal(err)
		}
	}
	top := describeSchema(t, conn, true)
	for i := len(all) - 1; i >= 0; i-- {
		if _, err := migrations.Down(t.Context(), db.DSN, 1, migrations.Options{}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			break // to nothing: TestMigrateDownToZero
		}
		// The sequence of claim tokens keeps its increment, on purpose: see 000005's down file.
		after := strings.Replace(describeSchema(t, conn, true), "start 1 increment 4194304", "start 1 increment 1", 1)
		if diff := lineDiff(strings.Replace(before[i], "start 1 increment 4194304", "start 1 increment 1", 1), after); diff != "" {
			t.Errorf("before %s was installed (-) and after its down file (+):\n%s", all[i], diff)
		}
	}
	if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	if diff := lineDiff(top, describeSchema(t, conn, true)); diff != "" {
		t.Errorf("up (-), and up after down to nothing (+):\n%s", diff)
	}
}

func migrationFiles(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS(migrationsDir), pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s in %s: %d files, %v", pattern, migrationsDir, len(names), err)
	}
	return names
}

// execScript runs statements as psql would: each for itself, or as they begin and
// commit.
func execScript(t *testing.T, conn *pgx.Conn, script string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
		t.Fatalf("%v in: %.200s", err, script)
	}
}

// lineDiff is the lines that only one of two texts has, in order; empty when they
// are the same.
func lineDiff(a, b string) string {
	if a == b {
		return ""
	}
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	// The longest common subsequence, by the textbook.
	common := make([][]int, len(left)+1)
	for i := range common {
		common[i] = make([]int, len(right)+1)
	}
	for i := len(left) - 1; i >= 0; i-- {
		for j := len(right) - 1; j >= 0; j-- {
			if left[i] == right[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(left) || j < len(right) {
		switch {
		case i < len(left) && j < len(right) && left[i] == right[j]:
			i, j = i+1, j+1
		case j == len(right) || i < len(left) && common[i+1][j] >= common[i][j+1]:
			out.WriteString("- " + left[i] + "\n")
			i++
		default:
			out.WriteString("+ " + right[j] + "\n")
			j++
		}
	}
	return out.String()
}
