package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cliCommands are all commands with arguments that are good enough to get them to
// the database.
var cliCommands = [][]string{
	{"migrate", "up"},
	{"migrate", "down", "--yes"},
	{"migrate", "version"},
	{"enqueue"},
	{"once", "--sink", "stdout"},
	{"run", "--sink", "stdout"},
	{"status"},
	{"nodes"},
	{"explain"},
	{"why", "k"},
	{"check"},
	{"quota", "n"},
	{"pause", "n"},
	{"pause", "n", "--for", "2h"},
	{"pause", "n", "--until", "2100-01-31"},
	{"resume", "n"},
	{"holds"},
	{"hold", "n", "--queue", "q", "--for", "2h"},
	{"hold", "n", "--queue", "q", "--until", "2100-01-31"},
	{"lift", "n", "--queue", "q"},
	{"shared", "q", "yes"},
	{"cancel", "k"},
	{"cancel", "--namespace", "n", "--yes"},
	{"failed"},
	{"failed", "--group"},
	{"redrive", "k"},
	{"redrive", "--error", "e"},
	{"redrive", "--error", "e", "--dry-run"},
	{"retry", "k"},
	{"retry", "--namespace", "n"},
	{"purge", "n", "--yes"},
	{"prune"},
	{"ui", "--listen", "127.0.0.1:0"},
}

