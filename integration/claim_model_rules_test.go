package integration

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// modelOutbox is what the outbox promises, written down as plainly as it goes:
// maps, slices and loops over everything. It says whom a claim visits and judges
// what it took; where the guarantees leave the choice to the claim, so does the
// model. Instants are seconds since 1970. It has one user at a time.
type modelOutbox struct {
	shards       int
	defaultQuota int
	maxVisits    int
	maxRoutes    int
	maxAttempts  int
	countCap     int
	ring         map[string]int32 // where a name stands on the ring that claims walk
	messages     map[int64]*modelMessage
	quotas       map[string]modelQuota
	pauses       map[modelLane]bool // "" stands for any
	modelHolds
}

// modelMessage is one message, comparable with what the tables hold of it.
type modelMessage struct {
	ID    int64
	State string
	modelLane
	Key     string
	Shard   int
	Bytes   int
	Visible float64 // 0 unless pending or claimed
	Ripe    bool    // claims meet it; a message that waits for its time becomes ripe with a claim of its shard
	Attempt int
	Suspect int   // nodes in a row that died while they may have had it under way; 0 when settled
	Begun   int   // how many began with it; 0 unless claimed
	Token   int64 // 0 unless claimed, like the next two
	Node    string
	Lease   float64
}

// modelLane is a namespace and one of its routes.
type modelLane struct{ Namespace, Queue string }

type modelQuota struct {
	quota  int // -1: the default
	strict bool
}

// modelClaim is one call of claim_fair, and what the tables said just before it
// about where it starts.
type modelClaim struct {
	node     string
	shards   []int
	batch    int
	maxBytes int // 0: none
	now      float64
	lease    float64
	cursor   string            // the walk starts behind this namespace
	routes   map[string]string // by namespace: its routes start behind this one
}

// modelClaimed is a row that a claim returned.
type modelClaimed struct {
	ID, Token int64
	modelLane
	Key     string
	Shard   int
	Attempt int
	Bytes   int
	Lease   float64
	Pass    int
	Suspect int
	Size    int // payload_bytes
}

// modelVisit is a namespace that a claim looks at, and what it finds.
type modelVisit struct {
	namespace string
	verdict   string
	claimed   int
	ceiling   int
	headroom  int
	due       map[string]int // by route, of those in the window that are not paused, as far as their gates let through
	maybe     map[string]int // likewise, of those whose gates the claim may not come to
}

func (v modelVisit) most() int {
	sum := 0
	for _, n := range v.due {
		sum += n
	}
	return min(v.headroom, sum)
}

// atMost is most, and what lies behind gates that the claim may not come to.
func (v modelVisit) atMost() int {
	sum := 0
	for _, n := range v.maybe {
		sum += n
	}
	return min(v.headroom, v.most()+sum)
}

