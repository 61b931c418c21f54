package ui

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/when"
)

// onlyShows refuses an action where there are none.
var onlyShows = &problem{
	status: http.StatusForbidden, Title: "These pages only show", Text: "Nothing was changed: sweep was started without --actions.",
}

// action changes something. It returns what it has done, in words, and what the log says of it.
type action struct {
	name  string
	reads bool // it changes nothing in the outbox
	do    func(ctx context.Context, r *http.Request) (done string, attrs []any, err error)
}

// actions are by the path that they are posted to.
func (s *Server) actions() map[string]action {
	return map[string]action{
		"/pause":           {name: "pause", do: s.pause},
		"/resume":          {name: "resume", do: s.resume},
		"/hold":            {name: "hold", do: s.hold},
		"/lift":            {name: "lift", do: s.lift},
		"/quota":           {name: "quota", do: s.quota},
		"/message/redrive": {name: "redrive", do: s.redriveMessage},
		"/message/cancel":  {name: "cancel", do: s.cancelMessage},
		"/message/retry":   {name: "retry_now", do: s.retryMessage},
		"/failed/redrive":  {name: "redrive_some", do: s.redriveFailed},
		"/failed/stop":     {name: "redrive_stop", do: s.stopRedrive},
		"/nodes/check":     {name: "check", reads: true, do: s.checkNow},
	}
}

// act runs an action, logs who did it, and goes back to the page that it was on.
func (s *Server) act(a action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
		err := r.ParseForm()
		merge(r.PostForm)
		var done string
		var attrs []any
		switch {
		case err != nil:
			err = cannotBe("The form cannot be read, or is too large.")
		case !s.Actions && !a.reads:
			err = onlyShows
		default:
			done, attrs, err = a.do(context.WithoutCancel(r.Context()), r) // whoever asked may be gone
		}
		attrs = append([]any{"event", "ui_action", "action", a.name, "user", user(r), "from", r.RemoteAddr}, attrs...)
		if err != nil {
			s.Log.Warn("an action failed", append(attrs, "error", err.Error())...)
			s.fail(w, r, err)
			return
		}
		s.Log.Info("an action", append(attrs, "done", done)...)
		http.Redirect(w, r, back(r.PostForm.Get("back"), s.flash.keep(done)), http.StatusSeeOther)
	})
}

// back is the page that an action was on, with the number of the message of what was done. Only pages of
// this server are gone back to.
func back(to, done string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") || strings.Contains(u.Path, `\`) {
		u = &url.URL{Path: "/"}
	}
	q := u.Query()
	q.Set("done", done)
	return (&url.URL{Path: u.Path, RawQuery: q.Encode()}).String()
}

// flashes are what actions have done, until the page that is gone back to has shown it.
type flashes struct {
	mu  sync.Mutex
	all map[string]flash
}

type flash struct {
	text string
	at   time.Time
}

const (
	flashAge = 10 * time.Minute
	maxFlash = 1000
)

// keep keeps a message and returns its number, which nobody can guess.
func (f *flashes) keep(text string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil || len(f.all) >= maxFlash {
		f.all = map[string]flash{}
	}
	id := rand.Text()
	f.all[id] = flash{text, time.Now()}
	return id
}

// take is the message with this number. It stays for a while: a page may be shown again.
func (f *flashes) take(id string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.all[id]
	if !ok {
		return nil
	}
	if time.Since(m.at) > flashAge {
		delete(f.all, id)
		return nil
	}
	return []string{m.text}
}

// value is a field of a form; nil where it is empty.
func value(r *http.Request, name string) *string {
	v := r.PostForm.Get(name)
	if v == "" {
		return nil
	}
	return &v
}

func needed(r *http.Request, name string) (string, error) {
	v := r.PostForm.Get(name)
	if v == "" {
		return "", cannotBe("The form lacks its field " + name + ".")
	}
	return v, nil
}

// target is what a form wants paused or resumed. Everything must be asked for by name: an empty
// field must not choose all.
func target(r *http.Request) (p pauseRow, attrs []any, err error) {
	p = pauseRow{Namespace: value(r, "namespace"), TaskQueue: value(r, "route")}
	if (p.Namespace == nil) != (r.PostForm.Get("all") == "yes") {
		return p, nil, cannotBe("The form names neither a tenant nor all of them.")
	}
	return p, []any{"namespace", deref(p.Namespace), "task_queue", deref(p.TaskQueue)}, nil
}

