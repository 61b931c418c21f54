package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// soakTime is how long each soak kills and restarts; $FAIRCLAIM_SOAK makes it longer.
func soakTime(t testing.TB) time.Duration {
	t.Helper()
	text := cmp.Or(os.Getenv("FAIRCLAIM_SOAK"), "15s")
	if testing.Short() {
		text = "4s"
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("FAIRCLAIM_SOAK: %v", err)
	}
	return d
}

// soakQuotas are the tenants, their quotas, and whether those are strict.
var soakQuotas = map[string]struct {
	quota  int
	strict bool
	rate   int // messages in each batch enqueued
}{
	"plenty": {256, false, 12}, "some": {12, false, 4}, "few": {5, false, 2}, "strict": {6, true, 3}, "single": {1, true, 1},
}

// soak is a run of several node processes that are killed at random.
type soak struct {
	t      testing.TB
	db     *pgtest.DB
	server *pgtest.Server
	dir    string
	shards [][]int32 // of each node
	nodes  []*soakProcess
	killed map[string]bool // node names
	ended  map[int64]bool  // claim tokens whose leases the test has ended
	births int

	over    int // most rows claimed beyond the quota of a tenant that is not strict
	samples int
}

type soakProcess struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Processes are killed at random, and PostgreSQL once. In the end every message is
// accounted for: settled once (INV-2), delivered once unless its claimer was killed or the
// lease had expired, and never twice under one claim (INV-1); quotas held at all times
// (INV-4), budgets end at 0 (INV-13), and attempts say what happened (INV-10).
func TestSoak(t *testing.T) {
	lower, upper := []int32{0, 1, 2, 3, 4, 5, 6, 7}, []int32{8, 9, 10, 11, 12, 13, 14, 15}
	for name, test := range map[string]struct {
		shards [][]int32
		over   int // how far beyond a quota that is not strict the claims may be; -1: any
	}{
		"disjoint":    {[][]int32{lower, upper}, 1},
		"overlapping": {[][]int32{nil, lower, {4, 5, 6, 7, 8, 9}, upper}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, db := ownServer(t)
			s := &soak{
				t: t, db: db, server: server.Server(), dir: t.TempDir(), shards: test.shards,
				nodes: make([]*soakProcess, len(test.shards)), killed: map[string]bool{}, ended: map[int64]bool{},
			}
			for namespace, q := range soakQuotas {
				run(t, db.Pool, "select outbox.set_quota($1, $2, $3)", namespace, q.quota, q.strict)
			}
			run(t, db.Pool, "delete from outbox.former_quota") // they have been in force for long
			configureLease(t, db.Pool, soakLease)
			keys := s.play(soakTime(t))
			s.account(keys)
			if test.over >= 0 && s.over > test.over {
				t.Errorf("INV-4: %d nodes claimed up to %d more than a quota", len(test.shards), s.over)
			}
			t.Logf("%d messages, %d processes, %d killed, %d samples, up to %d over a quota",
				len(keys), s.births, len(s.killed), s.samples, s.over)
		})
	}
}

// play enqueues, kills and restarts for a while, then lets the nodes finish, and returns
// the keys of all messages.
func (s *soak) play(length time.Duration) []string {
	for i := range s.nodes {
		s.start(i)
	}
	s.t.Cleanup(func() {
		for _, p := range s.nodes {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	})
	ctx, stop := context.WithTimeout(s.t.Context(), length)
	defer stop()
	sampling, sampled := context.WithCancel(s.t.Context())
	defer sampled()
	var work sync.WaitGroup
	var keys []string
	work.Go(func() { keys = s.enqueue(ctx) })
	var sampler sync.WaitGroup
	sampler.Go(func() { s.sample(sampling) })
	sampler.Go(func() { s.audit(sampling) })

	s.disturb(ctx, length)
	work.Wait()
	eventually(s.t, "the nodes have settled all that they know of", func() bool {
		s.revive()
		s.expireForgotten()
		n, err := s.ask("select count(*) from outbox.pending")
		return err == nil && n == 0
	})
	for i, p := range s.nodes {
		eventually(s.t, p.name+" takes signals, or has ended", func() bool {
			select {
			case <-p.done:
				return true
			default:
				_, err := os.Stat(filepath.Join(s.dir, p.name+".log"))
				return err == nil
			}
		})
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		<-p.done
		if !p.cmd.ProcessState.Success() {
			s.t.Errorf("node %d, %s, ended with %v", i, p.name, p.cmd.ProcessState)
		}
	}
	sampled()
	sampler.Wait()
	return keys
}

func (s *soak) start(i int) {
	s.births++
	p := &soakProcess{name: fmt.Sprintf("n%d.%d", i, s.births), done: make(chan struct{})}
	config, err := json.Marshal(soakConfig{DSN: s.db.DSN, Node: p.name, Shards: s.shards[i], Dir: s.dir})
	if err != nil {
		s.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), soakEnv+"="+string(config))
	p.cmd.Stderr = s.t.Output()
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its state is looked at by those who ask
		close(p.done)
	}()
	s.nodes[i] = p
}

