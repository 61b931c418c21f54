package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

// rightsFiles are two files, a function family and a view over it, as a release might
// have them.
func rightsFiles(t *testing.T, family, view string) []functions.File {
	t.Helper()
	var files []functions.File
	for name, text := range map[string]string{"family.sql": family, "views.sql": view} {
		f, err := functions.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	files, err := functions.Sort(files)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// overloads are functions outbox.family with these arguments and this result.
func overloads(result string, args ...string) string {
	var text strings.Builder
	for _, a := range args {
		fmt.Fprintf(&text, "create or replace function outbox.family(%s) returns %s language sql as 'select null::%[2]s';\n", a, result)
		fmt.Fprintf(&text, "revoke all on function outbox.family(%s) from public;\n", strings.ReplaceAll(a, " default 1", ""))
	}
	return text.String()
}

// TestRightsCarriedOver: what is dropped and made anew, or gets an overload, keeps the
// rights on it; nobody gets rights on what bears another name.
func TestRightsCarriedOver(t *testing.T) {
	t.Parallel()
	const (
		narrow = "create or replace view outbox.sight as select 1 as a, 2 as b;\n"
		wide   = "create or replace view outbox.sight as select 1 as a, 2::bigint as b, 3 as c;\n"
	)
	for _, tc := range []struct {
		name       string
		from, to   string
		want, back string // who may call what, afterwards and after the way back
	}{
		{
			"another result", overloads("int", "a int", "a text"), overloads("bigint", "a int", "a text"),
			"both:int both:text chief*:int number:int word:text", "both:int both:text chief*:int number:int word:text",
		},
		{
			"one more argument", overloads("int", "a int"), overloads("int", "a int, b int default 1"),
			"both:int, int chief*:int, int number:int, int", "both:int chief*:int number:int",
		},
		{
			"one of two gets an argument", overloads("int", "a int", "a text"), overloads("int", "a int, b int default 1", "a text"),
			"both:int, int both:text chief*:int, int number:int, int word:text", "both:int both:text chief*:int number:int word:text",
		},
		{
			"an overload", overloads("int", "a int"), overloads("int", "a int", "a text"),
			"both:int both:text chief*:int chief*:text number:int number:text", "both:int chief*:int number:int",
		},
		{
			"one of two goes", overloads("int", "a int", "a text"), overloads("int", "a int"),
			"both:int chief*:int number:int word:int", "both:int both:text chief*:int chief*:text number:int number:text word:int word:text",
		},
		{
			"a body", overloads("int", "a int"), strings.Replace(overloads("int", "a int"), "null", "7", 1),
			"both:int chief*:int number:int", "both:int chief*:int number:int",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			conn := db.Connect(t)
			names := map[string]string{}
			for _, who := range []string{"number", "word", "both", "chief"} {
				names[who] = db.Role(t).Name
			}
			from, to := rightsFiles(t, tc.from, narrow), rightsFiles(t, tc.to, wide)
			execScript(t, conn, tc.from+narrow)
			run(t, conn, "grant select on outbox.sight to public")
			run(t, conn, fmt.Sprintf("grant select (b) on outbox.sight to %s", names["word"]))
			for who, args := range map[string][]string{"number": {"int"}, "word": {"text"}, "both": {"int", "text"}, "chief": {"int"}} {
				for _, a := range args {
					if one[*string](t, conn, "select to_regprocedure('outbox.family('||$1||')')::text", a) == nil {
						continue
					}
					option := ""
					if who == "chief" {
						option = " with grant option"
					}
					run(t, conn, fmt.Sprintf("grant execute on function outbox.family(%s) to %s%s", a, names[who], option))
				}
			}
			first := viewRights(t, conn)
			for _, way := range []struct {
				from, to []functions.File
				want     string
			}{{from, to, tc.want}, {to, from, tc.back}} {
				change, err := functions.Diff(way.from, way.to, []string{"views.sql"})
				if err != nil {
					t.Fatal(err)
				}
				execScript(t, conn, "begin;\n"+change.SQL+"commit;")
				if got := familyRights(t, conn, names); got != way.want {
					t.Errorf("rights on the functions: %s\nwant %s", got, way.want)
				}
				if got := viewRights(t, conn); got != first {
					t.Errorf("rights on the view: %s\nwant %s", got, first)
				}
			}
		})
	}
}

// familyRights lists who may call which function, "*" where they may grant it on.
func familyRights(t *testing.T, conn *pgx.Conn, names map[string]string) string {
	t.Helper()
	var got []string
	for who, role := range names {
		got = append(got, list[string](t, conn, `
			select $1 || case when a.is_grantable then '*' else '' end || ':' || replace(oidvectortypes(p.proargtypes), 'integer', 'int')
			from pg_proc as p cross join aclexplode(p.proacl) as a
			where p.proname = 'family' and a.grantee = $2::text::regrole`, who, role)...)
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

func viewRights(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return one[string](t, conn, `select c.relacl::text || (select a.attacl::text from pg_attribute as a where a.attrelid = c.oid and a.attname = 'b')
		from pg_class as c where c.relname = 'sight'`)
}

// TestRightsNeedATransaction: a migration that is run statement by statement says so
// rather than leave a function without its rights.
func TestRightsNeedATransaction(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	execScript(t, conn, overloads("int", "a int"))
	change, err := functions.Diff(rightsFiles(t, overloads("int", "a int"), ""), rightsFiles(t, overloads("bigint", "a int"), ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	read, rest, _ := strings.Cut(change.SQL, "-- dropped:")
	run(t, conn, read)
	_, err = conn.PgConn().Exec(t.Context(), "-- dropped:"+rest).ReadAll()
	wantError(t, err, "OB005", "psql -1")
}
