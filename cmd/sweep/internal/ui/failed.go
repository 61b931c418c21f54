package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/when"
)

const (
	groupScan  = 10_000 // dead letters that a page counts
	groupRows  = 50     // groups that it shows
	letterRows = 25     // dead letters that it shows one by one
	countScan  = 100_000
	countTime  = 8 * time.Second // for a confirmation to count
)

// filterForm is what somebody chose dead letters by, as it was written.
type filterForm struct {
	Namespace, Route, Error, Since, Until string
}

func readFilterForm(q url.Values) filterForm {
	return filterForm{Namespace: q.Get("namespace"), Route: q.Get("route"), Error: q.Get("error"), Since: q.Get("since"), Until: q.Get("until")}
}

// link is the page at path with this filter, and more parameters.
func (f filterForm) link(path string, more ...string) string {
	return link(path, append([]string{"namespace", f.Namespace, "route", f.Route, "error", f.Error, "since", f.Since, "until", f.Until}, more...)...)
}

// Link is the page of the dead letters that it chooses.
func (f filterForm) Link() string { return f.link("/failed") }

// Of is the filter for a form that hides it.
func (f filterForm) Of() string {
	return of("namespace", f.Namespace, "route", f.Route, "error", f.Error, "since", f.Since, "until", f.Until)
}

// Odd is what the fields of the form cannot show, nor give back.
func (f filterForm) Odd() (odd filterForm) {
	for _, p := range []struct{ from, to *string }{{&f.Namespace, &odd.Namespace}, {&f.Route, &odd.Route}, {&f.Error, &odd.Error}} {
		if plain(*p.from) != *p.from {
			*p.to = *p.from
		}
	}
	return odd
}

// Any says whether something is chosen by.
func (f filterForm) Any() bool { return f != filterForm{} }

// Words is the filter in words.
func (f filterForm) Words() string {
	var parts []string
	for _, p := range []struct{ before, value string }{
		{"of tenant ", f.Namespace}, {"on route ", f.Route}, {"with the error text ", f.Error}, {"failed since ", f.Since}, {"failed before ", f.Until},
	} {
		if p.value != "" {
			parts = append(parts, p.before+shown(p.value))
		}
	}
	if len(parts) == 0 {
		return "of all tenants"
	}
	return strings.Join(parts, ", ")
}

// filter reads the form, seen from now.
func (f filterForm) filter(now time.Time) (d deadletters.Filter, err error) {
	d = deadletters.Filter{Namespace: f.Namespace, TaskQueue: f.Route, Error: f.Error}
	if d.Since, err = readMoment("From", f.Since, now); err == nil {
		d.Until, err = readMoment("Before", f.Until, now)
	}
	if err == nil && d.Since != nil && d.Until != nil && !d.Since.Before(*d.Until) {
		err = cannotBe("Before is not later than From: nothing lies between them.", "Of two ages, the larger one is for From.")
	}
	return d, err
}

// readMoment reads an age such as 2h or 7d, or a time; nil where there is none.
func readMoment(name, value string, now time.Time) (*time.Time, error) {
	if value == "" {
		return nil, nil
	}
	if at, ok := when.ParseInstant(value); ok {
		return &at, nil
	}
	age, err := when.ParseDuration(value)
	if err != nil || age < 0 {
		return nil, cannotBe(name+" is neither an age nor a time: "+shown(cut(value, 100))+".", "Write an age such as 15m, 12h or 7d, or a time such as 2026-01-31 03:00.")
	}
	at := now.Add(-age)
	return &at, nil
}

// groupRow is a group with a link to what is in it.
type groupRow struct {
	deadletters.Group
	Link string
}

type failedView struct {
	outbox
	Filter  filterForm
	Groups  []groupRow
	Counted int64 // dead letters in the groups
	More    bool  // there are groups that are not shown
	Cut     bool  // there are dead letters that were not looked at
	Letters []deadletters.Letter
	Next    string
	Paged   bool
	Redrive string // the link to the confirmation
	Jobs    []jobView
}

