package node

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fairclaim/fairclaim/budget"
	"github.com/fairclaim/fairclaim/driver"
)

// books is a ledger with what is around it: its queues take so many messages that are
// coming or were handed on.
type books struct {
	*ledger
	sum    budget.Inflight
	stats  counters
	errors strings.Builder
	room   map[*queue]int // messages that a queue takes
}

func newBooks(limits ledgerLimits) *books {
	b := &books{room: map[*queue]int{}}
	b.ledger = newLedger(limits, &b.sum, &b.stats, slog.New(slog.NewTextHandler(&b.errors, nil)),
		func(it *item, coming int) bool { return coming < b.room[it.queue] })
	return b
}

var ids int64 // no two test messages have one id

func (b *books) message(q *queue, namespace string, bytes int64) *item {
	ids++
	return &item{Delivery: driver.Delivery{ID: ids, ClaimToken: 1, Namespace: namespace}, bytes: bytes, queue: q}
}

// wrong says what is wrong with the books, by adding up the places of its messages (INV-13).
func (b *books) wrong() error {
	var want int64
	in, held := map[place]int{}, map[string]int64{}
	coming := map[*queue]int{}
	for _, it := range b.items {
		in[it.place]++
		if it.counted != (it.place == unread || it.place == out) {
			return fmt.Errorf("message %d is in place %d, counted %t", it.ID, it.place, it.counted)
		}
		if it.counted {
			want += it.bytes
			held[it.Namespace] += it.bytes
		}
		if it.place == unread {
			coming[it.queue]++
		}
		if it.place != unread && it.place != out && it.Payload != nil {
			return fmt.Errorf("message %d is in place %d, and its payload is held", it.ID, it.place)
		}
	}
	waiting, parkedOnes := 0, 0
	for _, s := range b.stashes {
		waiting += len(s.items)
	}
	for namespace, a := range b.accounts {
		parkedOnes += len(a.parked)
		if a.bytes != held[namespace] {
			return fmt.Errorf("the account of %s has %d bytes and %d parked, want %d bytes", namespace, a.bytes, len(a.parked), held[namespace])
		}
		delete(held, namespace)
	}
	for namespace, bytes := range held {
		if bytes != 0 {
			return fmt.Errorf("%s has no account, and holds %d bytes", namespace, bytes)
		}
	}
	for q, n := range b.coming {
		if n != coming[q] {
			return fmt.Errorf("%d are coming to a queue, want %d", n, coming[q])
		}
	}
	switch {
	case b.usage() != want:
		return fmt.Errorf("the usage is %d, want %d", b.usage(), want)
	case waiting != in[stashed] || b.stashed != waiting || parkedOnes != in[parked]:
		return fmt.Errorf("%d stashed and %d parked, counted %d; want %d and %d", waiting, parkedOnes, b.stashed, in[stashed], in[parked])
	case len(b.unread) != in[unread]:
		return fmt.Errorf("%d unread, want %d", len(b.unread), in[unread])
	case b.stats.inFlight.Load() != int64(len(b.items)) || b.stats.parked.Load() != int64(in[stashed]+in[parked]):
		return fmt.Errorf("the gauges say %d in flight and %d parked, want %d and %d",
			b.stats.inFlight.Load(), b.stats.parked.Load(), len(b.items), in[stashed]+in[parked])
	case b.errors.Len() > 0:
		return fmt.Errorf("it logs %s", b.errors.String())
	}
	return nil
}

