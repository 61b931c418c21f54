package integration

import (
	"strings"
	"testing"
)

// SWEEP_ROUTE holds as many routes as the flag can be given: one a line.
func TestCLIRoutesFromTheEnvironment(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, queue := range []string{"a", "b", "c"} {
		put(t, db.Pool, "n", queue, queue)
	}
	got := sweepCall{
		dsn: db.DSN, args: []string{"once", "--sink", "stdout"},
		env: []string{"SWEEP_ROUTE=a=exec:true\n\n  b=exec:sh -c 'exit 65'  \n"},
	}.do(t)
	got.want(t, 0, []string{"once"})
	if strings.Count(got.stdout, "\n") != 1 || !strings.Contains(got.stdout, `"c"`) {
		t.Errorf("the default sink got %q, want c alone", got.stdout)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 2, "failed": 1})
}