// A wrong command line ends with 2 before anything is connected to, and the message
// names what is wrong.
func TestCLIUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args  string // separated by spaces; '' is an empty one
		texts []string
	}{
		{"", []string{`expected one of "migrate"`, "sweep --help"}},
		{"statsu", []string{"unknown command statsu", `did you mean "status"`}},
		{"Status", []string{"unknown command Status", `did you mean "status"`}},
		{"deliver", []string{"unknown command deliver", "sweep --help lists the commands"}},
		{"up", []string{"unknown command up", `did you mean "migrate up"`}},
		{"migrate uo", []string{"unknown command uo", `"up"`}},
		{"migrate status", []string{"unknown command status", "sweep migrate --help lists the commands"}},
		{"help statsu", []string{"unknown command statsu", `did you mean "status"`}},
		{"help migrate uo", []string{"unknown command uo", `"up"`}},
		{"help run twice", []string{"unexpected argument twice", "sweep run --help"}},
		{"migrate", []string{`"up"`, `"down"`, "sweep migrate --help"}},
		{"status --jsno", []string{"--jsno", `did you mean "--json"`, "sweep status --help"}},
		{"status extra", []string{"extra"}},
		{"status --log-level loud", []string{"--log-level", "loud"}},
		{"status --log-format xml", []string{"--log-format", "xml"}},
		{"status --top 0", []string{"--top", "0"}},
		{"status --top x", []string{"--top", "x"}},
		{"status --scan -1", []string{"--scan", "-1"}},
		{"explain --batch 0", []string{"--batch", "0"}},
		{"explain --only ''", []string{"--only", "must not be empty"}},
		{"redrive --namespace '' --error x", []string{"--namespace", "must not be empty"}},
		{"failed --namespace acme --error ''", []string{"--error", "must not be empty"}},
		{"explain --batch 1.5", []string{"--batch", "1.5"}},
		{"explain --batch", []string{"--batch"}},
		{"explain --node ''", []string{"--node"}},
		{"explain --shards 7-3", []string{"--shards", "7-3 runs backwards"}},
		{"explain --shards 0-5000", []string{"--shards", "5000"}},
		{"explain --shards ''", []string{"--shards"}},
		{"explain --max-bytes 1k", []string{"--max-bytes", "1k"}},
		{"ui --listen 8080", []string{"--listen", "HOST:PORT"}},
		{"ui --users /nowhere/users", []string{"--users", "/nowhere/users", "htpasswd"}},
		{"ui --listen 0.0.0.0:0", []string{"--listen 0.0.0.0:0", "other machines", "--users FILE"}},
		{"run --sink stdout --ui 8080", []string{"--ui", "HOST:PORT"}},
		{"why", []string{"<key>"}},
		{"why a b", []string{"unexpected argument b"}},
		{"check --newest 0", []string{"--newest", "0"}},
		{"check --max 0", []string{"--max", "0"}},
		{"check --timeout 0", []string{"--timeout"}},
		{"check all", []string{"all"}},
		{"quota", []string{"<namespace>", "missing"}},
		{"quota ''", []string{"<namespace>"}},
		{"quota n many", []string{"<n>", "many"}},
		{"quota n -1", []string{"unexpected argument -1", "negative"}},
		{"quota n 99999999999", []string{"<n>", "99999999999"}},
		{"quota n 1 --default", []string{"--default", "<n>"}},
		{"quota n --default --strict", []string{"--default", "--strict"}},
		{"pause", []string{"<namespace>", "--all"}},
		{"pause --queue q", []string{"<namespace>", "--all"}},
		{"pause n --all", []string{"<namespace>", "--all"}},
		{"pause ''", []string{"<namespace>"}},
		{"pause n --queue ''", []string{"--queue"}},
		{"pause n --for 1h --until 2100-01-31", []string{"--for", "--until"}},
		{"hold n --queue q --for 1h --until 2100-01-31", []string{"--for", "--until"}},
		{"hold n --queue q --for 9999d", []string{"--for must be more than 0, and 366d at most, not 9999d"}},
		{"shared q", []string{"<shared>"}},
		{"shared q maybe", []string{"<shared>", "yes", "auto", "maybe"}},
		{"shared '' yes", []string{"<task-queue> must not be empty"}},
		{"run --sink stdout --ui-actions", []string{"--ui-actions goes with --ui"}},
		{"run --sink stdout --ui-users=users", []string{"--ui-users goes with --ui"}},
		{"run --sink stdout --events-namespace ''", []string{"--events-namespace must not be empty"}},
		{"run --sink stdout --high 0.2", []string{"--high is 0.2, and --low is 0.5"}},
		{"pause n --for -5s", []string{"--for must not be negative, and is -5s"}},
		{"prune --older-than -1h", []string{"--older-than must not be negative, and is -1h"}},
		{"run --sink stdout --slots -5", []string{"--slots must not be negative, and is -5"}},
		{"failed --limit -1", []string{"--limit must not be negative, and is -1"}},
		{"failed --since 3h --until 5h", []string{"--until must be later than --since"}},
		{"redrive --since 2026-01-31 --until 2026-01-31", []string{"--until must be later than --since"}},
		{"pause n --for 0", []string{"--for", "0"}},
		{"pause n --until 2h", []string{"--until", "2h", "2026-01-31"}},
		{"resume", []string{"<namespace>", "--all"}},
		{"cancel", []string{"<key>", "--namespace"}},
		{"cancel k --namespace n", []string{"<key>", "--namespace"}},
		{"cancel k --max 1", []string{"--max", "--namespace"}},
		{"cancel --namespace n --max -1", []string{"--max", "-1"}},
		{"cancel k ''", []string{"<key>"}},
		{"cancel --namespace n", []string{"--yes"}},
		{"redrive", []string{"<key>", "--id", "--namespace"}},
		{"redrive k --id 1", []string{"<key>", "--id"}},
		{"redrive --id one", []string{"--id", "one"}},
		{"redrive --id 1 --max 2", []string{"--max", "--namespace"}},
		{"redrive ''", []string{"<key>"}},
		{"redrive k --error e", []string{"<key>", "--error"}},
		{"redrive k --namespace n", []string{"<key>", "--namespace"}},
		{"redrive k --dry-run", []string{"--dry-run", "--namespace"}},
		{"redrive --id 1 --rate 5/s", []string{"--rate", "--namespace"}},
		{"redrive --error e --rate fast", []string{"--rate", "fast", "50/s"}},
		{"redrive --error e --rate 0/s", []string{"--rate", "0/s"}},
		{"redrive --error e --max -1", []string{"--max", "-1"}},
		{"redrive --since lately", []string{"--since", "lately"}},
		{"redrive --dry-run", []string{"<key>", "--namespace"}},
		{"failed --since -1h", []string{"--since", "-1h"}},
		{"failed --until 2026-02-30", []string{"--until", "2026-02-30"}},
		{"failed --limit -1", []string{"--limit", "-1"}},
		{"failed --scan -1", []string{"--scan", "-1"}},
		{"failed --page 17", []string{"--page"}},
		{"failed --group --page 2026-01-31T03:00:00Z/17/0", []string{"--page", "--group"}},
		{"failed key", []string{"key"}},
		{"retry", []string{"<key>", "--namespace"}},
		{"retry k --namespace n", []string{"<key>", "--namespace"}},
		{"retry k --max 1", []string{"--max", "--namespace"}},
		{"retry --namespace n --max -1", []string{"--max", "-1"}},
		{"retry k ''", []string{"<key>"}},
		{"purge", []string{"<namespace>"}},
		{"purge ''", []string{"<namespace>"}},
		{"purge n m", []string{"unexpected argument m"}},
		{"prune --older-than week", []string{"--older-than", "week"}},
		{"prune --older-than -1d", []string{"--older-than"}},
		{"prune --older-than 9999999999d", []string{"--older-than"}},
		{"prune --max -1", []string{"--max", "-1"}},
		{"migrate up --to -1", []string{"--to", "-1"}},
		{"migrate up --lock-timeout 0", []string{"--lock-timeout"}},
		{"migrate up --wait soon", []string{"--wait", "soon"}},
		{"migrate down --steps 0", []string{"--steps", "0"}},
		{"migrate down --steps 1 --to 1", []string{"--steps", "--to"}},
		{"enqueue /no/such/file", []string{"/no/such/file"}},
		{"enqueue /", []string{"/ is a directory"}},
		{"enqueue --strict=perhaps", []string{"--strict", "perhaps"}},
		{"version now", []string{"now"}},
		{"status --database-url postgres://u@h:port/d", []string{"connection settings"}},
	} {
		args := strings.Fields(tt.args)
		for i, a := range args {
			if a == "''" {
				args[i] = ""
			}
		}
		got := sweepFails(t, "postgres://nobody@127.0.0.1:1/none", 2, args, tt.texts...)
		if got.stdout != "" {
			t.Errorf("sweep %q printed a result: %q", args, got.stdout)
		}
	}
}

