package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// Who gets a slot, and who a spare one. Each step is one thing that happens, and what begins by it,
// sorted. Namespaces have names of one letter; h, i and j hang.
//
//	a3      three messages of a are offered; "full" where the queue refuses one
//	pass    the time passes in which a delivery turns slow
//	a ok    the oldest delivery of a succeeds; so do "fails", "is final" and "is given back" what they say
func TestSpareSlots(t *testing.T) {
	tests := map[string]struct {
		limits
		queues int
		steps  []string // "what: what begins"
	}{
		"a namespace with nothing under way has a spare slot for one, as soon as a delivery is slow": {
			limits: limits{slots: 2, spare: 2, shareSlots: 2},
			steps: []string{
				"h3: hh", "a2:", "pass: a", // not the third of h
				"pass:", "a ok: a", "b1: b",
				"c1:",                                     // two slots, two spare ones
				"a ok: c", "b ok:", "c ok:", "h fails: h", // h has the slot that it had
			},
		},
		"each delivery that is slow opens one": {
			limits: limits{slots: 2, spare: 2, shareSlots: 1},
			steps:  []string{"h1: h", "pass:", "a1: a", "b1: b", "c1:", "b ok: c", "pass:", "d1: d", "e1:"},
		},
		"a slow delivery that ends closes one": {
			limits: limits{slots: 1, spare: 2, shareSlots: 1},
			steps:  []string{"h1: h", "pass:", "a1: a", "b1:", "h ok:", "a ok: b"},
		},
		"quick deliveries open none": {
			limits: limits{slots: 2, spare: 2, shareSlots: 1},
			steps:  []string{"a1: a", "b1: b", "c1:", "d1:", "a ok: c", "c ok: d"},
		},
		"none at all": {
			limits: limits{slots: 1, shareSlots: 1},
			steps:  []string{"h1: h", "pass:", "a1:", "h ok: a"},
		},
		"a burst of namespaces at the bound takes turns": {
			limits: limits{slots: 1, spare: 1, shareSlots: 1},
			steps: []string{
				"h9: h", "pass:", "a3: a", "b2:", "c2:", "d2:",
				"a ok: a", "a ok: b", "b ok: c", "c ok: d", "d ok: a", "a ok: b", "e1:", "b ok: c", "c ok: d", "d ok: e",
			},
		},
		"those that hang have the share of one, and no spare slot": {
			limits: limits{slots: 4, spare: 4, shareSlots: 2},
			steps: []string{
				"h9: hh", "i9: ii", "j9:", "pass: j", "pass:",
				"h fails:", "h fails: h", "i fails: j", "i fails: i", "pass:",
				"j fails:", "j fails:", // three hang, in two slots; two are free
				"a1: a", "a ok:", "h fails: h", "pass:", "i fails: j", "h fails: i", // and they take turns
				"pass:", "j ok: hjj", // j hangs no more: it has the share of one, and the others that hang have one
				"pass:", "a9: a", "b9: b", "b ok: b",
				"h fails:", "j ok:", // four are under way, and h and i get no spare slot
			},
		},
		"one that hangs is remembered when it has nothing in the queue": {
			limits: limits{slots: 1, spare: 1, shareSlots: 1},
			steps:  []string{"h1: h", "pass:", "h fails:", "a1: a", "pass:", "h1:", "b1: b", "a ok:", "b ok: h", "h ok:", "a1: a", "pass:", "h1: h"},
		},
		"a quick failure is an answer": {
			limits: limits{slots: 1, spare: 1, shareSlots: 1},
			steps:  []string{"h1: h", "h fails:", "a1: a", "pass:", "h1: h"},
		},
		"so is a failure for good": {
			limits: limits{slots: 1, spare: 1, shareSlots: 1},
			steps:  []string{"h1: h", "pass:", "h is final:", "a1: a", "pass:", "h1: h"},
		},
		"what was not tried says nothing": {
			limits: limits{slots: 1, spare: 1, shareSlots: 1},
			steps: []string{
				"h1: h", "pass:", "h is given back:", "a1: a", "pass:", "h1: h", "pass:", "a ok:", "h fails:", // from here it hangs
				"h1: h", "h is given back:", "a1: a", "pass:", "h1:",
			},
		},
		"so does what was lost": {
			limits: limits{slots: 1, spare: 1, shareSlots: 1},
			steps:  []string{"h1: h", "pass:", "h is lost:", "a1: a", "pass:", "h1: h"},
		},
		"what a slow namespace has waiting takes no room": {
			limits: limits{slots: 2, spare: 2, shareSlots: 2, capacity: 2},
			steps:  []string{"h1: h", "i1: i", "h2:", "i1: full", "pass:", "i5:", "h5:", "a1: a", "a2:", "a1: full", "pass:", "a5:", "b1: b", "c2:", "d1: full"},
		},
		"nor does that of one that hangs": {
			limits: limits{slots: 1, spare: 0, shareSlots: 1, capacity: 1},
			steps:  []string{"h1: h", "pass:", "h fails:", "a1: a", "b1:", "b1: full", "h5:", "c1: full"},
		},
		"once a namespace is well, all that it may have begins": {
			limits: limits{slots: 3, shareSlots: 2},
			steps:  []string{"h4: hh", "i1: i", "pass:", "i fails:", "h fails: h", "i2:", "h ok: hi"},
		},
		"also in another queue": {
			limits: limits{slots: 2, shareSlots: 2, shareBytes: 1},
			queues: 2,
			steps: []string{
				"h1: h", "pass:", "h fails:", "H1: H", "pass:", "H fails:", // it hangs in both
				"h1: h", "i1: i", "pass:", "i fails:", "I1: I", "I ok:", "pass:",
				"H1:", "h ok: H",
			},
		},
		"bytes of those that hang come free for another queue": {
			limits: limits{slots: 2, shareSlots: 2, shareBytes: 2},
			queues: 2,
			steps: []string{
				"h1: h", "i1: i", "J1: J", "pass:", "h fails:", "i fails:", "J fails:",
				"h1: h", "i1: i", "J1:", "h is given back: J",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playSpare(t, test.limits, max(test.queues, 1), test.steps) })
		})
	}
}

