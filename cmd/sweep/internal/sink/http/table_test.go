package http

import (
	"fmt"
	nethttp "net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// tableRow is a row of the table of answers in docs/delivery.md.
type tableRow struct{ answers, byDefault, withFail string }

// answersTable reads the table of answers.
func answersTable(t *testing.T) []tableRow {
	t.Helper()
	page, err := os.ReadFile("../../../../../docs/delivery.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| answer | means |")
	if !found {
		t.Fatal("docs/delivery.md has no table of answers")
	}
	var rows []tableRow
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if i < 2 { // the rest of the head, and the rule below it
			continue
		}
		if len(cells) < 5 {
			break
		}
		rows = append(rows, tableRow{cells[1], strings.TrimSpace(cells[2]), strings.TrimSpace(cells[4])})
	}
	return rows
}

// says is what the table says of a status: the first row counts that has it.
func says(t *testing.T, rows []tableRow, status int, waits, fail bool) string {
	t.Helper()
	for _, row := range rows {
		class := fmt.Sprintf("%dxx", status/100)
		named := regexp.MustCompile(fmt.Sprintf(`\b(%d|%s)\b`, status, class)).MatchString(row.answers)
		if strings.Contains(row.answers, fmt.Sprint(status, " with Retry-After")) {
			named = waits
		}
		if strings.Contains(row.answers, fmt.Sprint(status, " of a proxy")) { // no proxy is in the way here
			named = false
		}
		if !named && !strings.Contains(row.answers, "any other answer") {
			continue
		}
		if fail {
			return row.withFail
		}
		return row.byDefault
	}
	t.Fatalf("the table says nothing of %d", status)
	return ""
}

// What an answer means is what the table in docs/delivery.md says, of every status.
func TestAnswersAreAsTheTableSays(t *testing.T) {
	var status int
	var waits bool
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if waits {
			w.Header().Set("Retry-After", "17")
		}
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			fmt.Fprint(w, "the\nreason")
		}
	})
	rows := answersTable(t)
	for _, fail := range []bool{false, true} {
		s, err := New(server.URL+"/path", 0, 0, fail)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, waits = range []bool{false, true} {
			for status = 200; status <= 999; status++ {
				want := says(t, rows, status, waits, fail)
				err := s.Deliver(t.Context(), driver.Delivery{})
				if want == sinktest.Done {
					check(t, err, want, "")
					continue
				}
				check(t, err, want, fmt.Sprintf("%s: answered %d", server.URL, status))
				if err == nil {
					continue
				}
				if status != 304 && !strings.HasSuffix(err.Error(), ": the reason") {
					t.Errorf("no body in %q", err)
				}
				if want, got := map[bool]time.Duration{true: 17 * time.Second}[waits], sinktest.Delay(err); want != got && sinktest.Outcome(err) == sinktest.Busy {
					t.Errorf("%d: delay %v, want %v", status, got, want)
				}
			}
		}
	}
}
