package node

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// ranking finds, among any number of namespaces, those whose oldest due messages have waited
// longest, in bounded memory. A walk comes past all of them, in laps that may take many surveys; some more
// than are asked for are known, and looked at anew in each survey. So a namespace that begins to wait is
// known within a lap, and what is known of it is as old as a survey. Those that are paused come behind all
// others, and those whose destinations are held: they wait for a known reason, and must hide nobody. It belongs to one goroutine.
type ranking struct {
	keep  int // most namespaces that are known beside those named, and again so many that come behind
	named []string

	after string // where the walk goes on; empty: at the beginning
	known map[string]driver.NamespaceSurvey

	began     time.Time // of this lap
	lap, last sums
	took      time.Duration // of the last lap; 0: none has ended
}

// sums are what a lap has come past.
type sums struct {
	all OtherNamespaces
	of  map[string]OtherNamespaces // of those that are known, what of all is theirs
}

func newRanking(most int, named []string) ranking {
	return ranking{keep: 2*most + 10, named: named, known: map[string]driver.NamespaceSurvey{}, lap: sums{of: map[string]OtherNamespaces{}}}
}

func (o *OtherNamespaces) add(p OtherNamespaces, sign int64) {
	o.Namespaces += sign * p.Namespaces
	o.Due += sign * p.Due
	o.Unripe += sign * p.Unripe
	o.Claimed += sign * p.Claimed
	o.Failed += sign * p.Failed
}

// pass takes the next namespaces of the walk, in its order.
func (r *ranking) pass(page []driver.NamespaceSurvey, now time.Time) {
	if r.after == "" {
		r.began = now
	}
	for _, n := range page {
		one := OtherNamespaces{Namespaces: 1, Due: n.Due, Unripe: n.Unripe, Claimed: n.Claimed, Failed: n.Failed}
		r.lap.all.add(one, 1)
		r.lap.of[n.Namespace] = one
	}
	r.after = page[len(page)-1].Namespace
	r.look(page)
}

// round ends a lap: the walk goes on at the beginning.
func (r *ranking) round(now time.Time) {
	if r.after == "" { // nothing is pending
		r.began = now
	}
	r.after = ""
	r.last, r.lap = r.lap, sums{of: map[string]OtherNamespaces{}}
	r.took = max(now.Sub(r.began), time.Nanosecond)
}

// look takes what was found of namespaces, and forgets those that have waited least.
func (r *ranking) look(found []driver.NamespaceSurvey) {
	for _, n := range found {
		if n.Due > 0 || slices.Contains(r.named, n.Namespace) {
			r.known[n.Namespace] = n
		} else {
			delete(r.known, n.Namespace)
		}
	}
	kept := map[bool]int{}
	for _, n := range r.first() {
		if kept[behind(&n)]++; kept[behind(&n)] > r.keep {
			delete(r.known, n.Namespace)
		}
	}
	for name := range r.lap.of {
		if _, ok := r.known[name]; !ok {
			delete(r.lap.of, name)
		}
	}
}

// behind says of a namespace that all of it that is due waits because it is paused, or its destinations are held.
func behind(n *driver.NamespaceSurvey) bool { return n.Paused || n.Due > 0 && n.FreeDue.IsZero() }

// since is when what puts a namespace into its place came due: a message whose destination is held does not.
func since(n *driver.NamespaceSurvey) time.Time {
	if behind(n) {
		return n.OldestDue
	}
	return n.FreeDue
}

// first are those known that are not named, the longest wait first, and then those that come behind.
func (r *ranking) first() []driver.NamespaceSurvey {
	var all []driver.NamespaceSurvey
	for name, n := range r.known {
		if !slices.Contains(r.named, name) {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b driver.NamespaceSurvey) int {
		if x, y := behind(&a), behind(&b); x != y && y {
			return -1
		} else if x != y {
			return 1
		}
		return cmp.Or(since(&a).Compare(since(&b)), cmp.Compare(a.Namespace, b.Namespace))
	})
	return all
}

// unseen are the namespaces to look at anew, beside those that the walk has just come past.
func (r *ranking) unseen(seen map[string]bool) (names []string) {
	for name := range r.known {
		if !seen[name] && !slices.Contains(r.named, name) {
			names = append(names, name)
		}
	}
	for _, name := range r.named {
		if !seen[name] {
			names = append(names, name)
		}
	}
	return names
}

// survey is what is known, with the first so many.
func (r *ranking) survey(most int) Survey {
	s := Survey{Lap: r.took, Others: r.last.all}
	of := r.last.of
	if r.took == 0 {
		s.Others, of = r.lap.all, r.lap.of
	}
	s.Waiting = s.Others.Namespaces
	for i, n := range r.first() {
		s.wait(&n)
		if i < most {
			s.Namespaces = append(s.Namespaces, n)
		} else {
			waited := n.WaitedFree()
			if behind(&n) {
				waited = n.Waited()
			}
			s.Others.Waited = max(s.Others.Waited, waited)
		}
	}
	for _, name := range r.named {
		if n, ok := r.known[name]; ok {
			s.wait(&n)
			s.Namespaces = append(s.Namespaces, n)
		}
	}
	for i := range s.Namespaces {
		s.Others.add(of[s.Namespaces[i].Namespace], -1)
	}
	return s
}

// wait takes how long a namespace has waited.
func (s *Survey) wait(n *driver.NamespaceSurvey) {
	if n.Paused {
		s.LongestPaused = max(s.LongestPaused, n.Waited())
	} else {
		s.Longest, s.LongestHeld = max(s.Longest, n.WaitedFree()), max(s.LongestHeld, n.WaitedHeld())
	}
}