// failed shows the dead letters: what went wrong how often, and the newest ones.
func (s *Server) failed(r *http.Request) (*page, error) {
	s.survey.look()
	q := merge(r.URL.Query())
	v := failedView{Filter: readFilterForm(q), Jobs: s.jobs.list()}
	var after *deadletters.Cursor
	if text := q.Get("after"); text != "" {
		after = new(deadletters.Cursor)
		if after.UnmarshalText([]byte(text)) != nil {
			return nil, cannotBe("The address is none that these pages have made.")
		}
		v.Paged = true
	}
	err := s.read(r.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if v.outbox, err = readOutbox(ctx, tx); err != nil {
			return err
		}
		filter, err := v.Filter.filter(v.At)
		if err != nil {
			return err
		}
		return v.read(ctx, tx, filter.Pages(v.At, true, after))
	})
	if err != nil {
		return nil, err
	}
	v.Redrive = v.Filter.link("/failed/redrive")
	return &page{name: "failed", title: "Failed", at: v.At, data: v}, nil
}

// read looks at the newest dead letters, from where the page begins.
func (v *failedView) read(ctx context.Context, tx pgx.Tx, pages *deadletters.Pages) error {
	var groups deadletters.Grouper
	for looked := 0; ; looked += deadletters.ChunkRows {
		if looked >= groupScan {
			v.Cut = true
			break
		}
		rows, next, err := pages.Read(ctx, tx, deadletters.ChunkRows)
		if err != nil {
			return err
		}
		for _, row := range rows {
			groups.Add(row)
			if len(v.Letters) < letterRows {
				v.Letters = append(v.Letters, row)
			} else if v.Next == "" {
				last := v.Letters[len(v.Letters)-1]
				v.Next = v.Filter.link("/failed", "after", (&deadletters.Cursor{At: last.FailedAt, ID: last.ID}).String())
			}
			v.Counted++
		}
		if next == nil {
			break
		}
		pages.After = next
	}
	v.More = groups.Len() > groupRows
	for _, g := range groups.Largest(groupRows) {
		f := v.Filter
		f.Route, f.Error = g.TaskQueue, longest(g.Error)
		v.Groups = append(v.Groups, groupRow{g, f.link("/failed")})
	}
	return nil
}

// longest is the longest part of a folded error that is as it was: between two #.
func longest(folded string) (part string) {
	for p := range strings.SplitSeq(folded, "#") {
		if p = strings.TrimSpace(p); len(p) > len(part) {
			part = p
		}
	}
	for len(part) > 200 { // a link stays short
		_, size := utf8.DecodeLastRuneInString(part)
		part = part[:len(part)-size]
	}
	return part
}

type redriveView struct {
	outbox
	Filter filterForm
	Count  int64
	More   bool   // it counted no further
	Until  string // what fails later is not redriven
	Back   string
}

// confirmRedrive counts what a redrive would bring back, and asks.
func (s *Server) confirmRedrive(r *http.Request) (*page, error) {
	if !s.Actions {
		return nil, onlyShows
	}
	v := redriveView{Filter: readFilterForm(r.URL.Query())}
	v.Back = v.Filter.link("/failed")
	err := s.read(r.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if v.outbox, err = readOutbox(ctx, tx); err != nil {
			return err
		}
		filter, err := v.Filter.filter(v.At)
		if err != nil {
			return err
		}
		began := time.Now()
		pages := filter.Pages(v.At, false, nil)
		for looked := 0; ; looked += deadletters.ChunkRows {
			rows, next, err := pages.Read(ctx, tx, deadletters.ChunkRows)
			if err != nil {
				return err
			}
			v.Count += int64(len(rows))
			if next == nil {
				return nil
			}
			if looked >= countScan || time.Since(began) > countTime {
				v.More = true
				return nil
			}
			pages.After = next
		}
	})
	if err != nil {
		return nil, err
	}
	// Ages are turned into times here: what is redriven is what was counted, whenever somebody confirms.
	filter, err := v.Filter.filter(v.At)
	if err != nil {
		return nil, err
	}
	if filter.Since != nil {
		v.Filter.Since = filter.Since.UTC().Format(time.RFC3339Nano)
	}
	until := v.At
	if filter.Until != nil && filter.Until.Before(until) {
		until = *filter.Until
	}
	v.Filter.Until = until.UTC().Format(time.RFC3339Nano)
	return &page{name: "redrive", title: "Redrive", at: v.At, data: v}, nil
}
