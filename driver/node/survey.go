package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/driver"
)

// SurveyConfig is what a live node finds out about the outbox as a whole and tells its [Observer],
// while it owns shard 0: so one node of an outbox does, mostly.
type SurveyConfig struct {
	Every      time.Duration // between two surveys; 0: none. The first one comes with shard 0
	Namespaces int           // tell of so many namespaces: those whose oldest due messages have waited longest; those that wait because they are paused, or their destinations are held, come behind the others
	Names      []string      // and of these
	CheckEvery time.Duration // between two audits (outbox.check) of the newest messages; 0: none
}

// surveyNames is how many namespaces a survey can be told to name: it looks at each anew.
const surveyNames = 1000

func (c *SurveyConfig) check() error {
	switch {
	case c.Every < 0 || c.Every > longest:
		return badField("Survey.Every", "is %v: give 0 to %v", c.Every, longest)
	case c.CheckEvery < 0 || c.CheckEvery > longest:
		return badField("Survey.CheckEvery", "is %v: give 0 to %v", c.CheckEvery, longest)
	case c.Namespaces < 0 || c.Namespaces > surveyNames:
		return badField("Survey.Namespaces", "is %d: give 0 to %d", c.Namespaces, surveyNames)
	case len(c.Names) > surveyNames:
		return badField("Survey.Names", "has %d names: give %d at most", len(c.Names), surveyNames)
	}
	for _, name := range c.Names {
		if name == "" || len(name) > 512 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
			return badField("Survey.Names", "has %q: give names of 1 to 512 bytes, UTF-8 without NUL", name)
		}
	}
	c.Names = slices.Compact(slices.Sorted(slices.Values(c.Names)))
	return nil
}

// Survey is an outbox as a whole, as one node has found it.
type Survey struct {
	Outbox  driver.OutboxSurvey
	Horizon driver.Horizon

	// Longest is how long the oldest due message has waited: of those of the namespaces that the walk
	// around all of them has come past, and that are not paused, where its destination is not held. LongestHeld:
	// where it is; LongestPaused: of those that are paused.
	Longest, LongestHeld, LongestPaused time.Duration

	Waiting    int64                    // namespaces that had pending messages when the walk came past them
	Namespaces []driver.NamespaceSurvey // SurveyConfig.Namespaces, the longest wait first, those that are paused or held behind the others, then SurveyConfig.Names
	Others     OtherNamespaces          // all others

	// Lap is how long the last walk around all namespaces with pending messages took; 0: none has ended
	// yet. Where it is more than SurveyConfig.Every, a namespace may have begun to wait and is not
	// known for so long.
	Lap time.Duration

	Audit *Audit // the last one of this node; nil: none has ended
}

// OtherNamespaces are those that a [Survey] does not name and that had pending messages when the walk
// came past them, added up. The counts of each stop at the setting count_cap.
type OtherNamespaces struct {
	Namespaces, Due, Unripe, Claimed, Failed int64

	Waited time.Duration // the longest wait of those that are known
}

// Audit is the result of an audit.
type Audit struct {
	At         time.Time // when it ended
	Violations []driver.Violation
}

// What one survey reads at most of the walk around all namespaces, in time and in namespaces: at a
// survey each 15 s a hundredth of a core, and 100,000 namespaces in 5 minutes.
const (
	surveyTime = 300 * time.Millisecond
	surveySize = 5000

	// auditNewest is how many of the newest messages an audit looks at.
	auditNewest = 10_000
)

// surveyor surveys in a goroutine of its own: a survey may take longer than a loop can wait.
type surveyor struct {
	db      driver.Querier
	config  SurveyConfig
	timeout time.Duration // of a survey

	ranking ranking
	audit   *Audit
	auditAt time.Time

	holdsAt time.Time // when events of holds are read again; zero: with each survey

	told chan surveyed // the last one that the loop has not read yet
	stop context.CancelFunc
	done chan struct{}
}

// surveyed is a survey that has ended.
type surveyed struct {
	survey *Survey
	holds  []driver.HoldEvent // what became of holds since the one before
	call   Call               // of the survey, the audit, or the events of holds
}

// startSurveyor begins to survey, until stop is called.
func startSurveyor(ctx context.Context, db driver.Querier, c SurveyConfig, timeout time.Duration) *surveyor {
	ctx, stop := context.WithCancel(ctx)
	s := &surveyor{
		db: db, config: c, timeout: timeout, ranking: newRanking(max(c.Namespaces, 1), c.Names),
		told: make(chan surveyed, 4), stop: stop, done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		s.run(ctx)
	}()
	return s
}

func (s *surveyor) run(ctx context.Context) {
	for {
		if s.config.CheckEvery > 0 && (s.auditAt.IsZero() || time.Since(s.auditAt) >= s.config.CheckEvery) {
			s.auditAt = time.Now()
			before := time.Now()
			call, cancel := context.WithTimeout(ctx, max(s.timeout, auditTimeout))
			found, err := driver.Check(call, s.db, auditNewest)
			cancel()
			if err == nil {
				found = slices.DeleteFunc(found, func(v driver.Violation) bool { return v.Guarantee == driver.Advice })
				s.audit = &Audit{At: time.Now(), Violations: found}
			}
			s.tell(ctx, surveyed{call: Call{Name: "check", Took: time.Since(before), Err: err}})
		}
		before := time.Now()
		survey, err := s.look(ctx)
		s.tell(ctx, surveyed{survey: survey, call: Call{Name: "survey", Took: time.Since(before), Err: err}})
		s.hear(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(jitter(s.config.Every)):
		}
	}
}

// auditTimeout is how long an audit may take. No survey comes meanwhile.
const auditTimeout = 30 * time.Second