func playSpare(t *testing.T, l limits, queues int, steps []string) {
	if l.capacity == 0 {
		l.capacity = 100
	}
	if l.shareBytes == 0 {
		l.shareBytes = 1000
	}
	l.timeout, l.slow = time.Hour, slowAfter
	p := newDispatchPlay(l, queues)
	defer func() {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}()
	for i, step := range steps {
		do, want, _ := strings.Cut(step, ":")
		got := p.spareStep(do)
		if want = strings.TrimSpace(want); got != want {
			t.Fatalf("step %d, %q: began %q, want %q", i, do, got, want)
		}
	}
}

// spareStep does a step, and returns what began by it. A namespace in capitals is that of the same
// name in the second queue.
func (p *dispatchPlay) spareStep(do string) string {
	queue := 0
	if strings.ToUpper(do[:1]) == do[:1] {
		queue = 1
	}
	namespace, what, _ := strings.Cut(do, " ")
	namespace = strings.ToLower(namespace[:1])
	switch {
	case do == "pass":
		time.Sleep(slowAfter)
	case what != "":
		p.answerOldest(namespace, queue, what)
	default:
		for range int(do[1] - '0') {
			if it := p.message(namespace, queue, 1); !offered(p.dispatcher, it.queue, it) {
				return "full"
			}
		}
	}
	var began []string
	for _, it := range p.began() {
		if it.queue == p.all[0] {
			began = append(began, it.Namespace)
		} else {
			began = append(began, strings.ToUpper(it.Namespace))
		}
	}
	slices.Sort(began)
	return strings.Join(began, "")
}

// answerOldest ends the oldest delivery of a namespace in a queue.
func (p *dispatchPlay) answerOldest(namespace string, queue int, what string) {
	failed := errors.New("failed")
	oldest := int64(len(p.items) + 1)
	for id := range p.calls {
		if it := p.items[id]; it.Namespace == namespace && it.queue == p.all[queue] {
			oldest = min(oldest, id)
		}
	}
	if what == "is lost" {
		p.items[oldest].lose()
	}
	p.answer(oldest, map[string]error{
		"ok": nil, "fails": failed, "is final": Permanent(failed), "is given back": Undelivered(failed), "is lost": failed,
	}[what])
}

// What a queue remembers of namespaces that have nothing in it is bounded; the last one it knows.
func TestHungNamespacesAreBounded(t *testing.T) {
	qs := &queues{limits: limits{slots: 1, shareSlots: 1, shareBytes: 1, capacity: 1}, bytes: map[string]int64{}}
	q := qs.add(nil)
	for i := range maxHung + 100 {
		namespace := fmt.Sprint(i)
		if !q.put(claimed(int64(i), namespace)) || q.take() == nil {
			t.Fatalf("message %d does not begin", i)
		}
		tenant := q.tenants[namespace]
		q.setHangs(tenant, true)
		q.free(tenant, driver.Destination{Namespace: namespace}, 0, false)
		if !q.tenant(namespace).hangs {
			t.Fatalf("%s hangs, and the queue does not know", namespace)
		}
	}
	if len(q.hung) != maxHung || len(q.tenants) != 0 {
		t.Errorf("the queue remembers %d namespaces, want %d, and has records of %d", len(q.hung), maxHung, len(q.tenants))
	}
}
