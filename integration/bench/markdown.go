package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// byHand begins the part of the report that is not generated; it is kept.
const byHand = "<!-- What follows is written by hand, and kept when the rest is generated anew. -->"

// writeMarkdown writes the report to file, except for what stands there by hand. A run of some experiments
// replaces their sections only; a run of all that are usual keeps the sections of the others.
func (r *report) writeMarkdown(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	generated, kept, _ := strings.Cut(string(old), byHand)
	if kept == "" {
		kept = "\n"
	}
	head, sections := cutSections(generated)
	if r.Only == "" {
		var alone []string
		for _, e := range experiments() {
			if e.alone {
				alone = append(alone, e.title)
			}
		}
		sections = slices.DeleteFunc(sections, func(s section) bool { return !slices.Contains(alone, s.title) })
		var usual []section
		head, usual = cutSections(r.markdown())
		sections = append(usual, sections...)
	} else {
		head = cmp.Or(head, "# Benchmarks\n")
		for _, name := range r.order {
			s := section{r.titles[name], r.single(name)}
			at := slices.IndexFunc(sections, func(old section) bool { return old.title == s.title })
			if at < 0 {
				at = len(sections)
				sections = append(sections, s)
			}
			sections[at] = s
		}
	}
	var b strings.Builder
	b.WriteString(strings.TrimRight(head, "\n") + "\n\n")
	for _, s := range sections {
		b.WriteString("## " + s.title + "\n\n" + strings.Trim(s.text, "\n") + "\n\n")
	}
	return os.WriteFile(file, []byte(b.String()+byHand+kept), 0o644)
}

// section is a part of the report under a heading.
type section struct{ title, text string }

func cutSections(text string) (head string, sections []section) {
	parts := strings.Split("\n"+text, "\n## ")
	for _, part := range parts[1:] {
		title, text, _ := strings.Cut(part, "\n")
		sections = append(sections, section{title, text})
	}
	return strings.TrimPrefix(parts[0], "\n"), sections
}

// command is how the run is made again.
func (r *report) command() string {
	command := "make bench"
	if r.Only != "" {
		command += " ONLY=" + r.Only
	}
	if r.Quick {
		command += " QUICK=1"
	}
	return command
}

// written says what wrote a report, and when.
func (r *report) written() string {
	size := "full"
	if r.Quick {
		size = "small"
	}
	return fmt.Sprintf("Written by `%s` (%s sizes, %s, %s)", r.command(), size, r.Began.UTC().Format("2006-01-02"), r.Took)
}

func (r *report) machine() string {
	m := r.Machine
	text := fmt.Sprintf("| | |\n| --- | --- |\n| machine | %s, %d cores, %s, %s |\n| PostgreSQL | %s |\n| settings | %s |\n| Go | %s |\n",
		m.CPU, m.Cores, m.Memory, m.System, m.PostgreSQL, m.settings(), m.Go)
	if m.LoadBefore != "" {
		text += fmt.Sprintf("| load average before, after | %s; %s |\n", m.LoadBefore, m.LoadAfter)
	}
	return text
}

func goalTable(goals []goal) string {
	var b strings.Builder
	b.WriteString("| what | goal | measured | |\n| --- | --- | --- | --- |\n")
	for _, g := range goals {
		reached := "reached"
		if !g.Reached {
			reached = "**not reached**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.What, g.Want, g.Got, reached)
	}
	return b.String()
}

// figureTable is an experiment's figures, and what there is to say about them.
func (r *report) figureTable(name string) string {
	var b strings.Builder
	figures, _ := r.section(name)
	for i, row := range figureRows(figures) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
		}
	}
	if remarks := r.remarks(name); len(remarks) > 0 {
		b.WriteString("\n- " + strings.Join(remarks, "\n- ") + "\n")
	}
	return b.String()
}

// single is the section of an experiment that was run by itself, in a report of other runs.
func (r *report) single(name string) string {
	text := r.written() + ".\n\n" + r.machine() + "\n"
	if _, goals := r.section(name); len(goals) > 0 {
		text += goalTable(goals) + "\n"
	}
	return text + r.figureTable(name)
}

// markdown is the report of a run of all experiments that are usual.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\n%s. Contenders take turns in one PostgreSQL, so that what\n"+
		"disturbs the machine disturbs all alike: trust the ratios more than the times.\n\n", r.written())
	b.WriteString(r.machine())
	fmt.Fprintf(&b, "\n%s.\n", r.closing())
	b.WriteString("\nA claim is timed as a client sees it: one transaction, its commit included. What was claimed is settled, and as\n" +
		"much enqueued again, between the claims that are timed. The blind claim is `order by visible_after, id limit n for\n" +
		"update skip locked` on the same tables with an index of its own.\n")
	if len(r.Goals) > 0 {
		b.WriteString("\n## Goals\n\n" + goalTable(r.Goals))
	}
	for _, name := range r.order {
		b.WriteString("\n## " + r.titles[name] + "\n\n" + r.figureTable(name))
	}
	return b.String()
}