// Where a message goes that was just claimed, by what the node holds then.
func TestLedgerEnter(t *testing.T) {
	limits := ledgerLimits{shareBytes: 10, low: 50, high: 80, maxStash: 1}
	park := func(b *books, q *queue) { // namespace a has one parked, and counts 8
		for range 2 {
			it := b.message(q, "a", 8)
			b.enter(it)
			b.portion(0)
			b.handOn(it)
			if b.stats.parked.Load() == 0 {
				b.park(it)
			}
		}
	}
	for name, test := range map[string]struct {
		before    func(b *books, q *queue)
		room      int
		namespace string
		bytes     int64
		suspect   int32
		want      place
		full      bool // too many are stashed
	}{
		"nothing is in its way":              {room: 1, bytes: 5, want: unread},
		"it may have killed a node":          {room: 1, bytes: 5, suspect: 1, want: suspect},
		"its queue is full":                  {room: 0, bytes: 5, want: stashed},
		"its queue and the stash are full":   {before: func(b *books, q *queue) { b.stash(b.message(q, "b", 1)) }, bytes: 5, want: stashed, full: true},
		"what is coming fills its queue":     {before: func(b *books, q *queue) { b.enter(b.message(q, "b", 1)) }, room: 1, bytes: 5, want: stashed},
		"its namespace has no room left":     {before: park, room: 9, namespace: "a", bytes: 5, want: parked},
		"its namespace has some room left":   {before: park, room: 9, namespace: "a", bytes: 2, want: unread},
		"it has no bytes":                    {before: park, room: 9, namespace: "a", want: unread},
		"another namespace has no room left": {before: park, room: 9, namespace: "b", bytes: 20, want: unread},
		"suspect comes before parked":        {before: park, room: 9, namespace: "a", bytes: 5, suspect: 2, want: suspect},
	} {
		t.Run(name, func(t *testing.T) {
			q := &queue{}
			b := newBooks(limits)
			b.room[q] = max(test.room, 1)
			if test.before != nil {
				test.before(b, q)
			}
			b.room[q] = test.room
			it := b.message(q, test.namespace, test.bytes)
			it.Suspect = test.suspect
			if ok := b.enter(it); it.place != test.want || ok == test.full {
				t.Errorf("it is in place %d, room in the stash is %t; want %d, %t", it.place, ok, test.want, !test.full)
			}
		})
	}
}

// One message always fits into its namespace's share, however large; else it would be parked for
// ever.
func TestLedgerUnparksALargeOne(t *testing.T) {
	q := &queue{}
	b := newBooks(ledgerLimits{shareBytes: 1, low: 2, high: 3})
	b.room[q] = 9
	it, other := b.message(q, "a", 100), b.message(q, "a", 100)
	for _, it := range []*item{it, other} {
		b.enter(it)
		b.portion(0)
		b.handOn(it)
	}
	b.park(it)
	b.park(other)
	b.unpark()
	if it.place != unread || other.place != parked || b.usage() != 100 {
		t.Errorf("they are in places %d and %d, usage %d; want the first unread alone", it.place, other.place, b.usage())
	}
	b.leave(it.Ref())
	b.unpark()
	if other.place != unread {
		t.Errorf("the second is in place %d once the first has left", other.place)
	}
}

// What waits in the stash, and suspects, begin no delivery above the high watermark, unless
// nothing else counts: a payload may be larger than the watermark.
func TestLedgerHighWatermark(t *testing.T) {
	for name, test := range map[string]struct {
		bytes []int64 // of messages that wait
		want  int     // of them that are unread then
	}{
		"they fit":          {[]int64{40, 40}, 2},
		"the second is too": {[]int64{40, 41}, 1},
		"one is too large":  {[]int64{99}, 1},
		"none has bytes":    {[]int64{80, 0, 0}, 3},
	} {
		q := &queue{}
		stash, begin := newBooks(ledgerLimits{high: 80, maxStash: 9}), newBooks(ledgerLimits{high: 80})
		for i, bytes := range test.bytes {
			stash.enter(stash.message(q, "a", bytes))
			it := begin.message(q, fmt.Sprint("tenant", i), bytes)
			it.Suspect = 1
			begin.enter(it)
		}
		stash.room[q], begin.room[q] = 9, 9
		stash.unstash()
		items, _ := begin.pickSuspects()
		if len(stash.unread) != test.want || len(items) != test.want {
			t.Errorf("%s: %d left the stash and %d suspects begin, want %d", name, len(stash.unread), len(items), test.want)
		}
	}
}

// Payloads are read in portions, and what has failed to be read is read alone.
func TestLedgerPortion(t *testing.T) {
	for name, test := range map[string]struct {
		bytes   []int64
		misread int // which of them has failed to be read, from 1; 0: none
		want    []int
	}{
		"nothing":             {nil, 0, nil},
		"all fit":             {[]int64{4, 4, 2}, 0, []int{3}},
		"two portions":        {[]int64{4, 4, 3}, 0, []int{2, 1}},
		"one is larger":       {[]int64{4, 99, 3}, 0, []int{1, 1, 1}},
		"the first misread":   {[]int64{1, 1, 1}, 1, []int{1, 2}},
		"the second misread":  {[]int64{1, 1, 1}, 2, []int{1, 1, 1}},
		"without bytes":       {[]int64{0, 0, 0}, 0, []int{3}},
		"empty behind a full": {[]int64{10, 0, 1}, 0, []int{2, 1}},
	} {
		q := &queue{}
		b := newBooks(ledgerLimits{})
		b.room[q] = 9
		for i, bytes := range test.bytes {
			it := b.message(q, "a", bytes)
			if b.enter(it); i+1 == test.misread {
				it.misread = 1
			}
		}
		var got []int
		for len(b.unread) > 0 {
			got = append(got, len(b.portion(10)))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: portions of %v, want %v", name, got, test.want)
		}
	}
}