// kill kills a node as kill -9 does, and ends the leases of its claims.
func (s *soak) kill(i int) {
	p := s.nodes[i]
	_ = p.cmd.Process.Kill()
	<-p.done
	s.killed[p.name] = true
	s.expire(p.name)
	s.start(i)
}

func (s *soak) expire(node string) {
	eventually(s.t, "the leases of a dead node ended", func() bool {
		return s.end("claimed_by = $1", node) == nil
	})
}

// end ends the leases of the claims that the condition names, and notes whose they are: what
// was delivered under them may be delivered again.
func (s *soak) end(condition string, args ...any) error {
	rows, _ := s.db.Pool.Query(s.t.Context(), "update outbox.claimed set lease_until = clock_timestamp() where "+condition+" returning claim_token", args...)
	tokens, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, token := range tokens {
		s.ended[token] = true
	}
	return err
}

// expireForgotten ends the leases of claims that nobody works on and that hold a tenant's
// quota: those that a dying process's session still committed, and those whose answer was cut
// off when PostgreSQL was killed. Living nodes extend what they know of within 15 s;
// where the machine is too busy for that, what they deliver may be delivered again.
func (s *soak) expireForgotten() {
	dead := slices.Collect(maps.Keys(s.killed))
	_ = s.end(`claimed_by = any ($1)
or lease_until = claimed_at + interval '60 s' and claimed_at < clock_timestamp() - interval '20 s'`, dead) // asked again until nothing is left
}

// revive starts those that have ended by themselves: they found no database.
func (s *soak) revive() {
	for i, p := range s.nodes {
		select {
		case <-p.done:
			s.expire(p.name)
			s.start(i)
		default:
		}
	}
}

// disturb kills nodes at random, and PostgreSQL in the middle.
func (s *soak) disturb(ctx context.Context, length time.Duration) {
	middle := time.After(length / 2)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-middle:
			if err := s.server.Kill(s.t.Context()); errors.Is(err, errors.ErrUnsupported) {
				s.t.Skip("this kind of server cannot be killed")
			} else if err != nil {
				s.t.Fatal(err)
			}
			if err := s.server.Restart(s.t.Context()); err != nil {
				s.t.Fatal(err)
			}
		case <-time.After(time.Duration(300+rand.IntN(900)) * time.Millisecond):
			s.revive()
			s.kill(rand.IntN(len(s.nodes)))
		}
	}
}

