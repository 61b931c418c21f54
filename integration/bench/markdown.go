package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// byHand begins the part of the report that is not generated; it is kept.
const byHand = "<!-- What follows is written by hand, and kept when the rest is generated anew. -->"

// writeMarkdown writes the report to file, except for what stands there by hand.
func (r *report) writeMarkdown(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, kept, _ := strings.Cut(string(old), byHand)
	if kept == "" {
		kept = "\n"
	}
	return os.WriteFile(file, []byte(r.markdown()+byHand+kept), 0o644)
}

func (r *report) markdown() string {
	var b strings.Builder
	size := "full"
	command := "make bench"
	if r.Quick {
		size, command = "small", "make bench QUICK=1"
	}
	fmt.Fprintf(&b, "# Benchmarks\n\nWritten by `%s` (%s sizes, %s, %s). Contenders take turns in one PostgreSQL, so that what\n"+
		"disturbs the machine disturbs all alike: trust the ratios more than the times.\n\n", command, size, r.Began.UTC().Format("2006-01-02"), r.Took)
	m := r.Machine
	fmt.Fprintf(&b, "| | |\n| --- | --- |\n| machine | %s, %d cores, %s, %s |\n| PostgreSQL | %s |\n| settings | %s |\n| Go | %s |\n",
		m.CPU, m.Cores, m.Memory, m.System, m.PostgreSQL, m.settings(), m.Go)
	if m.LoadBefore != "" {
		fmt.Fprintf(&b, "| load average before, after | %s; %s |\n", m.LoadBefore, m.LoadAfter)
	}
	fmt.Fprintf(&b, "\n%s.\n", r.closing())
	b.WriteString("\nA claim is timed as a client sees it: one transaction, its commit included. What was claimed is settled, and as\n" +
		"much enqueued again, between the claims that are timed. The blind claim is `order by visible_after, id limit n for\n" +
		"update skip locked` on the same tables with an index of its own.\n")

	if len(r.Goals) > 0 {
		b.WriteString("\n## Goals\n\n| what | goal | measured | |\n| --- | --- | --- | --- |\n")
		for _, g := range r.Goals {
			reached := "reached"
			if !g.Reached {
				reached = "**not reached**"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.What, g.Want, g.Got, reached)
		}
	}
	for _, name := range r.order {
		figures, _ := r.section(name)
		fmt.Fprintf(&b, "\n## %s\n\n", r.titles[name])
		for i, row := range figureRows(figures) {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
			}
		}
		if remarks := r.remarks(name); len(remarks) > 0 {
			b.WriteString("\n- " + strings.Join(remarks, "\n- ") + "\n")
		}
	}
	b.WriteString("\n")
	return b.String()
}
