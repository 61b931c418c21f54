package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestScenarios runs testdata/scenarios/*.txt, each in a database of its own. A file
// is a list of blocks: commands, one a line, then ---- and what they print, then an
// empty line. A line that starts with # is a comment. With -update the files are
// written again with what the commands print now.
//
//	config NAME=VALUE ...                change settings
//	enqueue NS/QUEUE [xN] ...            add N messages, named NS/QUEUE/1 and so on
//	    shard=S due=WHEN bytes=B         their shard; -1m, 1h, or an instant; payload size
//	enqueue NS[1..N]/QUEUE[1..M] xN      the same for every namespace and queue
//	due [WHEN] KEY ...                   change when pending messages are due (now)
//	quota NS N|default [strict]          set a quota
//	pause WHAT [note=] [until=WHEN]      WHAT: NS, NS/QUEUE, */QUEUE or *
//	resume WHAT          end WHAT        end: its pause is over by itself
//	claim NODE [batch=N] [shards=A-B,C|none]  claim, and print the keys in order
//	    [max_bytes=N] [in=SESSION]       in=: leave the transaction open
//	    [times=N] [sum] [then=complete]  repeat; print counts; settle each at once
//	commit SESSION   rollback SESSION    end the transaction of a claim
//	explain NODE [batch=] [shards=] [max_bytes=] [only=NS]
//	why KEY ...
//	complete|retry|fail|release|extend KEY ...   settle; old: with the token before
//	    [old] [delay=WHEN] [error=TEXT]
//	expire KEY ...   rescue [max=N]      leases expire; rescue takes the messages back
//	cancel KEY ...   cancel-namespace NS [max=N]
//	redrive KEY ...  redrive-namespace NS [max=N]
//	unreachable|broken|busy|gone KEY ...     the destination failed: one call for all keys
//	    [hold=WHEN] [error=TEXT] [shared] [old] [in=SESSION]
//	complete-all KEY ...                 complete, in one call
//	hold WHAT [for=WHEN] [reason=]   lift WHAT      WHAT: NS/QUEUE, or */QUEUE for the route of all
//	shared QUEUE true|false|nodes
//	ramp WHAT                            one that is coming back stays at the beginning of that
//	later WHEN                           so much time goes by for destinations, and for what waits
//	observe WHAT ...                     how they are; also reads what was reported
//	holds                                outbox.holds;  destinations: all that is known of any
//	prune [AGE] [failed]
//	show [NS] [sum]                      messages by the view, or counts by state
//
// Clock times are printed as TIME, names of sessions as PID and OWNER.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scenarios: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "INV-") {
				t.Error("it cites no guarantee")
			}
			got := newScenario(t, pg.New(t)).play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := lineDiff(string(text), got); diff != "" {
				t.Errorf("%s (where this is meant: go test ./integration -run TestScenarios -update):\n%s", file, diff)
			}
		})
	}
}

// scenario is the state of one file's run.
type scenario struct {
	db       *pgtest.DB
	conn     *pgx.Conn
	tokens   map[string][]int64 // by key, of each of its claims
	count    map[string]int     // messages enqueued, by "NS/QUEUE"
	sessions map[string]pgx.Tx
}

func newScenario(t *testing.T, db *pgtest.DB) *scenario {
	t.Helper()
	run(t, db.Pool, ringByName)
	return &scenario{
		conn: impatient(t, db.Connect(t, pgtest.Param("application_name", "scenario"))), db: db,
		tokens: map[string][]int64{}, count: map[string]int{}, sessions: map[string]pgx.Tx{},
	}
}

// play runs a file's commands, and returns the file with what they print.
func (s *scenario) play(t *testing.T, text string) string {
	t.Helper()
	var out, printed strings.Builder
	flush := func() {
		if printed.Len() > 0 {
			out.WriteString("----\n" + printed.String())
			printed.Reset()
		}
	}
	skipping := false // what was printed when the file was written
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			skipping = true
		case line == "":
			skipping = false
			flush()
			out.WriteString("\n")
		case skipping:
		default:
			out.WriteString(line + "\n")
			if !strings.HasPrefix(line, "#") {
				got, err := s.do(t, line)
				if err != nil {
					got += fmt.Sprintf("error: %v\n", err)
				}
				printed.WriteString(s.plain(got))
			}
		}
	}
	flush()
	return out.String()
}

// command is a line taken apart: name a b c=d gives [a b] and {c: d}. Quotes keep
// spaces together.
type command struct {
	name string
	args []string
	opts map[string]string
}

func parse(line string) command {
	var words []string
	quoted := false
	for i, part := range strings.Split(line, `"`) {
		if quoted = i%2 == 1; quoted {
			words[len(words)-1] += part
			continue
		}
		fields := strings.Fields(part)
		if i > 0 && !strings.HasPrefix(part, " ") && len(fields) > 0 {
			words[len(words)-1] += fields[0]
			fields = fields[1:]
		}
		words = append(words, fields...)
		if strings.HasSuffix(part, " ") {
			words = append(words, "")
		}
	}
	c := command{opts: map[string]string{}}
	for i, w := range words {
		name, value, isOpt := strings.Cut(w, "=")
		switch {
		case i == 0:
			c.name = w
		case isOpt:
			c.opts[name] = value
		case w != "":
			c.args = append(c.args, w)
		}
	}
	return c
}

// has says whether a word stands among the arguments, and takes it out.
func (c *command) has(word string) bool {
	for i, arg := range c.args {
		if arg == word {
			c.args = append(c.args[:i:i], c.args[i+1:]...)
			return true
		}
	}
	return false
}

// opt returns an option's value, or a null for SQL.
func (c *command) opt(name string) *string {
	if v, ok := c.opts[name]; ok {
		return &v
	}
	return nil
}

// or returns an option's value, or another.
func (c *command) or(name, otherwise string) string {
	if v, ok := c.opts[name]; ok {
		return v
	}
	return otherwise
}
