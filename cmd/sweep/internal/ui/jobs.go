package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
	"github.com/fairclaim/fairclaim/internal/grace"
)

const (
	maxJobs  = 3  // redrives at a time
	keptJobs = 10 // that are over, to be shown
)

// jobs are redrives in the background. They end with the process: what is not redriven by then stays failed.
type jobs struct {
	mu   sync.Mutex
	next int
	all  []*job // the newest first
	wg   sync.WaitGroup
}

type job struct {
	jobView
	stop context.CancelFunc
}

// jobView is a redrive as a page shows it.
type jobView struct {
	ID    int
	What  string // the filter, in words
	Rate  string
	By    string
	Count string // how many were counted before
	Began time.Time
	Ended time.Time // zero: it goes on
	Done  int64
	Err   string
}

// Running says whether it goes on.
func (j jobView) Running() bool { return j.Ended.IsZero() }

// State is how far it is, in words.
func (j jobView) State() string {
	switch {
	case j.Running():
		return "under way"
	case j.Err != "":
		return j.Err
	}
	return "done"
}

func (j *jobs) list() []jobView {
	j.mu.Lock()
	defer j.mu.Unlock()
	views := make([]jobView, len(j.all))
	for i, one := range j.all {
		views[i] = one.jobView
	}
	return views
}

// cancel stops a job between two chunks.
func (j *jobs) cancel(id int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, one := range j.all {
		if one.ID == id && one.Running() {
			one.stop()
			return true
		}
	}
	return false
}

func (j *jobs) wait() { j.wg.Wait() }

// redrive begins a redrive in the background.
func (s *Server) redrive(v jobView, filter deadletters.Filter, now time.Time, most int64, rate *deadletters.Rate) (*job, error) {
	s.jobs.mu.Lock()
	defer s.jobs.mu.Unlock()
	running := 0
	for _, one := range s.jobs.all {
		if one.Running() {
			running++
		}
	}
	if running >= maxJobs {
		return nil, &problem{
			status: http.StatusConflict, Title: "Not yet", Text: fmt.Sprintf("%s are under way, and there are no more at a time.", plural(int64(running), "redrive")),
			Hint: "Wait for one to end, or stop one, on the page Failed.",
		}
	}
	ctx, stop := context.WithCancel(s.ctx)
	s.jobs.next++
	v.ID, v.Began = s.jobs.next, time.Now()
	one := &job{jobView: v, stop: stop}
	s.jobs.all = slices.Insert(s.jobs.all, 0, one)
	for i := len(s.jobs.all) - 1; len(s.jobs.all) > maxJobs+keptJobs; i-- { // the oldest that is over
		if !s.jobs.all[i].Running() {
			s.jobs.all = slices.Delete(s.jobs.all, i, i+1)
		}
	}
	s.jobs.wg.Go(func() {
		defer stop()
		working, end := grace.Context(ctx, closeTimeout)
		defer end()
		done, err := deadletters.Redrive(ctx, working, s.inWrite, filter, now, most, rate, func(done int64) {
			s.jobs.mu.Lock()
			defer s.jobs.mu.Unlock()
			one.Done = done
		})
		text := ""
		switch {
		case err != nil && ctx.Err() != nil:
			text = "stopped"
		case err != nil:
			text = s.explain(working, err).Text
		}
		s.jobs.mu.Lock()
		defer s.jobs.mu.Unlock()
		one.Done, one.Ended, one.Err = done, time.Now(), text
		s.Log.Info("a redrive ended", "event", "ui_redrive_ended", "job", one.ID, "user", v.By, "redriven", done, "state", one.State())
	})
	return one, nil
}

// inWrite is write for the package deadletters.
func (s *Server) inWrite(ctx context.Context, do func(pgx.Tx) error) error {
	return s.write(ctx, func(_ context.Context, tx pgx.Tx) error { return do(tx) })
}
