package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// screen draws in place on a terminal, and plain lines elsewhere.
type screen struct {
	out      io.Writer
	terminal bool
	every    time.Duration
	height   int // lines of the last drawing, to go back over
}

func newScreen(out io.Writer, terminal bool) *screen {
	s := &screen{out: out, terminal: terminal, every: time.Second}
	if terminal {
		s.every = 200 * time.Millisecond
	}
	return s
}

const (
	header = "%-12s %9s %9s %10s %11s %11s\n"
	line   = "%-12s %9d %9d %10d %11s %11s\n"
)

func (s *screen) draw(title string, elapsed, length time.Duration, rows []row) {
	quiet := merge("20 quiet", rows[1:])
	if !s.terminal {
		fmt.Fprintf(s.out, "%s, %2.0f s: bursty %d pending, %d delivered; 20 quiet tenants %d sent, %d delivered, wait p50 %s, p99 %s\n",
			title, elapsed.Seconds(), rows[0].pending, rows[0].delivered, quiet.sent, quiet.delivered, show(quiet.p50), show(quiet.p99))
		return
	}
	var b strings.Builder
	if s.height > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", s.height) // up, and clear from there on
	}
	fmt.Fprintf(&b, "phase %s   %.0f of %.0f s\n\n", title, elapsed.Seconds(), length.Seconds())
	fmt.Fprintf(&b, header, "tenant", "pending", "claimed", "delivered", "wait p50", "wait p99")
	for _, r := range append(rows, quiet) {
		fmt.Fprintf(&b, line, r.tenant, r.pending, r.claimed, r.delivered, show(r.p50), show(r.p99))
	}
	s.height = strings.Count(b.String(), "\n")
	io.WriteString(s.out, b.String()) //nolint:errcheck // a demo on a terminal that is gone
	if elapsed+s.every >= length {
		s.height = 0 // the next phase draws below
		fmt.Fprintln(s.out)
	}
}

// summary is the difference, in a short table.
func (s *screen) summary(before, after result) {
	b, a := merge("", before.rows[1:]), merge("", after.rows[1:])
	rate := func(r result) string {
		return fmt.Sprintf("%.0f /s", float64(merge("", r.rows).delivered)/r.length.Seconds())
	}
	fmt.Fprintf(s.out, "\n%-34s %18s %14s\n", "beside a burst of one tenant", "first come", "claim_fair")
	row := func(name, before, after string) { fmt.Fprintf(s.out, "%-34s %18s %14s\n", name, before, after) }
	row("20 quiet tenants: delivered", share(b), share(a))
	row("  wait p50", atLeast(0.5, b), atLeast(0.5, a))
	row("  wait p99", atLeast(0.99, b), atLeast(0.99, a))
	row("bursty tenant: delivered", fmt.Sprint(before.rows[0].delivered), fmt.Sprint(after.rows[0].delivered))
	row("all: delivered", rate(before), rate(after))
}

// outage is what came of the tenant whose endpoint was down.
func (s *screen) outage(r result) {
	o := r.outage
	slices.Sort(o.meanwhile)
	fmt.Fprintf(s.out, "\none tenant's endpoint was down for %.1f s of it\n", o.to.Sub(o.from).Seconds())
	row := func(name, value string) { fmt.Fprintf(s.out, "%-44s %18s\n", name, value) }
	row("deliveries tried meanwhile", fmt.Sprint(o.attempts))
	row("its messages that waited, unwritten", fmt.Sprint(o.waited))
	row("it answers again: the first came after", show(o.first))
	row("  and the last of those that had waited", show(o.last))
	row("20 quiet tenants meanwhile: wait p50", show(percentile(o.meanwhile, 0.5)))
	row("  wait p99", show(percentile(o.meanwhile, 0.99)))
	fmt.Fprintln(s.out, "(a hold lasts up to 1 s here, and up to 10 minutes by default)")
}

func share(r row) string { return fmt.Sprintf("%d of %d", r.delivered, r.sent) }

// atLeast is a percentile of all that were sent: as if those still waiting waited for ever,
// or, where it falls among them, what it is over already.
func atLeast(p float64, r row) string {
	if rank := int(p * float64(len(r.waits))); rank < len(r.done) {
		return show(r.done[rank])
	}
	return "over " + show(percentile(r.waits, p))
}

func show(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}
