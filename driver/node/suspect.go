package node

import (
	"cmp"
	"slices"
)

// suspects are claimed messages of which one may have killed a node before: the leases of all
// that was out together had expired. They wait, their payloads unread, and are
// delivered in ever smaller company, so that one that kills takes few others along, and is
// soon known (INV-10). Before they begin, the outbox is told so, and how many at most
// will be under way together.
//
// They take turns by namespace: one whose deliveries hang keeps half of the company at most.
type suspects struct {
	ring    []*suspectLine // of the namespaces that have some waiting
	next    int            // whose turn it is, in ring
	begun   map[*item]int  // under way, and how many at most may be while it is
	waiting int
}

// suspectLine is what waits of a namespace, those that may have most company first.
type suspectLine struct {
	namespace string
	items     []*item
}

// company is how many suspects may be under way together with one that was suspect so often.
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

// leave takes out one that has left the book.
func (s *suspects) leave(it *item) { delete(s.begun, it) }

// take picks the next suspect that may begin now, where there is one: the company that is
// under way must be small enough for each of them, and its namespace have at most half of
// it. One whose turn has come and that must wait for the company to get smaller keeps
// its turn, so that none waits for ever.
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
		if len(s.begun) >= min(company(it.Suspect), s.most()) {
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

// most is how many may be under way beside what is.
func (s *suspects) most() int {
	most := company(1)
	for _, together := range s.begun {
		most = min(most, together)
	}
	return most
}

// pick takes all that may begin now, and counts them as under way, so many at most together.
// Where none waits any more, no other joins them before they have ended: so one that is left
// alone is known to be alone.
func (s *suspects) pick(ready func(*item) bool) (picked []*item, together int) {
	if s.begun == nil {
		s.begun = map[*item]int{}
	}
	for it := s.take(ready); it != nil; it = s.take(ready) {
		s.begun[it] = company(it.Suspect)
		picked = append(picked, it)
	}
	together = s.most()
	if s.waiting == 0 {
		together = len(s.begun)
	}
	for _, it := range picked {
		s.begun[it] = together
	}
	return picked, together
}

// remove takes out those that wait and which says.
func (s *suspects) remove(which func(*item) bool) (removed []*item) {
	for _, line := range s.ring {
		line.items = slices.DeleteFunc(line.items, func(it *item) bool {
			if which(it) {
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