// INV-13: whatever happens to messages, in any order: the bytes that count are those of the
// messages that are unread or out, each is taken off once, and at the end nothing is left.
func TestLedgerBooksAreRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := ledgerLimits{
			shareBytes: rapid.Int64Range(1, 20).Draw(t, "share"), low: rapid.Int64Range(1, 40).Draw(t, "low"),
			high: rapid.Int64Range(1, 60).Draw(t, "high"), maxStash: rapid.IntRange(0, 5).Draw(t, "stash"),
		}
		b := newBooks(limits)
		queues := []*queue{{sink: nowhere}, {sink: nowhere}}
		var toSettle []*item // ended while they waited
		pick := func(which ...place) *item {
			var some []*item
			for _, it := range b.items {
				if slices.Contains(which, it.place) && !slices.Contains(toSettle, it) && !slices.Contains(b.unread, it) {
					some = append(some, it)
				}
			}
			if len(some) == 0 {
				return nil
			}
			slices.SortFunc(some, func(a, b *item) int { return int(a.ID - b.ID) })
			return rapid.SampledFrom(some).Draw(t, "which")
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			for _, q := range queues {
				b.room[q] = rapid.IntRange(0, 3).Draw(t, "room")
			}
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				it := b.message(rapid.SampledFrom(queues).Draw(t, "queue"), rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.Int64Range(0, 12).Draw(t, "bytes"))
				it.Suspect = max(0, rapid.Int32Range(-5, 3).Draw(t, "suspect"))
				it.Payload = []byte("x")
				if rapid.Bool().Draw(t, "left out") {
					it.Payload = nil
				}
				b.enter(it)
			case 3, 4:
				for _, it := range b.takeRead() {
					if it.Payload == nil {
						t.Fatalf("message %d has no payload and is taken as read", it.ID)
					}
					b.handOn(it)
				}
				if i := slices.IndexFunc(b.unread, func(it *item) bool { return it.Payload != nil }); i >= 0 {
					t.Fatalf("message %d has its payload and is left to be read", b.unread[i].ID)
				}
				for _, it := range b.portion(rapid.Int64Range(0, 30).Draw(t, "portion")) {
					if rapid.IntRange(0, 4).Draw(t, "misread") == 0 {
						b.unreadAgain(it)
						continue
					}
					it.Payload = []byte("x")
					b.handOn(it)
					if rapid.IntRange(0, 3).Draw(t, "refused") == 0 {
						b.stash(it)
					}
				}
			case 5:
				if it := pick(out); it != nil {
					b.park(it)
				}
			case 6:
				b.unstash()
				b.unpark()
			case 7:
				items, together := b.pickSuspects()
				if len(items) > together {
					t.Fatalf("%d suspects begin, and %d may", len(items), together)
				}
				for _, it := range items {
					if rapid.Bool().Draw(t, "noted") {
						b.admit(it)
					} else {
						b.putBack(it)
					}
				}
			case 8:
				if it := pick(out); it != nil {
					b.leave(it.Ref())
					b.leave(it.Ref()) // no more than once
				}
			default:
				namespace := rapid.SampledFrom(namespaces).Draw(t, "ended")
				for _, it := range b.endWaiting(func(it *item) bool { return it.Namespace == namespace }) {
					if it.Namespace != namespace || it.counted {
						t.Fatalf("message %d of %s was ended, counted %t", it.ID, it.Namespace, it.counted)
					}
					b.leave(it.Ref())
				}
			}
			if err := b.wrong(); err != nil {
				t.Fatal(err)
			}
		}
		toSettle = append(b.endWaiting(func(*item) bool { return true }), b.endUnread()...)
		waited := len(toSettle)
		for _, it := range b.items {
			if it.place == out {
				waited++
			}
		}
		if waited != b.inFlight() {
			t.Fatalf("%d are in flight, and %d came back or are out", b.inFlight(), waited)
		}
		for ref := range b.items {
			b.leave(ref)
		}
		if b.usage() != 0 || b.inFlight() != 0 || len(b.accounts) != 0 || b.stats.parked.Load() != 0 || b.errors.Len() > 0 {
			t.Fatalf("INV-13: at the end %d bytes of %d messages are left, %d accounts; it logs %q",
				b.usage(), b.inFlight(), len(b.accounts), b.errors.String())
		}
	})
}