// enqueue adds messages all the while. A batch whose answer was cut off is sent again: what
// it had enqueued then is a duplicate (INV-3).
func (s *soak) enqueue(ctx context.Context) []string {
	var keys []string
	for batch := 0; ctx.Err() == nil; batch++ {
		var messages []driver.Message
		for namespace, q := range soakQuotas {
			for i := range q.rate {
				key := fmt.Sprintf("%s-%d-%d", namespace, batch, i)
				keys = append(keys, key)
				messages = append(messages, driver.Message{
					Namespace: namespace, TaskQueue: fmt.Sprint("q", i%3), DispatchKey: key, Payload: make([]byte, 100*i),
				})
			}
		}
		for s.t.Context().Err() == nil {
			if _, err := driver.EnqueueBatch(s.t.Context(), s.db.Pool, messages); err == nil {
				break
			}
			<-time.After(20 * time.Millisecond) // PostgreSQL is away
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return keys
}

// sample looks at the claims all the while.
func (s *soak) sample(ctx context.Context) {
	for ctx.Err() == nil {
		rows, _ := s.db.Pool.Query(ctx, "select c.namespace, count(*)::int from outbox.claimed as c group by 1")
		var namespace string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&namespace, &n}, func() error {
			over := n - soakQuotas[namespace].quota
			if soakQuotas[namespace].strict && over > 0 {
				s.t.Errorf("INV-4: %d are claimed of %s, whose strict quota is %d", n, namespace, soakQuotas[namespace].quota)
			}
			s.over = max(s.over, over)
			return nil
		})
		if err == nil {
			s.samples++
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// audit asks outbox.check all the while.
func (s *soak) audit(ctx context.Context) {
	for ctx.Err() == nil {
		found, _ := audit(ctx, s.db.Pool) // PostgreSQL may be away
		for _, v := range found {
			s.t.Errorf("check: %v", v)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *soak) ask(sql string, args ...any) (int, error) {
	rows, err := s.db.Pool.Query(s.t.Context(), sql, args...)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
}

// account settles what is left over and checks what became of every message.
func (s *soak) account(keys []string) {
	t := s.t
	delivered := soakDeliveries(t, s.dir)
	// What is left are claims that nobody knows of.
	rows, _ := s.db.Pool.Query(t.Context(), `select m.dispatch_key, c.claim_token, c.claimed_by
from outbox.claimed as c join outbox.message as m using (id)`)
	var left soakDelivery
	orphans := 0
	_, err := pgx.ForEachRow(rows, []any{&left.Key, &left.Token, &left.node}, func() error {
		orphans++
		known := slices.ContainsFunc(delivered[left.Key], func(d soakDelivery) bool { return d.Token == left.Token })
		if known && !s.killed[left.node] {
			t.Errorf("INV-2: %s was delivered and not settled by %s, which lived on", left.Key, left.node)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if orphans > 100 {
		t.Errorf("%d claims were forgotten, want no more than the claims under way at one kill", orphans)
	}
	if err := s.end("true"); err != nil {
		t.Fatal(err)
	}
	last := newNode(t, s.db, node.SinkFunc(func(context.Context, driver.Delivery) error { return nil }))
	if err := last.Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s.accountMessages(keys, delivered)
	s.accountStats()
	wantSound(t, s.db.Pool)
}

// mayComeAgain tells whether what was delivered under one claim may be delivered under the
// next one: the first claimer was killed, or the test ended its lease, or that had expired
// when the second claim was made. The last is told by the database's clock alone: a claim
// brings its lease's end, which is a lease after the claim.
func (s *soak) mayComeAgain(first, second soakDelivery) bool {
	expired := !second.LeaseUntil.Add(-soakLease).Before(first.LeaseUntil)
	return s.killed[first.node] || s.ended[first.Token] || expired && second.Suspect > first.Suspect
}

func (s *soak) accountMessages(keys []string, delivered map[string][]soakDelivery) {
	t := s.t
	wantOutcomes(t, s.db.Pool, map[string]int{"done": len(keys)})
	rows, _ := s.db.Pool.Query(t.Context(), "select m.dispatch_key, s.attempts, s.settled_by from outbox.settled as s join outbox.message as m using (id)")
	var key, by string
	var attempts int32
	seen := map[string]bool{}
	_, err := pgx.ForEachRow(rows, []any{&key, &attempts, &by}, func() error {
		seen[key] = true
		ds := delivered[key]
		slices.SortFunc(ds, func(a, b soakDelivery) int { return cmp.Compare(a.Token, b.Token) })
		expired := 0
		for i, d := range ds {
			if !s.killed[d.node] && i < len(ds)-1 {
				expired++
			}
			if i > 0 && d.Token == ds[i-1].Token {
				t.Errorf("INV-1: %s was delivered twice under one claim, by %s and %s", key, ds[i-1].node, d.node)
			}
			if i < len(ds)-1 && !s.mayComeAgain(d, ds[i+1]) {
				t.Errorf("INV-1: %s was delivered by %s, which lived on and whose lease ran, and again by %s", key, d.node, ds[i+1].node)
			}
			if i == len(ds)-1 && d.node != by && !s.killed[d.node] && !s.ended[d.Token] {
				t.Errorf("INV-1: %s was delivered by %s, which lived on and whose lease ran, and settled by %s", key, d.node, by)
			}
			if d.Attempt > attempts {
				t.Errorf("INV-10: %s has %d attempts after its delivery as attempt %d", key, attempts, d.Attempt)
			}
		}
		if len(ds) == 0 && by != "n1" {
			t.Errorf("INV-2: %s was settled by %s and never delivered", key, by)
		}
		// One charge for the delivery that counted, one for a failed first attempt, one for
		// PostgreSQL's death, and one for each claimer that was killed or whose lease expired.
		if int(attempts) > 3+len(s.killed)+expired {
			t.Errorf("INV-10: %s has %d attempts", key, attempts)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if !seen[key] {
			t.Errorf("INV-2: %s is lost", key)
		}
	}
}

// accountStats checks the nodes that ended well.
func (s *soak) accountStats() {
	for _, p := range s.nodes {
		text, err := os.ReadFile(filepath.Join(s.dir, p.name+".stats"))
		if err != nil {
			s.t.Fatal(err)
		}
		var stats node.Stats
		if err := json.Unmarshal(text, &stats); err != nil {
			s.t.Fatal(err)
		}
		if stats.UsedBytes != 0 || stats.InFlight != 0 {
			s.t.Errorf("INV-13: %s ended with %+v", p.name, stats)
		}
		if stats.Claimed != stats.Done+stats.Retried+stats.Failed+stats.Released+stats.Lost {
			s.t.Errorf("INV-2: the numbers of %s do not add up: %+v", p.name, stats)
		}
	}
}
