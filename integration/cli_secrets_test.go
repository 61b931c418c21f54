package integration

import (
	"strings"
	"testing"
)

// Nothing of a connection string is printed by a command to which it is given in a form
// that could be misread, or in the place of something else; the log in JSON neither.
func TestCLIHidesConnectionStrings(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, dsn := range []string{
		`"postgres://u:hunter2@127.0.0.1:1/d`, "  postgres://u:hunter2@127.0.0.1:1/d?sslmode=disable", "postgres://u:a@hunter2@127.0.0.1:1/d",
		"postgres://u:hun\nter2hunter2@127.0.0.1:1/d", "postgres://u:a/hunter2@127.0.0.1:1/d", "host=127.0.0.1 port=1 password=a hunter2=b",
		"DATABASE_URL=postgres://u:hunter2@h/d", "postgres://u:hunter2@127.0.0.1:1/d\n",
	} {
		for _, format := range []string{"text", "json"} {
			for _, args := range [][]string{{"migrate", "up"}, {"migrate", "version"}, {"status"}, {"once", "--sink", "stdout"}, {"run", "--sink", "stdout"}} {
				got := sweepCall{dsn: dsn, args: append(args, "--log-format", format)}.do(t)
				if got.code == 0 || strings.Contains(got.stdout+got.stderr, secret) {
					t.Errorf("%q: sweep %q: exit %d, %s%s", dsn, args, got.code, got.stdout, got.stderr)
				}
			}
		}
	}
	const dsn = "postgres://u:hunter2@127.0.0.1:1/d"
	for _, args := range [][]string{{"migrate", "up", dsn}, {"enqueue", dsn}, {"migrate", "up", "--to", dsn}, {"status", "--top=" + dsn}, {dsn}, {"once", "--sink", dsn}, {"status", "--log-level", dsn}} {
		got := sweepCall{args: args}.do(t)
		if got.code == 0 || strings.Contains(got.stdout+got.stderr, secret) {
			t.Errorf("sweep %q: exit %d, %s%s", args, got.code, got.stdout, got.stderr)
		}
	}
}

// White space and quotes around a connection string do no harm.
func TestCLITrimsConnectionStrings(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	sweep(t, " '"+withParam(db.DSN, "pool_max_conns=3")+"'\n", "migrate", "up") // the pool's parameters are none of a server's
	sweep(t, "\t\""+db.DSN+"\" ", "status")
}
