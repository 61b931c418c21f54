package node

import (
	"cmp"
	"slices"
)

// suspects are claimed messages of which one may have killed a node before: they were delivered
// at the same time, and the leases of all of them have expired. They wait, their payloads unread, and are
// delivered in ever smaller company. So a message that kills its node takes few others along, and is
// soon known (INV-10). Before suspects begin, the outbox is told that they do, and how many at
// most will be under way together.
//
// Namespaces take turns: one whose deliveries hang keeps half of the company at most.
type suspects struct {
	ring    []*suspectLine // of the namespaces that have some waiting
	next    int            // whose turn it is, in ring
	begun   map[*item]int  // those under way, each with how many may be under way while it is
	waiting int
}

// suspectLine is what waits of a namespace, those that may have most company first.
type suspectLine struct {
	namespace string
	items     []*item
}

// company is with how many others at most, itself counted, a message may be delivered that has
// been a suspect this many times.
func company(suspect int32) int {
	switch suspect {
	case 1:
		return 16
	case 2:
		return 4
	default:
		return 1
	}
}

func (s *suspects) add(it *item) {
	i := slices.IndexFunc(s.ring, func(l *suspectLine) bool { return l.namespace == it.Namespace })
	if i < 0 {
		i = len(s.ring)
		s.ring = append(s.ring, &suspectLine{namespace: it.Namespace})
	}
	line := s.ring[i]
	at, _ := slices.BinarySearchFunc(line.items, it.Suspect, func(other *item, suspect int32) int {
		return cmp.Or(cmp.Compare(other.Suspect, suspect), -1) // behind those that are the same
	})
	line.items = slices.Insert(line.items, at, it)
	s.waiting++
}

// leave takes out a message that is under way no more.
func (s *suspects) leave(it *item) { delete(s.begun, it) }

// take picks the next suspect that may begin now, or nil: the company that is under way must be
// small enough for each of its members, and no namespace has more than half of it. A suspect whose turn
// has come, and that must wait for the company to get smaller, keeps its turn, so that none
// waits for ever.
func (s *suspects) take(ready func(*item) bool) *item {
	for range s.ring {
		if s.next >= len(s.ring) {
			s.next = 0
		}
		line := s.ring[s.next]
		it := line.items[0]
		if s.beside(it.Namespace) >= (company(it.Suspect)+1)/2 || !ready(it) {
			s.next++
			continue
		}
		if len(s.begun) >= min(company(it.Suspect), s.maxTogether()) {
			return nil
		}
		line.items = line.items[1:]
		s.waiting--
		if len(line.items) == 0 {
			s.ring = slices.Delete(s.ring, s.next, s.next+1)
		} else {
			s.next++
		}
		return it
	}
	return nil
}

// beside counts what a namespace has under way.
func (s *suspects) beside(namespace string) (n int) {
	for it := range s.begun {
		if it.Namespace == namespace {
			n++
		}
	}
	return n
}

// maxTogether is how many may be under way, by what those under way allow.
func (s *suspects) maxTogether() int {
	limit := company(1)
	for _, together := range s.begun {
		limit = min(limit, together)
	}
	return limit
}

// pick takes all that may begin now, counts them as under way, and returns how many at most will
// be under way together. Where none waits any more, no other joins them before they have ended: so
// a suspect that is the only one is known to be alone.
func (s *suspects) pick(ready func(*item) bool) (picked []*item, together int) {
	if s.begun == nil {
		s.begun = map[*item]int{}
	}
	for it := s.take(ready); it != nil; it = s.take(ready) {
		s.begun[it] = company(it.Suspect)
		picked = append(picked, it)
	}
	together = s.maxTogether()
	if s.waiting == 0 {
		together = len(s.begun)
	}
	for _, it := range picked {
		s.begun[it] = together
	}
	return picked, together
}

// remove takes out the suspects that wait and match.
func (s *suspects) remove(match func(*item) bool) (removed []*item) {
	for _, line := range s.ring {
		line.items = slices.DeleteFunc(line.items, func(it *item) bool {
			if match(it) {
				removed = append(removed, it)
				return true
			}
			return false
		})
	}
	s.ring = slices.DeleteFunc(s.ring, func(l *suspectLine) bool { return len(l.items) == 0 })
	s.waiting -= len(removed)
	return removed
}