// tell hands on what was found, and waits while the loop has not read what came before.
func (s *surveyor) tell(ctx context.Context, what surveyed) {
	select {
	case s.told <- what: // there mostly is room, also where ctx has ended: what became of holds, no other call returns
		return
	default:
	}
	select {
	case s.told <- what:
	case <-ctx.Done():
	}
}

// What is read of holds at a time, and how often in a row.
const (
	holdsSize  = 1000
	holdsPages = 10
)

// hear reads what became of holds. An outbox of the version before does not say, nor one that has not given this role
// the right to ask: then it asks now and then.
func (s *surveyor) hear(ctx context.Context) {
	if time.Now().Before(s.holdsAt) {
		return
	}
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var all []driver.HoldEvent
	var err error
	before := time.Now()
	for range holdsPages {
		var page []driver.HoldEvent
		page, err = driver.HoldEvents(call, s.db, holdsSize)
		if all = append(all, page...); err != nil || len(page) < holdsSize {
			break
		}
	}
	if cannotCall(err) {
		s.holdsAt = time.Now().Add(surveyLogEvery)
	}
	s.tell(ctx, surveyed{holds: all, call: Call{Name: "hold_events", Took: time.Since(before), Err: err}})
}

// look makes a survey.
func (s *surveyor) look(ctx context.Context) (*Survey, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	outbox, err := driver.Survey(ctx, s.db)
	if err != nil {
		return nil, err
	}
	horizon, err := driver.ReadHorizon(ctx, s.db)
	if err != nil {
		return nil, err
	}
	seen, err := s.walk(ctx)
	if err != nil {
		return nil, err
	}
	if again := s.ranking.unseen(seen); len(again) > 0 {
		named, err := driver.SurveyNamed(ctx, s.db, again)
		if err != nil {
			return nil, err
		}
		s.ranking.look(named)
	}
	survey := s.ranking.survey(s.config.Namespaces)
	survey.Outbox, survey.Horizon, survey.Audit = outbox, horizon, s.audit
	return &survey, nil
}

// walk goes on around the namespaces, once around at most, and returns which it came past.
func (s *surveyor) walk(ctx context.Context) (seen map[string]bool, err error) {
	seen = map[string]bool{}
	for began := time.Now(); len(seen) < surveySize; {
		left := surveyTime - time.Since(began)
		if left <= 0 && len(seen) > 0 {
			break
		}
		page, err := driver.SurveyNamespaces(ctx, s.db, driver.SurveyPage{
			After: s.ranking.after, Size: surveySize - len(seen), MaxTime: max(left, 0),
		})
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			s.ranking.round(time.Now())
			break
		}
		s.ranking.pass(page, time.Now())
		for i := range page {
			seen[page[i].Namespace] = true
		}
	}
	return seen, nil
}

// survey begins and ends surveying as the node gets and loses shard 0, and tells the observer what
// was found.
func (l *loop) survey(ctx context.Context) {
	if l.config.Survey.Every <= 0 || !l.live {
		return
	}
	owner := !l.draining && slices.Contains(l.shards, 0)
	switch {
	case owner && l.surveyor == nil:
		l.surveyor = startSurveyor(ctx, l.db, l.config.Survey, l.config.CallTimeout)
	case !owner && l.surveyor != nil:
		l.endSurvey()
	}
	if l.surveyor == nil {
		return
	}
	for {
		select {
		case what := <-l.surveyor.told:
			l.heardOf(ctx, what)
		default:
			return
		}
	}
}

func (l *loop) heardOf(ctx context.Context, what surveyed) {
	l.noticeHolds(what.holds)
	if what.call.Err != nil && ctx.Err() != nil {
		return
	}
	l.config.Observer.Called(what.call)
	if err := what.call.Err; err != nil && what.call.Name == "hold_events" {
		if now := l.clock(); l.holdsLoggedAt == 0 || now-l.holdsLoggedAt >= int64(surveyLogEvery) {
			l.holdsLoggedAt = now
			args := []any{"error", err}
			if cannotCall(err) {
				args = append(args, "hint", "migrate the outbox, and call outbox.grant_worker for this role again")
			}
			l.log.Warn("cannot learn what becomes of holds: their events are missing", args...)
		}
		return
	} else if err != nil {
		if now := l.clock(); l.surveyLoggedAt == 0 || now-l.surveyLoggedAt >= int64(surveyLogEvery) {
			l.surveyLoggedAt = now
			args := []any{"call", what.call.Name, "error", err}
			var refused *pgconn.PgError
			if errors.As(err, &refused) && refused.Code == noRight {
				args = append(args, "hint", "an upgrade brings functions that no role has a right to: call outbox.grant_worker for this role again")
			}
			l.log.Warn("cannot survey the outbox: its metrics are missing", args...)
		}
		return
	}
	if what.survey != nil {
		l.config.Observer.Surveyed(what.survey)
		l.noticeSurvey(what.survey)
	}
}

// surveyLogEvery is how often the log is told that surveys fail, and that shards are without an owner.
const surveyLogEvery = 10 * time.Minute

// SQLSTATEs of an outbox that is older than this node, or whose upgrade gave a role no new rights.
const (
	noFunction = "42883" // undefined_function
	noRight    = "42501" // insufficient_privilege
)

// endSurvey ends surveying, and tells the observer that what it knows is no longer kept up.
func (l *loop) endSurvey() {
	if l.surveyor == nil {
		return
	}
	l.surveyor.stop()
	<-l.surveyor.done
	for len(l.surveyor.told) > 0 {
		l.noticeHolds((<-l.surveyor.told).holds)
	}
	l.surveyor = nil
	l.config.Observer.Surveyed(nil)
}