func (o *modelOutbox) all(keep func(*modelMessage) bool) []*modelMessage {
	var kept []*modelMessage
	for _, m := range o.messages {
		if keep(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

// due counts a lane's due messages on shards.
func (o *modelOutbox) due(lane modelLane, shards []int, now float64) int {
	return len(o.all(func(m *modelMessage) bool {
		return m.State == "pending" && m.Ripe && m.modelLane == lane && m.Visible <= now && slices.Contains(shards, m.Shard)
	}))
}

// claimed counts what is claimed of a namespace on shards.
func (o *modelOutbox) claimed(namespace string, shards []int) int {
	return len(o.all(func(m *modelMessage) bool {
		return m.State == "claimed" && m.Namespace == namespace && slices.Contains(shards, m.Shard)
	}))
}

func (o *modelOutbox) everyShard() []int {
	all := make([]int, o.shards)
	for s := range all {
		all[s] = s
	}
	return all
}

func (o *modelOutbox) paused(lane modelLane) bool {
	return o.pauses[modelLane{}] || o.pauses[modelLane{Namespace: lane.Namespace}] ||
		o.pauses[modelLane{Queue: lane.Queue}] || o.pauses[lane]
}

func (o *modelOutbox) quota(namespace string) modelQuota {
	q, ok := o.quotas[namespace]
	if !ok || q.quota < 0 {
		q.quota = o.defaultQuota
	}
	return q
}

// ripen is the start of a claim: what has come due on its shards becomes ripe.
func (o *modelOutbox) ripen(c modelClaim) {
	for _, m := range o.unripe(c) {
		m.Ripe = true
	}
}

// unripe are the messages that a claim would make ripe.
func (o *modelOutbox) unripe(c modelClaim) []*modelMessage {
	return o.all(func(m *modelMessage) bool {
		return m.State == "pending" && !m.Ripe && m.Visible <= c.now && slices.Contains(c.shards, m.Shard)
	})
}

// namespaces are those with ripe messages, in the order of a walk from behind
// cursor once around.
func (o *modelOutbox) namespaces(cursor string) []string {
	names := map[string]bool{}
	for _, m := range o.messages {
		if m.State == "pending" && m.Ripe {
			names[m.Namespace] = true
		}
	}
	return o.around(names, cursor)
}

// window is the routes of a namespace that a claim may look at, in its order.
func (o *modelOutbox) window(namespace, cursor string) []string {
	routes := map[string]bool{}
	for _, m := range o.messages {
		if m.State == "pending" && m.Ripe && m.Namespace == namespace {
			routes[m.Queue] = true
		}
	}
	all := o.around(routes, cursor)
	return all[:min(len(all), o.maxRoutes)]
}

// around sorts names by the ring, from behind cursor on; modelStart is the beginning.
func (o *modelOutbox) around(names map[string]bool, cursor string) []string {
	order := func(a, b string) int { return cmp.Or(cmp.Compare(o.ring[a], o.ring[b]), cmp.Compare(a, b)) }
	sorted := slices.SortedFunc(maps.Keys(names), order)
	first := slices.IndexFunc(sorted, func(s string) bool { return order(s, cursor) > 0 })
	if first < 0 || cursor == modelStart {
		return sorted
	}
	return slices.Concat(sorted[first:], sorted[:first])
}

// hasLarge reports whether a namespace has a due message that ends the claim alone: with a
// payload of max_bytes or more. Such a message comes last, unless it is the first.
func (o *modelOutbox) hasLarge(c modelClaim, namespace string) bool {
	return len(o.all(func(m *modelMessage) bool {
		return m.State == "pending" && m.Namespace == namespace && m.Visible <= c.now && slices.Contains(c.shards, m.Shard) && c.isLarge(m.Bytes)
	})) > 0
}

// modelStart is the cursor of a namespace whose routes no claim has served yet.
const modelStart = "\x00"

func (c modelClaim) isLarge(bytes int) bool { return c.maxBytes > 0 && bytes >= c.maxBytes }

// visit looks at one namespace. reach is for how many of its due routes the claim asks for their gates; of what the
// route of all lets through, left is still there, by route.
func (o *modelOutbox) visit(c modelClaim, namespace string, reach int, left map[string]int) modelVisit {
	q := o.quota(namespace)
	v := modelVisit{namespace: namespace, due: map[string]int{}, maybe: map[string]int{}}
	v.ceiling = (q.quota*len(c.shards) + o.shards - 1) / o.shards
	v.claimed = o.claimed(namespace, c.shards)
	v.headroom = v.ceiling - v.claimed
	if all := o.claimed(namespace, o.everyShard()); q.strict && q.quota-all <= v.headroom {
		v.claimed, v.ceiling, v.headroom = all, q.quota, q.quota-all
	}
	v.headroom = max(v.headroom, 0)
	switch {
	case o.pauses[modelLane{}] || o.pauses[modelLane{Namespace: namespace}]:
		v.verdict = "paused"
		return v
	case v.headroom == 0:
		v.verdict = "ceiling"
		return v
	}
	cursor, ok := c.routes[namespace]
	if !ok {
		cursor = modelStart
	}
	for _, queue := range o.window(namespace, cursor) {
		lane := modelLane{namespace, queue}
		own, common := o.gates(lane, c.now)
		n := min(o.due(lane, c.shards, c.now), own, common)
		if n == 0 || o.paused(lane) {
			continue
		}
		reach--
		switch {
		case own == modelOpen && common == modelOpen:
			v.due[queue] = n
		case reach < 0:
			v.maybe[queue] = n
		default:
			if n = min(n, o.pass(queue, own, common, left)); n > 0 {
				v.due[queue] = n
			}
		}
	}
	v.verdict = "eligible"
	if len(v.due) == 0 {
		v.verdict = "idle"
	}
	return v
}

// visits are the namespaces that the claim looks at, in the walk's order.
func (o *modelOutbox) visits(c modelClaim) []modelVisit {
	var visits []modelVisit
	eligible := 0
	names := o.namespaces(c.cursor)
	reach := o.reach(c, len(names))
	left := map[string]int{}
	for _, namespace := range names {
		if len(visits) == o.maxVisits || eligible == c.batch {
			break
		}
		v := o.visit(c, namespace, reach, left)
		if v.verdict == "eligible" {
			eligible++
		}
		visits = append(visits, v)
	}
	return visits
}

// judge says what is wrong with the rows that a claim returned.
func (o *modelOutbox) judge(c modelClaim, rows []modelClaimed) error {
	visits := map[string]modelVisit{}
	large := map[string]bool{}
	active := 0
	for _, v := range o.visits(c) {
		visits[v.namespace] = v
		large[v.namespace] = o.hasLarge(c, v.namespace)
		if v.verdict == "eligible" {
			active++
		}
	}
	return errors.Join(
		o.judgeRows(c, rows),
		o.judgeGates(c, rows),
		o.judgeOrder(c, active, large, rows),
		judgeShares(c, visits, large, rows),
		o.judgeBytes(c, visits, rows),
		judgeRoutes(visits, large, rows),
		o.judgeLanes(c, rows),
	)
}

// judgeRows: what is claimed was pending, due, on the claim's shards and not held.
func (o *modelOutbox) judgeRows(c modelClaim, rows []modelClaimed) error {
	seen := map[int64]bool{}
	for i, r := range rows {
		m := o.messages[r.ID]
		switch {
		case m == nil:
			return fmt.Errorf("INV-2: row %d: message %d does not exist", i, r.ID)
		case m.State != "pending" || seen[r.ID]:
			return fmt.Errorf("INV-1: row %d: message %d is %s, claimed in this call: %t", i, r.ID, m.State, seen[r.ID])
		case m.Visible > c.now:
			return fmt.Errorf("row %d: message %d is not due", i, r.ID)
		case !slices.Contains(c.shards, m.Shard):
			return fmt.Errorf("row %d: message %d is on shard %d, not one of %v", i, r.ID, m.Shard, c.shards)
		case o.paused(m.modelLane):
			return fmt.Errorf("row %d: message %d: %v is paused", i, r.ID, m.modelLane)
		case r.Attempt != m.Attempt+1:
			return fmt.Errorf("INV-10: row %d: attempt %d after %d", i, r.Attempt, m.Attempt)
		case r.Lease < c.now+c.lease || r.Lease != rows[0].Lease:
			return fmt.Errorf("row %d: lease until %f, claimed at %f or later", i, r.Lease, c.now)
		case r.Token != rows[0].Token:
			return fmt.Errorf("INV-9: row %d: token %d in a claim of token %d", i, r.Token, rows[0].Token)
		case r.modelLane != m.modelLane || r.Key != m.Key || r.Shard != m.Shard || r.Bytes != m.Bytes ||
			r.Size != m.Bytes || r.Suspect != m.Suspect:
			return fmt.Errorf("row %d: returned %+v of %+v", i, r, *m)
		}
		seen[r.ID] = true
	}
	return nil
}

// judgeOrder: each namespace's first row comes before anybody's second, and so on;
// the rows up to the slice are pass 1. A namespace with a large message, which comes last, is
// left out: how many of its rows that message stands before cannot be told from here.
func (o *modelOutbox) judgeOrder(c modelClaim, active int, large map[string]bool, rows []modelClaimed) error {
	got := map[string]int{}
	last := 0
	for i, r := range rows {
		got[r.Namespace]++
		rank := got[r.Namespace]
		if c.isLarge(r.Bytes) && i != len(rows)-1 {
			return fmt.Errorf("INV-5: row %d of %d has %d bytes, which end the claim", i, len(rows), r.Bytes)
		}
		if large[r.Namespace] {
			continue
		}
		if rank < last {
			return fmt.Errorf("INV-5: row %d is the %d. of %q, after a %d. of another", i, rank, r.Namespace, last)
		}
		last = rank
		pass := 2
		if slice := (c.batch + max(active, 1) - 1) / max(active, 1); rank <= slice {
			pass = 1
		}
		if o.isHeld(r.modelLane) {
			pass = 0 // the probe
		}
		if r.Pass != pass {
			return fmt.Errorf("INV-5: row %d: pass %d, want %d: it is the %d. of %q, %d are active", i, r.Pass, pass, rank, r.Namespace, active)
		}
	}
	return nil
}

// judgeShares: nobody gets above its headroom, and nobody has two more than another
// that could have had more.
func judgeShares(c modelClaim, visits map[string]modelVisit, large map[string]bool, rows []modelClaimed) error {
	got := map[string]int{}
	for _, r := range rows {
		got[r.Namespace]++
	}
	for name, n := range got {
		if v := visits[name]; v.verdict != "eligible" || n > v.headroom {
			return fmt.Errorf("INV-4: %d rows of %q, %q with a headroom of %d", n, name, v.verdict, v.headroom)
		}
	}
	for _, v := range visits {
		if v.verdict != "eligible" || large[v.namespace] {
			continue
		}
		for name, n := range got {
			if n > got[v.namespace]+1 && got[v.namespace] < v.most() {
				return fmt.Errorf("INV-6: %d rows of %q, only %d of %q which could have had %d", n, name, got[v.namespace], v.namespace, v.most())
			}
		}
	}
	if len(rows) > c.batch {
		return fmt.Errorf("%d rows in a batch of %d", len(rows), c.batch)
	}
	return nil
}

// judgeBytes: the claim ends with the batch, with the row that reaches max_bytes, or
// with nothing left that it could have taken.
func (o *modelOutbox) judgeBytes(c modelClaim, visits map[string]modelVisit, rows []modelClaimed) error {
	most, atMost := 0, 0
	for _, v := range visits {
		if v.verdict == "eligible" {
			most += v.most()
			atMost += v.atMost()
		}
	}
	sum := 0
	for i, r := range rows {
		if c.maxBytes > 0 && sum >= c.maxBytes {
			return fmt.Errorf("max_bytes: row %d of %d comes after %d bytes of %d", i, len(rows), sum, c.maxBytes)
		}
		sum += r.Bytes
	}
	cut := c.maxBytes > 0 && sum >= c.maxBytes
	if !cut && (len(rows) < min(c.batch, most) || len(rows) > min(c.batch, atMost)) {
		return fmt.Errorf("INV-6: %d rows, there were %d to %d to take for a batch of %d", len(rows), most, atMost, c.batch)
	}
	return nil
}

// judgeRoutes: within a namespace, no route has two more than another that could have
// had more, and each round over the routes is complete before the next.
func judgeRoutes(visits map[string]modelVisit, large map[string]bool, rows []modelClaimed) error {
	got := map[modelLane]int{}
	last := map[string]int{}
	for i, r := range rows {
		if large[r.Namespace] {
			continue
		}
		got[r.modelLane]++
		if got[r.modelLane] < last[r.Namespace] {
			return fmt.Errorf("INV-7: row %d is the %d. of %v, after a %d. of another route", i, got[r.modelLane], r.modelLane, last[r.Namespace])
		}
		last[r.Namespace] = got[r.modelLane]
	}
	for lane, n := range got {
		for queue, due := range visits[lane.Namespace].due {
			if other := got[modelLane{lane.Namespace, queue}]; n > other+1 && other < due {
				return fmt.Errorf("INV-7: %d rows of %v, only %d of %d of route %q", n, lane, other, due, queue)
			}
		}
	}
	return nil
}

// judgeLanes: on each shard a route's rows are its oldest, in that order, large ones aside.
func (o *modelOutbox) judgeLanes(c modelClaim, rows []modelClaimed) error {
	type shard struct {
		modelLane
		shard int
	}
	got := map[shard][]int64{}
	for _, r := range rows {
		at := shard{r.modelLane, r.Shard}
		if !c.isLarge(r.Bytes) {
			got[at] = append(got[at], r.ID)
		}
	}
	for at, ids := range got {
		lane := o.all(func(m *modelMessage) bool {
			return m.State == "pending" && m.modelLane == at.modelLane && m.Shard == at.shard && !c.isLarge(m.Bytes)
		})
		slices.SortFunc(lane, func(a, b *modelMessage) int {
			return cmp.Or(cmp.Compare(a.Visible, b.Visible), cmp.Compare(a.ID, b.ID))
		})
		for i, id := range ids {
			if lane[i].ID != id {
				return fmt.Errorf("%v: message %d claimed as number %d, where %d is older", at, id, i+1, lane[i].ID)
			}
		}
	}
	return nil
}