// A variable that holds nonsense is named, where its flag counts; elsewhere it does no
// harm.
func TestCLIUsageEnvironment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ command, flag, variable, value string }{
		{"status", "--log-level", "SWEEP_LOG_LEVEL", "loud"},
		{"explain", "--batch", "SWEEP_BATCH", "many"},
		{"explain", "--shards", "SWEEP_SHARDS", "1-"},
		{"status", "--top", "SWEEP_STATUS_TOP", "x"},
		{"prune", "--older-than", "SWEEP_PRUNE_OLDER_THAN", "week"},
	} {
		env := []string{tt.variable + "=" + tt.value}
		args := []string{tt.command}
		sweepCall{env: env, args: args}.do(t).want(t, 2, args, tt.flag, tt.value)
		if tt.variable != "SWEEP_LOG_LEVEL" {
			sweepCall{env: env, args: []string{"version"}}.do(t).want(t, 0, []string{"version"})
		}
	}
}

var flagLine = regexp.MustCompile(`^\s+(?:-\w, )?(?:    )?--(?:\[no-\])?([a-z-]+)`)

// Every command's help has examples, and every flag in it its variable.
func TestCLIHelp(t *testing.T) {
	t.Parallel()
	for _, args := range append(cliCommands, []string{"migrate", "sql"}, []string{"version"}, []string{"completion"}, []string{"man"}, []string{"help"}) {
		name := args[:1]
		if args[0] == "migrate" {
			name = args[:2]
		}
		got := sweepCall{args: append(append([]string{}, name...), "--help")}.do(t)
		got.want(t, 0, name)
		if !strings.Contains(got.stdout, "Example") {
			t.Errorf("sweep %q --help has no examples", name)
		}
		// The text of a flag may go over several lines, up to the next flag.
		_, flags, _ := strings.Cut(got.stdout, "Flags:\n")
		var flag, text string
		check := func() {
			// A variable for these would turn every call into help, or into the version.
			if flag != "" && flag != "help" && flag != "version" && !strings.Contains(text, "($SWEEP_") {
				t.Errorf("sweep %q --help names no variable for --%s: %s", name, flag, text)
			}
		}
		for line := range strings.Lines(flags) {
			if m := flagLine.FindStringSubmatch(line); m != nil {
				check()
				flag, text = m[1], ""
			}
			text += strings.TrimSpace(line) + " "
		}
		check()
	}
}

