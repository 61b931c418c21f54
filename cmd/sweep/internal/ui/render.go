package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/text"
)

// page is what a handler found, and how to show it.
type page struct {
	name  string // of the template
	title string
	at    time.Time // on the database's clock, when what it shows was read
	data  any
}

// problem is an error in words for whoever looks.
type problem struct {
	status      int
	Title, Text string
	Hint        string
}

func (p *problem) Error() string { return p.Text }

// cannotBe is the answer to a request that cannot be what was meant.
func cannotBe(text string, hint ...string) *problem {
	return &problem{status: http.StatusBadRequest, Title: "That cannot be", Text: text, Hint: strings.Join(hint, " ")}
}

// view is what every template gets.
type view struct {
	Title   string
	Path    string // of this page, for the navigation
	At      time.Time
	User    string
	Actions bool
	Version string
	Done    []string // what an action has done
	Data    any
}

var pages = parse()

// parse reads the templates: each page with the layout and the parts.
func parse() map[string]*template.Template {
	functions := template.FuncMap{
		"shown": shown, "clock": clock, "iso": iso, "ago": ago, "until": until, "span": span, "count": counted, "plural": plural,
		"shards": shards.Format, "link": link, "of": of, "plain": plain, "bytes": size, "deref": deref[int32], "text": deref[string], "number": deref[int64],
		"int64": toInt64, "toint": func(n int32) int { return int(n) }, "seconds": func(n int64) string { return span(time.Duration(n) * time.Second) }, "dict": dict, "short": func(s string) string { return cut(shown(s), errorShown) },
	}
	all := map[string]*template.Template{}
	for _, name := range []string{"tenants", "tenant", "failed", "redrive", "message", "nodes", "problem"} {
		all[name] = template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "files/layout.html", "files/parts.html", "files/"+name+".html"))
	}
	return all
}

// show answers with a page, or with what went wrong.
func (s *Server) show(find func(*http.Request) (*page, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := find(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.render(w, r, http.StatusOK, p)
	})
}

func (s *Server) render(w http.ResponseWriter, r *http.Request, status int, p *page) {
	v := view{
		Title: p.title, Path: r.URL.Path, At: p.at, User: user(r), Actions: s.Actions, Version: s.Version, Data: p.data,
		Done: s.flash.take(r.URL.Query().Get("done")),
	}
	var b bytes.Buffer
	if err := pages[p.name].Execute(&b, v); err != nil {
		s.Log.Error("show a page", "event", "ui_error", "page", p.name, "error", err.Error())
		http.Error(w, "The page cannot be shown; the log of sweep says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // whoever asked may be gone
}

// fail shows an error in words.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := s.explain(r.Context(), err)
	s.render(w, r, p.status, &page{name: "problem", title: p.Title, data: p})
}

// explain puts an error into words.
func (s *Server) explain(ctx context.Context, err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == "42501":
			return &problem{
				status: http.StatusForbidden, Title: "The database refuses",
				Text: "The role " + shown(s.Pool.Config().ConnConfig.User) + ", which these pages read and act as, has no right to this: " + shown(pg.Message) + ".",
				Hint: "The owner of the schema outbox can grant the right, and must do so again after an upgrade: select outbox.grant_operator('role').",
			}
		case strings.HasPrefix(pg.Code, "OB"), pg.Code == "22021", pg.Code == "22003", pg.Code == "22P02":
			return cannotBe(shown(pg.Message)+".", shown(pg.Hint))
		case pg.Code == "25006":
			return &problem{
				status: http.StatusConflict, Title: "The database takes no changes",
				Text: "It is a standby, or default_transaction_read_only is on.", Hint: "Let sweep ui connect to the primary.",
			}
		case pg.Code == "3F000", pg.Code == "42883", pg.Code == "42P01", pg.Code == "42703":
			return &problem{
				status: http.StatusServiceUnavailable, Title: "Another version",
				Text: "The schema outbox is not of the version that this sweep needs: " + shown(pg.Message) + ".", Hint: "See “sweep migrate version”.",
			}
		case pg.Code == "55P03":
			return &problem{
				status: http.StatusServiceUnavailable, Title: "Somebody is in the way", Text: "Another session has held a lock that this needs for long.",
				Hint: "Try again. The page Nodes says who holds locks and is not claiming, and how to end it.",
			}
		case pg.Code == "57014":
			return &problem{status: http.StatusServiceUnavailable, Title: "Too slow", Text: "The database took too long to answer.", Hint: "Try again."}
		}
		s.Log.Error("a page failed", "event", "ui_error", "error", pg.Error())
		return &problem{status: http.StatusServiceUnavailable, Title: "The database reports an error", Text: shown(pg.Message) + " (SQLSTATE " + pg.Code + ")."}
	}
	if ctx.Err() == nil {
		s.Log.Error("a page failed", "event", "ui_error", "error", err.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &problem{status: http.StatusServiceUnavailable, Title: "Too slow", Text: "The database took too long to answer.", Hint: "Try again."}
	}
	return &problem{
		status: http.StatusServiceUnavailable, Title: "The database does not answer", Text: "The connection is lost, or none could be made.",
		Hint: "The log of sweep has the error. Try again in a moment.",
	}
}

