package integration

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestAttempts proves INV-10: a claim charges one attempt, a release gives it back, a
// retry and an expired lease keep the charge, and the last one ends as failed.
func TestAttempts(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.configure('{\"max_attempts\": 4, \"retry_base\": \"1 ms\", \"retry_cap\": \"1 ms\"}')")
	id := put(t, conn, "n", "q", "k")
	attempts := func(want int) {
		t.Helper()
		if got := one[int](t, conn, "select attempt from outbox.messages where id = $1", id); got != want {
			t.Errorf("%d attempts, want %d", got, want)
		}
	}
	step := func(how string) {
		t.Helper()
		run(t, conn, "update outbox.pending set visible_after = '-infinity', ripe = true")
		row := claimOne(t, conn, "n1")
		if how == "rescue" {
			expire(t, conn, "n")
			run(t, conn, "select outbox.rescue()")
		} else if !settle(t, conn, how, row.ID, row.Token) {
			t.Errorf("%s was lost", how)
		}
	}
	attempts(0)
	step("release")
	attempts(0)
	step("retry")
	attempts(1)
	step("rescue")
	attempts(2)
	step("release")
	attempts(2)
	step("retry")
	attempts(3)
	step("rescue")
	attempts(4)
	if got := status(t, conn, id); got != "failed" {
		t.Errorf("after its last attempt the message is %s", got)
	}
	got := list[string](t, conn, "select format('%s on %s: %s', attempt, node, left(error, 13)) from outbox.failure where id = $1 order by attempt", id)
	if want := []string{"1 on n1: no reason giv", "2 on n1: lease expired", "3 on n1: no reason giv", "4 on n1: lease expired"}; !slices.Equal(got, want) {
		t.Errorf("failures are %q, want %q", got, want)
	}
	run(t, conn, "select outbox.redrive('n')")
	attempts(0)
	if got := one[int](t, conn, "select count(*) from outbox.failure"); got != 4 {
		t.Errorf("%d failures after the redrive, want 4", got)
	}
}

// TestAttemptAtMaximum: a message whose attempt is at its type's maximum goes through
// a claim and every settle, among others, without an error.
func TestAttemptAtMaximum(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.configure('{\"max_attempts\": 2147483647}')")
	for how := range settles {
		for _, attempt := range []int{math.MaxInt32 - 1, math.MaxInt32} {
			put(t, conn, "n", "q", fmt.Sprint(how, attempt))
			put(t, conn, "n", "q", fmt.Sprint(how, attempt, " ordinary"))
			run(t, conn, "update outbox.pending set attempt = $1 where id = (select min(id) from outbox.pending)", attempt)
			rows := claim(t, conn, "n1", 10)
			if len(rows) != 2 {
				t.Fatalf("claimed %d rows, want 2", len(rows))
			}
			for _, row := range rows {
				if row.Attempt != math.MaxInt32 && row.Attempt != 1 {
					t.Errorf("claimed attempt %d", row.Attempt)
				}
				if !settle(t, conn, how, row.ID, row.Token) {
					t.Errorf("%s of attempt %d was lost", how, row.Attempt)
				}
				if got := status(t, conn, row.ID); got != settles[how] && got != "failed" {
					t.Errorf("after %s the message is %s, want %s or failed", how, got, settles[how])
				}
			}
			run(t, conn, "delete from outbox.pending")
			run(t, conn, "delete from outbox.claimed")
		}
	}
}

// TestBackoff: base * multiplier ^ (attempt - 1), at most cap, with jitter around it,
// at every attempt number there is.
func TestBackoff(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	const call = "select extract(epoch from outbox.retry_delay($1, $2::interval, $3, $4::interval, $5, $6))::float8"
	near := func(got, want float64) bool { return math.Abs(got-want) <= 1e-6*math.Max(1, want) }
	attempts := []int{math.MinInt32, -1, 0, 1 << 20, math.MaxInt32 - 1, math.MaxInt32}
	for a := 1; a <= 60; a++ {
		attempts = append(attempts, a)
	}
	for _, p := range []struct {
		base       string
		multiplier float64
		cap        string
		capSeconds float64
	}{
		{"1 s", 2, "1 h", 3600}, {"1 s", 1, "1 h", 3600}, {"1 s", 1000, "365 days", 365 * 86400}, {"1 s", 2, "1 s", 1},
	} {
		for _, a := range attempts {
			mean := math.Min(math.Pow(p.multiplier, float64(max(a, 1)-1)), p.capSeconds)
			for _, jitter := range []float64{0, 0.2, 1} {
				low := one[float64](t, conn, call, a, p.base, p.multiplier, p.cap, jitter, 0.0)
				mid := one[float64](t, conn, call, a, p.base, p.multiplier, p.cap, jitter, 0.5)
				high := one[float64](t, conn, call, a, p.base, p.multiplier, p.cap, jitter, math.Nextafter(1, 0))
				if !near(low, mean*(1-jitter)) || !near(mid, mean) || !near(high, mean*(1+jitter)) {
					t.Errorf("attempt %d, %+v, jitter %v: %v, %v, %v around %v", a, p, jitter, low, mid, high, mean)
				}
			}
		}
	}
}