// Help can be asked for in front of a command as well as behind it, and gives the same.
// It needs nothing that the command needs.
func TestCLIHelpCommand(t *testing.T) {
	t.Parallel()
	for _, name := range [][]string{{}, {"run"}, {"migrate"}, {"migrate", "up"}, {"help"}} {
		want := sweep(t, "", append(append([]string{}, name...), "--help")...)
		if got := sweep(t, "", append([]string{"help"}, name...)...); got != want {
			t.Errorf("sweep help %q and sweep %q --help differ:\n%s\n%s", name, name, got, want)
		}
	}
	top := sweep(t, "", "--help")
	for _, text := range []string{"exit code", "-V, --version", "migrate up"} {
		if !strings.Contains(top, text) {
			t.Errorf("sweep --help lacks %q:\n%s", text, top)
		}
	}
}

// Flags win over the environment, the environment over defaults, and the PG
// variables fill in what a connection string leaves out.
func TestCLISettings(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	config := db.Pool.Config().ConnConfig
	parts := []string{
		"PGHOST=" + config.Host, fmt.Sprint("PGPORT=", config.Port), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable",
	}
	const wrong = "postgres://nobody@127.0.0.1:1/none"
	for _, c := range []struct {
		name string
		call sweepCall
	}{
		{"DATABASE_URL", sweepCall{dsn: db.DSN}},
		{"SWEEP_DATABASE_URL wins over DATABASE_URL", sweepCall{dsn: wrong, env: []string{"SWEEP_DATABASE_URL=" + db.DSN}}},
		{"the flag wins over both", sweepCall{dsn: wrong, env: []string{"SWEEP_DATABASE_URL=" + wrong}, args: []string{"--database-url", db.DSN}}},
		{"PG variables alone", sweepCall{env: parts}},
		{"PG variables and a part", sweepCall{dsn: "dbname=" + config.Database, env: parts[:4]}},
	} {
		c.call.args = append(c.call.args, "migrate", "version")
		got := c.call.do(t)
		if got.code != 0 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}

	json := sweepCall{dsn: wrong, env: []string{"SWEEP_LOG_FORMAT=json"}, args: []string{"status"}}.do(t)
	if entry := fromJSON[struct{ Level, Msg, Hint string }](t, json.stderr); entry.Level != "ERROR" || entry.Hint == "" {
		t.Errorf("%+v", entry)
	}
}

// Sessions can be told by their application_name.
func TestCLIApplicationName(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t, `set log_min_duration_statement = -1`)
	run(t, db.Pool, `select outbox.grant_operator($1)`, role.Name)
	tx := begin(t, db.Connect(t))
	run(t, tx, `lock table outbox.config in access exclusive mode`)
	cmd := sweepCall{dsn: role.DSN, args: []string{"explain"}}.start(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, `select exists (select from pg_stat_activity where application_name = 'sweep explain'
		and datname = current_database())`)
	commit(t, tx)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A password appears nowhere: not in what a command prints, not in what it logs, in
// whatever way the connection fails.
func TestCLISecrets(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const secret = "s3cretpa55"
	closed := closedPort(t)
	dsns := []string{
		"postgres://me:" + secret + "@127.0.0.1:" + closed + "/db",
		"postgres://me@127.0.0.1:" + closed + "/db?password=" + secret,
		"host=127.0.0.1 port=" + closed + " user=me password=" + secret,
		"postgres://me:" + secret + "@" + strings.Repeat("x", 300) + ".invalid/db",
		"postgres://me:" + secret + "@127.0.0.1:" + closed + "/db?sslmode=" + secret,
		"postgres://me:" + secret + "@127.0.0.1:notaport/db",
		"postgres://me:" + secret + "%zz@127.0.0.1/db",
		"postgres://me:" + secret + "@[::1/db",
		"host=127.0.0.1 password='" + secret,
		"host=127.0.0.1 connect_timeout=" + secret,
		secret,
		strings.Replace(db.DSN, ":"+db.Pool.Config().ConnConfig.Password+"@", ":"+secret+"@", 1),
	}
	for i, dsn := range dsns {
		commands := cliCommands
		if i > 0 { // the way of the string through the code is the same for all
			commands = [][]string{{"status"}, {"migrate", "up"}, {"once", "--sink", "stdout"}}
		}
		for _, args := range commands {
			args := append(append([]string{}, args...), "--log-level", "debug")
			for _, call := range []sweepCall{
				{dsn: dsn, args: args},
				{args: append(args, "--database-url", dsn, "--log-format", "json")},
			} {
				got := call.do(t)
				if got.code == 0 {
					t.Errorf("sweep %q with a wrong address succeeded", args)
				}
				if strings.Contains(got.stdout+got.stderr, secret) {
					t.Errorf("sweep %q shows the password of %q:\n%s%s", args, dsn, got.stdout, got.stderr)
				}
				if n := strings.Count(got.stderr, "\n"); n > 2 {
					t.Errorf("sweep %q says it in %d lines:\n%s", args, n, got.stderr)
				}
			}
		}
	}
	got := sweepCall{env: []string{"PGPASSWORD=" + secret, "PGHOST=127.0.0.1", "PGPORT=" + closed, "PGUSER=me", "PGDATABASE=db"}, args: []string{"status"}}.do(t)
	got.want(t, 1, []string{"status"}, `cannot connect to database "db" at 127.0.0.1:`+closed+` as user "me"`, "connection refused")
	if strings.Contains(got.stderr, secret) {
		t.Errorf("PGPASSWORD is shown: %s", got.stderr)
	}
}