// shown is what strangers wrote, as a page may show it: nothing in it acts on the text around it, and
// what begins or ends with a space stands in quotes.
func shown(s string) string {
	v := text.Visible(s)
	if v == "" || strings.TrimSpace(v) != v {
		return `"` + v + `"`
	}
	return v
}

// cut is the beginning of a text, in characters.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}

const errorShown = 300

// toInt64 makes the number that plural and count take.
func toInt64(n any) int64 { return reflect.ValueOf(n).Int() }

// dict gives a part of a page several values, by name.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// plural is "1 message", "2 messages".
func plural(n int64, word string) string { return pluralUpTo(n, 0, word) }

// pluralUpTo is plural for a count that stopped at most (0: it did not stop).
func pluralUpTo(n, most int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return counted(n, most) + " " + word + "s"
}

// counted is a number with its thousands apart; one that stopped at most is "1,000+".
func counted(n, most int64) string {
	more := ""
	if most > 0 && n >= most {
		n, more = most, "+"
	}
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits + more
}

func size(n int64) string {
	if n < 1024 {
		return plural(n, "byte")
	}
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/1024)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// always stands for a time that no clock has: a message that has been due for ever.
var always = time.Time{}

// clock is a time as a page shows it, in the time zone of this machine.
func clock(t time.Time) string {
	if t.Equal(always) {
		return "always"
	}
	return t.Local().Format("2006-01-02 15:04:05 MST")
}

func iso(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ago is how long before now a time was.
func ago(t, now time.Time) string {
	if t.Equal(always) {
		return "always"
	}
	return span(now.Sub(t))
}

func until(t, now time.Time) string { return span(t.Sub(now)) }

// span is a length of time in its two largest units.
func span(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	units := []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	for i, u := range units {
		if d < u.of && u.of > time.Second {
			continue
		}
		out := fmt.Sprintf("%d %s", d/u.of, u.name)
		if rest := d % u.of; u.of > time.Second && rest >= units[i+1].of {
			out += fmt.Sprintf(" %d %s", rest/units[i+1].of, units[i+1].name)
		}
		return out
	}
	return ""
}

func noted(note *string) string {
	if note == nil || *note == "" {
		return ""
	}
	return ": “" + shown(*note) + "”"
}

// of are parameters for the hidden field "of" of a form, as a link has them: browsers change line breaks and more
// in the values of forms, and nothing in these. See [merge].
func of(pairs ...string) string {
	_, query, _ := strings.Cut(link("", pairs...), "?")
	return query
}

// merge adds the parameters of the fields "of" to a form.
func merge(form url.Values) url.Values {
	for _, more := range form["of"] {
		values, err := url.ParseQuery(more)
		if err != nil {
			continue // a form that these pages have not made: what it lacks is said where it is needed
		}
		for name, value := range values {
			form[name] = value
		}
	}
	return form
}

// plain is a value that a field can show as it is, and give back; else empty.
func plain(s string) string {
	if text.Visible(s) != s {
		return ""
	}
	return s
}

// link is an address with its parameters: name, value, name, value. Empty values are left out.
func link(path string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}