// howLong reads the field that says for how long, as seconds; nil: it is empty.
func howLong(r *http.Request) (*float64, error) {
	text := strings.TrimSpace(r.PostForm.Get("for"))
	if text == "" {
		return nil, nil
	}
	d, err := when.ParseDuration(text)
	if err != nil || d <= 0 {
		return nil, cannotBe("For how long is no length of time: "+shown(cut(text, 100))+".", "Write 30m, 12h or 7d, or nothing.")
	}
	seconds := d.Seconds()
	return &seconds, nil
}

// signed is a note with the name of its user: the database knows the role alone.
func signed(r *http.Request, note string) string {
	if who := user(r); who != "" {
		note = strings.TrimSpace(note + " (" + who + ")")
	}
	return note
}

func (s *Server) pause(ctx context.Context, r *http.Request) (string, []any, error) {
	p, attrs, err := target(r)
	if err != nil {
		return "", attrs, err
	}
	attrs = append(attrs, "note", r.PostForm.Get("note"))
	long, err := howLong(r)
	if err != nil {
		return "", attrs, err
	}
	attrs = append(attrs, "seconds", deref(long))
	var changed bool
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select outbox.pause($1::text, $2::text, nullif($3::text, ''), clock_timestamp() + make_interval(secs => $4::float8), $5::boolean)`,
			p.Namespace, p.TaskQueue, signed(r, r.PostForm.Get("note")), long, p.Namespace == nil && p.TaskQueue == nil).Scan(&changed)
	})
	if err != nil {
		return "", attrs, err
	}
	if !changed {
		return capital(p.What()) + " was paused already; the new note and end count.", attrs, nil
	}
	return "Paused " + p.What() + ". What is out for delivery goes on.", attrs, nil
}

func (s *Server) resume(ctx context.Context, r *http.Request) (string, []any, error) {
	p, attrs, err := target(r)
	if err != nil {
		return "", attrs, err
	}
	var changed bool
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select outbox.resume($1::text, $2::text)`, p.Namespace, p.TaskQueue).Scan(&changed)
	})
	if err != nil {
		return "", attrs, err
	}
	if !changed {
		return capital(p.What()) + " was not paused.", attrs, nil
	}
	return "Resumed " + p.What() + ".", attrs, nil
}

// hold holds a destination: a route of a tenant, or of all.
func (s *Server) hold(ctx context.Context, r *http.Request) (string, []any, error) {
	p, attrs, err := target(r)
	if err == nil && p.TaskQueue == nil {
		err = cannotBe("Name the route to hold. To hold back a whole tenant, pause it.")
	}
	if err != nil {
		return "", attrs, err
	}
	long, err := howLong(r)
	if err != nil {
		return "", attrs, err
	}
	attrs = append(attrs, "seconds", deref(long), "note", r.PostForm.Get("note"))
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select outbox.hold($1::text, $2::text, make_interval(secs => $3::float8), nullif($4::text, ''))`,
			p.Namespace, p.TaskQueue, long, signed(r, r.PostForm.Get("note")))
		return err
	})
	text := " until it is lifted."
	if long != nil {
		text = ", then one message of it is tried."
	}
	return "Held: " + p.What() + text, attrs, err
}

func (s *Server) lift(ctx context.Context, r *http.Request) (string, []any, error) {
	p, attrs, err := target(r)
	if err != nil {
		return "", attrs, err
	}
	var changed bool
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select outbox.lift($1::text, $2::text)`, p.Namespace, p.TaskQueue).Scan(&changed)
	})
	if err != nil {
		return "", attrs, err
	}
	if !changed {
		return capital(p.What()) + " was not held.", attrs, nil
	}
	return "Lifted the hold of " + p.What() + ": its flow grows from one message on.", attrs, nil
}