// TestRetryDelay: retry uses the policy's backoff, or the delay that the caller gives,
// of any size, from the call's own instant (INV-15).
func TestRetryDelay(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "n", "q", "k")
	for _, c := range []struct {
		delay, low, high string
		attempt          int
	}{
		{"null", "800 ms", "1200 ms", 0},
		{"null", "3200 ms", "4800 ms", 2},
		{"null", "2880 s", "4320 s", 15},
		{"'10 s'", "10 s", "10 s", 15},
		{"'0'", "0", "0", 1},
		{"'-5 years'", "0", "0", 1},
		{"'178000000 years'", "365242.5 days", "365242.5 days", 1},
	} {
		run(t, conn, "update outbox.pending set visible_after = '-infinity', ripe = true, attempt = $1", c.attempt)
		row := claimOne(t, conn, "n1")
		tx := begin(t, conn)
		run(t, tx, "create temp table before on commit drop as select clock_timestamp() as at")
		run(t, tx, "select outbox.retry(array[$1::bigint], array[$2::bigint], null, array["+c.delay+"::interval])", row.ID, row.Token)
		if !one[bool](t, tx, `select p.visible_after between b.at + $1::text::interval and clock_timestamp() + $2::text::interval
			from outbox.pending as p, before as b`, c.low, c.high) {
			t.Errorf("attempt %d, delay %s: due at %s", c.attempt+1, c.delay, one[string](t, tx, "select visible_after::text from outbox.pending"))
		}
		commit(t, tx)
	}
}

// TestErrorTexts: whatever stands in an error text, the settle works, and the text is
// cut.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	texts := []any{
		nil, "", " ", strings.Repeat("x", 2000), "first" + strings.Repeat("x", 1991) + "last", "first" + strings.Repeat("x", 1992) + "last", "first" + strings.Repeat("x", 1<<20) + "last", strings.Repeat("ä", 1<<20), strings.Repeat("👩‍👩‍👧", 1000),
		"\x01\x02\x1b[31m\r\n\t\x7f", "'; drop table outbox.message; --", `\'"%s%%$1$$`, "אבג\u202eabc", "e\u0301 é",
		string(rune(0x10FFFF)), "\ufeff\ufffd\u2028", "NULL", "{}",
	}
	for _, how := range []string{"retry", "fail"} {
		for i, text := range texts {
			id := put(t, conn, "n", "q", fmt.Sprint(how, i))
			row := claimOne(t, conn, "n1")
			got := list[int64](t, conn, "select outbox."+how+"(array[$1::bigint], array[$2::bigint], array[$3::text])", row.ID, row.Token, text)
			if !slices.Equal(got, []int64{id}) {
				t.Errorf("%s with text %d was lost", how, i)
			}
			stored := one[string](t, conn, "select error from outbox.failure where id = $1", id)
			given, _ := text.(string)
			want := []rune(given)
			if len(want) == 0 {
				want = []rune("no reason given")
			}
			if n := len(want); n > 2000 { // both ends may say why
				want = slices.Concat(want[:999], []rune("…"), want[n-1000:])
			}
			if stored != string(want) {
				t.Errorf("%s: text %d was stored as %.50q", how, i, stored)
			}
			if shown := one[string](t, conn, "select error from outbox.messages where id = $1", id); shown != stored {
				t.Errorf("%s: the view shows %.50q", how, shown)
			}
			run(t, conn, "delete from outbox.pending")
		}
	}
}