// Failures to connect say where, as whom, and what to do, in one line and a hint.
func TestCLIConnectErrors(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	config := db.Pool.Config().ConnConfig
	at := fmt.Sprintf("%s:%d", config.Host, config.Port)
	for _, tt := range []struct {
		dsn   string
		texts []string
	}{
		{strings.Replace(db.DSN, db.Name, "nowhere", 1), []string{`cannot connect to database "nowhere" at ` + at, "does not exist", "Create the database"}},
		{strings.Replace(db.DSN, config.Password, "wrong", 1), []string{`as user "` + db.Owner + `"`, "Check the user"}},
		{"postgres://me@no-such-host.invalid/d", []string{`"no-such-host.invalid"`, "Is PostgreSQL running there?"}},
		{"host=/nonexistent user=me dbname=d", []string{"/nonexistent port 5432", "no such file"}},
		{strings.Replace(db.DSN, "sslmode=disable", "sslmode=require", 1), []string{at, "server refused TLS connection", "does not offer TLS", "sslmode=disable"}},
		{"postgres://me@127.0.0.1:1,127.0.0.1:2/d?sslmode=disable", []string{"127.0.0.1:1, 127.0.0.1:2", "connection refused"}},
	} {
		for _, args := range [][]string{{"status"}, {"migrate", "up"}, {"migrate", "version"}} {
			sweepFails(t, tt.dsn, 1, args, tt.texts...)
		}
	}
	missing := filepath.Join(t.TempDir(), "ca.pem")
	sweepFails(t, "postgres://me@127.0.0.1/d?sslmode=verify-ca&sslrootcert="+missing, 2, []string{"status"}, "sslrootcert", "no such file")
}

// A result that cannot be written is a failure.
func TestCLIFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full on this system")
	}
	defer full.Close()
	db := pg.New(t)
	for _, args := range [][]string{{"status"}, {"status", "--json"}, {"explain"}, {"version"}, {"--version"}, {"--help"}, {"help", "run"}, {"quota", "n"}} {
		cmd := sweepCall{dsn: db.DSN, args: args}.start(t)
		cmd.Stdout = full
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run()
		sweepOutcome{"", stderr.String(), cmd.ProcessState.ExitCode()}.want(t, 1, args, "print the result", "no space left")
	}
}

func TestCLIVersion(t *testing.T) {
	t.Parallel()
	v := fromJSON[struct {
		Version, Go string
		Schema      uint
	}](t, sweep(t, "", "version", "--json"))
	if v.Version == "" || !strings.HasPrefix(v.Go, "go1.") || v.Schema != latestVersion(t) {
		t.Errorf("%+v", v)
	}
	want := sweep(t, "", "version")
	if !strings.HasPrefix(want, "sweep ") {
		t.Errorf("%q", want)
	}
	// SWEEP_VERSION is no variable of the flag: people set it to a version.
	for _, args := range [][]string{{"--version"}, {"-V"}, {"run", "--version"}} {
		got := sweepCall{args: args, env: []string{"SWEEP_LOG_LEVEL=loud"}}.do(t)
		if got.code != 0 || got.stdout != want || got.stderr != "" {
			t.Errorf("sweep %q: %+v, want %q", args, got, want)
		}
	}
	if got := (sweepCall{args: []string{"version", "--json"}, env: []string{"SWEEP_VERSION=true"}}).do(t); !strings.HasPrefix(got.stdout, "{") {
		t.Errorf("with SWEEP_VERSION: %+v", got)
	}
}

// closedPort is a port of this machine on which nothing listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return port
}