func (s *Server) quota(ctx context.Context, r *http.Request) (string, []any, error) {
	name, err := needed(r, "namespace")
	attrs := []any{"namespace", name}
	if err != nil {
		return "", attrs, err
	}
	if r.PostForm.Get("default") == "yes" {
		err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `select outbox.clear_quota($1::text)`, name)
			return err
		})
		return "Tenant " + shown(name) + " has the default quota again.", append(attrs, "quota", "default"), err
	}
	n, err := strconv.ParseInt(r.PostForm.Get("quota"), 10, 32)
	if err != nil || n < 0 {
		return "", attrs, cannotBe("The quota must be a number, 0 or more.")
	}
	strict := r.PostForm.Get("strict") == "yes"
	attrs = append(attrs, "quota", n, "strict", strict)
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select outbox.set_quota($1::text, $2::int, $3::boolean)`, name, n, strict)
		return err
	})
	text := fmt.Sprintf("The quota of tenant %s is %d", shown(name), n)
	if strict {
		text += ", strict"
	}
	return text + ". It counts from the next claim on.", attrs, err
}

// forMessage runs an action on the message of the form; did and not say what became of it.
func (s *Server) forMessage(ctx context.Context, r *http.Request, sql, did, not string) (string, []any, error) {
	key, err := needed(r, "key")
	attrs := []any{"dispatch_key", key}
	if err != nil {
		return "", attrs, err
	}
	var n int64
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, sql, key).Scan(&n) })
	if err != nil {
		return "", attrs, err
	}
	if n == 0 {
		return "Message " + shown(key) + " " + not + ".", append(attrs, "changed", false), nil
	}
	return "Message " + shown(key) + " " + did + ".", append(attrs, "changed", true), nil
}

func (s *Server) redriveMessage(ctx context.Context, r *http.Request) (string, []any, error) {
	return s.forMessage(ctx, r,
		`select count(*) from outbox.redrive(array(select m.id from outbox.messages as m where m.dispatch_key = $1::text)) as r`,
		"is pending again, with its attempts counted from 0", "was neither failed nor cancelled: nothing was changed")
}

func (s *Server) cancelMessage(ctx context.Context, r *http.Request) (string, []any, error) {
	return s.forMessage(ctx, r, `select count(*) from outbox.cancel(array[$1::text]) as c`,
		"is cancelled", "was neither pending nor claimed: nothing was changed")
}

func (s *Server) retryMessage(ctx context.Context, r *http.Request) (string, []any, error) {
	return s.forMessage(ctx, r, `select count(*) from outbox.retry_now(array[$1::text]) as t`,
		"is due now", "was not waiting for its time: nothing was changed")
}

// redriveFailed begins a redrive of what a filter chooses.
func (s *Server) redriveFailed(ctx context.Context, r *http.Request) (string, []any, error) {
	f := readFilterForm(r.PostForm)
	attrs := []any{"filter", f.Words(), "rate", r.PostForm.Get("rate"), "max", r.PostForm.Get("max")}
	if r.PostForm.Get("until") == "" { // the confirmation's; without it what fails again would come round
		return "", attrs, cannotBe("A redrive must be confirmed first, on its page.")
	}
	var rate deadletters.Rate
	if err := rate.UnmarshalText([]byte(strings.TrimSpace(r.PostForm.Get("rate")))); err != nil {
		return "", attrs, cannotBe(shown(err.Error()) + ".")
	}
	var most int64
	if text := r.PostForm.Get("max"); text != "" {
		var err error
		if most, err = strconv.ParseInt(text, 10, 64); err != nil || most < 1 {
			return "", attrs, cannotBe("At most must be a number, 1 or more, or empty for all.")
		}
	}
	var now time.Time
	// A right that is missing is said now, and not by a job in the background.
	err := s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `select outbox.redrive('{}'::bigint[])`)
		return err
	})
	if err != nil {
		return "", attrs, err
	}
	filter, err := f.filter(now)
	if err != nil {
		return "", attrs, err
	}
	one, err := s.redrive(jobView{What: f.Words(), Rate: r.PostForm.Get("rate"), By: user(r), Count: r.PostForm.Get("count")}, filter, now, most, &rate)
	if err != nil {
		return "", attrs, err
	}
	return fmt.Sprintf("Redrive %d has begun.", one.ID), append(attrs, "job", one.ID), nil
}

func (s *Server) stopRedrive(_ context.Context, r *http.Request) (string, []any, error) {
	id, err := strconv.Atoi(r.PostForm.Get("job"))
	attrs := []any{"job", id}
	if err != nil {
		return "", attrs, cannotBe("The form names no redrive.")
	}
	if !s.jobs.cancel(id) {
		return fmt.Sprintf("Redrive %d was over already.", id), attrs, nil
	}
	return fmt.Sprintf("Redrive %d stops: what it has done stays done.", id), attrs, nil
}

func (s *Server) checkNow(ctx context.Context, r *http.Request) (string, []any, error) {
	who := user(r)
	done, err := s.runCheck(ctx, who)
	return done, nil, err
}
