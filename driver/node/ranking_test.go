package node

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// rankWorld is an outbox of namespaces: by name, since when the oldest due message of each waits, in seconds
// before now; 0: none is due.
type rankWorld map[string]int

var rankNow = time.Unix(1e9, 0)

// paused says of every third name that it is.
func paused(name string) bool { return name[len(name)-1]%3 == 0 }

// free is like the age, of the messages whose destination is not held: of some names none is, of some the younger ones are not.
func (w rankWorld) free(name string) int {
	switch name[len(name)-1] % 5 {
	case 0:
		return 0
	case 1:
		return (w[name] + 1) / 2
	}
	return w[name]
}

// behind says of a name whether it comes behind the others, and place by which wait it is in its place.
func (w rankWorld) behind(name string) bool { return paused(name) || w.free(name) == 0 }

func (w rankWorld) place(name string) int {
	if w.behind(name) {
		return w[name]
	}
	return w.free(name)
}

func (w rankWorld) survey(name string) driver.NamespaceSurvey {
	n := driver.NamespaceSurvey{Namespace: name, At: rankNow, Claimed: 1, Paused: paused(name)}
	if age := w[name]; age > 0 {
		n.Due, n.OldestDue = int64(age%7)+1, rankNow.Add(-time.Duration(age)*time.Second)
		if free := w.free(name); free > 0 {
			n.FreeDue = rankNow.Add(-time.Duration(free) * time.Second)
		}
	}
	return n
}

// page is the next size names behind "after".
func (w rankWorld) page(after string, size int) (page []driver.NamespaceSurvey) {
	var names []string
	for name := range w {
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names[:min(size, len(names))] {
		page = append(page, w.survey(name))
	}
	return page
}

// step is one survey as a surveyor makes it, with pages of a size.
func (w rankWorld) step(r *ranking, size int, now time.Time) {
	seen := map[string]bool{}
	if page := w.page(r.after, size); len(page) == 0 {
		r.round(now)
	} else {
		r.pass(page, now)
		for _, n := range page {
			seen[n.Namespace] = true
		}
	}
	var again []driver.NamespaceSurvey
	for _, name := range r.unseen(seen) {
		again = append(again, w.survey(name))
	}
	r.look(again)
}

// first are the names that have waited longest.
func (w rankWorld) first(most int, but ...string) (names []string) {
	for name, age := range w {
		if age > 0 && !slices.Contains(but, name) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if w.behind(a) != w.behind(b) {
			if w.behind(b) {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(w.place(b), w.place(a)), cmp.Compare(a, b))
	})
	return names[:min(most, len(names))]
}

// A lap after the last change, the ranking tells of exactly those that have waited longest, of the named
// ones, and of all others the sums; whatever came and went before, and in bounded memory.
func TestRankingIsThatOfAll(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := rankWorld{}
		named := []string{"n0007", "none"}
		r := newRanking(10, named)
		now := rankNow
		step := func() {
			now = now.Add(15 * time.Second)
			w.step(&r, 30, now)
			if most := 2*r.keep + len(named); len(r.known) > most || len(r.lap.of) > most || len(r.last.of) > most {
				t.Fatalf("seed %d: it knows %d, counts %d and %d", seed, len(r.known), len(r.lap.of), len(r.last.of))
			}
		}
		for range 60 { // a life before
			for range 20 {
				name := fmt.Sprintf("n%04d", random.IntN(400))
				if random.IntN(3) == 0 {
					delete(w, name)
				} else {
					w[name] = random.IntN(1000)
				}
			}
			step()
		}
		for range 3 * (len(w)/30 + 2) {
			step()
		}
		s := r.survey(10)
		var got []string
		for _, n := range s.Namespaces {
			got = append(got, n.Namespace)
		}
		if want := append(w.first(10, named...), named...); !slices.Equal(got, want) {
			t.Errorf("seed %d: it tells of %v, want %v", seed, got, want)
		}
		want := OtherNamespaces{}
		for name := range w {
			if !slices.Contains(got, name) {
				n := w.survey(name)
				want.add(OtherNamespaces{Namespaces: 1, Due: n.Due, Claimed: 1}, 1)
			}
		}
		longest := map[bool]int{}
		for i, name := range w.first(len(w), named...) {
			if i >= 10 {
				want.Waited = max(want.Waited, time.Duration(w.place(name))*time.Second)
			}
		}
		for name, age := range w {
			if paused(name) {
				longest[true] = max(longest[true], age)
			} else {
				longest[false] = max(longest[false], w.free(name))
			}
		}
		if s.Others != want || s.Waiting != int64(len(w)) {
			t.Errorf("seed %d: of the others it says %+v, want %+v; %d wait, want %d", seed, s.Others, want, s.Waiting, len(w))
		}
		if s.Longest != time.Duration(longest[false])*time.Second || s.LongestPaused != time.Duration(longest[true])*time.Second {
			t.Errorf("seed %d: the longest waits are %v and %v, want %v", seed, s.Longest, s.LongestPaused, longest)
		}
		if s.LongestHeld == 0 || s.LongestHeld > 1000*time.Second {
			t.Errorf("seed %d: the longest wait of what is held is %v", seed, s.LongestHeld)
		}
		if s.Lap < 15*time.Second || s.Lap > 15*time.Second*time.Duration(len(w)/30+2) {
			t.Errorf("seed %d: a lap took %v", seed, s.Lap)
		}
	}
}

// Before the first lap has ended, what was seen so far counts; an outbox in which nothing waits is known
// at once.
func TestRankingBegins(t *testing.T) {
	w := rankWorld{"a": 5, "b": 9, "c": 7}
	r := newRanking(1, nil)
	w.step(&r, 2, rankNow)
	if s := r.survey(1); s.Lap != 0 || s.Longest != 9*time.Second || len(s.Namespaces) != 1 || s.Namespaces[0].Namespace != "b" || s.Others.Namespaces != 1 {
		t.Errorf("halfway it says %+v", s)
	}
	r = newRanking(1, []string{"x"})
	rankWorld{}.step(&r, 2, rankNow)
	if s := r.survey(1); s.Lap == 0 || s.Longest != 0 || len(s.Namespaces) != 1 || s.Namespaces[0].Namespace != "x" || s.Others != (OtherNamespaces{}) {
		t.Errorf("of an empty outbox it says %+v", s)
	}
}
