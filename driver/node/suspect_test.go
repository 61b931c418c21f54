package node

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fairclaim/fairclaim/driver"
)

func newSuspect(namespace string, suspect int32) *item {
	return &item{Delivery: driver.Delivery{Namespace: namespace, Suspect: suspect}}
}

func anyReady(*item) bool { return true }

// Suspects that come at once, and how many of them may begin together.
func TestSuspectCompany(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tenants  int     // this many namespaces take turns
		suspects []int32 // of each message, how often it was suspect
		picked   int
		together int
	}{
		"none":                               {1, nil, 0, 0},
		"one is alone at once":               {1, []int32{1}, 1, 1},
		"a few are known to be so few":       {3, []int32{1, 1, 1}, 3, 3},
		"of many, sixteen":                   {20, slices.Repeat([]int32{1}, 20), 16, 16},
		"of one namespace, half of them":     {1, slices.Repeat([]int32{1}, 20), 8, 16},
		"the second time, four":              {20, slices.Repeat([]int32{2}, 20), 4, 4},
		"the second time, two of a tenant":   {1, slices.Repeat([]int32{2}, 20), 2, 4},
		"the third time, one by one":         {20, slices.Repeat([]int32{3}, 20), 1, 1},
		"the hundredth time, one by one":     {20, slices.Repeat([]int32{100}, 20), 1, 1},
		"those that may have most go first":  {1, []int32{3, 1}, 1, 16},
		"company is as small as the one who": {6, []int32{1, 1, 2, 1, 1, 1}, 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s suspects
			for i, suspect := range tc.suspects {
				s.add(newSuspect(fmt.Sprint("tenant", i%tc.tenants), suspect))
			}
			if picked, together := s.pick(anyReady); len(picked) != tc.picked || together != tc.together {
				t.Errorf("picked %d, %d together; want %d and %d", len(picked), together, tc.picked, tc.together)
			}
		})
	}
}

// INV-10: whatever comes and goes, no more suspects are under way than the outbox was told for
// each of them, none with more company than it may have; and all begin at last, also beside
// a namespace that hangs.
func TestSuspectTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s suspects
		told := map[*item]int{}
		waiting, begun := 0, 0
		check := func() {
			for it, together := range told {
				if len(told) > together || together > company(it.Suspect) {
					t.Fatalf("%d are under way with one of suspect %d, of which the outbox was told %d", len(told), it.Suspect, together)
				}
			}
		}
		pick := func() {
			items, together := s.pick(anyReady)
			for _, it := range items {
				told[it] = together
				waiting, begun = waiting-1, begun+1
			}
			check()
		}
		hung := newSuspect("hung", 1)
		s.add(hung)
		waiting++
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				s.add(newSuspect(fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "namespace")), int32(rapid.IntRange(1, 5).Draw(t, "suspect"))))
				waiting++
			case 1:
				pick()
			default:
				for it := range told {
					if it != hung {
						delete(told, it)
						s.leave(it)
						break
					}
				}
			}
			if s.waiting != waiting {
				t.Fatalf("it counts %d waiting, want %d", s.waiting, waiting)
			}
		}
		for range 1000 { // hung ends by its time-out now and then
			if waiting == 0 {
				return
			}
			pick()
			for it := range told {
				delete(told, it)
				s.leave(it)
			}
		}
		t.Fatalf("%d never begin", waiting)
	})
}

// What is taken back does not begin, and nobody's turn is lost by it.
func TestSuspectRemove(t *testing.T) {
	t.Parallel()
	var s suspects
	items := []*item{newSuspect("a", 1), newSuspect("b", 1), newSuspect("a", 2)}
	for _, it := range items {
		s.add(it)
	}
	if got := s.remove(func(it *item) bool { return it.Namespace == "a" }); len(got) != 2 || s.waiting != 1 {
		t.Errorf("removed %d, %d wait", len(got), s.waiting)
	}
	if picked, together := s.pick(anyReady); len(picked) != 1 || picked[0] != items[1] || together != 1 {
		t.Errorf("picked %v, %d together", picked, together)
	}
}
