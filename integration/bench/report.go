package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one measured thing.
type figure struct {
	Experiment string `json:"experiment"`
	Case       string `json:"case"`
	Contender  string `json:"contender"`
	Unit       string `json:"unit"`
	summary
	Over    over    `json:"over,omitempty"`    // what of it is a lower bound, as it was not over when the watching ended
	Against string  `json:"against,omitempty"` // what Ratio compares with: measured in the same rounds
	Ratio   float64 `json:"ratio,omitempty"`   // of the medians
	Note    string  `json:"note,omitempty"`
}

// over says which values are lower bounds.
type over string

const (
	overP99  over = "p99"
	overBoth over = "median and p99"
)

// against compares f with what was measured in the same rounds.
func (f figure) against(name string, other summary) figure {
	f.Against = name
	if other.Median != 0 {
		f.Ratio = f.Median / other.Median
	}
	return f
}

// goal is a number to reach and whether it is.
type goal struct {
	Experiment string `json:"experiment"`
	What       string `json:"what"`
	Want       string `json:"want"`
	Got        string `json:"got"`
	Reached    bool   `json:"reached"`
}

// report is all that a run found out.
type report struct {
	Began   time.Time `json:"began"`
	Took    string    `json:"took"`
	Quick   bool      `json:"quick"`
	Only    string    `json:"only,omitempty"` // the experiments that were asked for; empty: the usual ones
	Machine machine   `json:"machine"`
	Setups  []setup   `json:"setups"`
	Figures []figure  `json:"figures"`
	Goals   []goal    `json:"goals"`

	titles map[string]string
	order  []string
}

// setup says how a contender of an experiment was set up, or why it is absent.
type setup struct {
	Experiment string `json:"experiment"`
	Contender  string `json:"contender"`
	About      string `json:"about"`
}

// machine is where it ran.
type machine struct {
	CPU        string            `json:"cpu"`
	Cores      int               `json:"cores"`
	Memory     string            `json:"memory"`
	System     string            `json:"system"`
	Go         string            `json:"go"`
	PostgreSQL string            `json:"postgresql"`
	Settings   map[string]string `json:"settings"`
	LoadBefore string            `json:"load_before"` // 1, 5 and 15 minutes; empty where the system does not say
	LoadAfter  string            `json:"load_after"`
}

func (r *report) begin(e experiment) {
	if r.titles == nil {
		r.titles = map[string]string{}
	}
	r.titles[e.name] = e.title
	r.order = append(r.order, e.name)
}

func (r *report) add(figures ...figure) { r.Figures = append(r.Figures, figures...) }

// atMost records a goal for a ratio.
func (r *report) atMost(experiment, what string, got, most float64) {
	r.Goals = append(r.Goals, goal{
		Experiment: experiment, What: what, Want: "at most " + number(most) + " x",
		Got: number(got) + " x", Reached: got > 0 && got <= most,
	})
}

// atLeast likewise.
func (r *report) atLeast(experiment, what string, got, least float64) {
	r.Goals = append(r.Goals, goal{
		Experiment: experiment, What: what, Want: "at least " + number(least) + " x", Got: number(got) + " x", Reached: got >= least,
	})
}

func (r *report) section(experiment string) (figures []figure, goals []goal) {
	for _, f := range r.Figures {
		if f.Experiment == experiment {
			figures = append(figures, f)
		}
	}
	for _, g := range r.Goals {
		if g.Experiment == experiment {
			goals = append(goals, g)
		}
	}
	return figures, goals
}

// print writes what is known before the first experiment.
func (r *report) print(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, %s, %s, %s\n%s: %s\n", m.CPU, m.Cores, m.Memory, m.System, m.Go, m.PostgreSQL, m.settings())
	if m.LoadBefore != "" {
		fmt.Fprintf(w, "load average before: %s\n", m.LoadBefore)
	}
}

func (r *report) printSection(w io.Writer, experiment string) {
	figures, goals := r.section(experiment)
	fmt.Fprintf(w, "\n%s (%s)\n\n", r.titles[experiment], experiment)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range figureRows(figures) {
		fmt.Fprintln(t, strings.TrimRight("  "+strings.Join(row, "\t"), "\t "))
	}
	t.Flush()
	for _, remark := range r.remarks(experiment) {
		fmt.Fprintln(w, "  "+remark)
	}
	for _, g := range goals {
		fmt.Fprintf(w, "  goal %s: %s, want %s, got %s\n", map[bool]string{true: "reached", false: "NOT reached"}[g.Reached], g.What, g.Want, g.Got)
	}
}

func (r *report) closing() string {
	reached := 0
	for _, g := range r.Goals {
		if g.Reached {
			reached++
		}
	}
	s := fmt.Sprintf("%d of %d goals reached; the run took %s", reached, len(r.Goals), r.Took)
	if r.Quick {
		s += "; small sizes: for a look, not to quote"
	}
	if before, _, _ := strings.Cut(r.Machine.LoadBefore, " "); r.Machine.busy(before) {
		s += fmt.Sprintf("; the machine was busy before it began (load average %s on %d cores): times are worse than they need be", before, r.Machine.Cores)
	}
	return s
}

func (r *report) writeJSON(file string, stdout io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err = stdout.Write(text)
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// figureRows is a table of figures, with its header.
func figureRows(figures []figure) [][]string {
	rows := [][]string{{"case", "contender", "median", "p99", "unit", "n", "ratio", "of"}}
	for _, f := range figures {
		row := []string{f.Case, f.Contender, number(f.Median), number(f.P99), f.Unit, strconv.Itoa(f.N), "", f.Against}
		if f.N < 10 { // it would be the largest, which may be the best
			row[3] = ""
		}
		if f.Over == overBoth {
			row[2] = "over " + row[2]
		}
		if f.Over != "" && row[3] != "" {
			row[3] = "over " + row[3]
		}
		if f.Ratio != 0 {
			row[6] = number(f.Ratio) + " x"
		}
		rows = append(rows, row)
	}
	return rows
}

// remarks are what there is to say about an experiment's figures, each once: their notes,
// and how contenders were set up or why they are absent.
func (r *report) remarks(experiment string) []string {
	var all []string
	for _, f := range r.Figures {
		if f.Experiment == experiment && f.Note != "" && !slices.Contains(all, f.Note) {
			all = append(all, f.Note)
		}
	}
	for _, s := range r.Setups {
		if s.Experiment == experiment {
			all = append(all, s.Contender+": "+s.About)
		}
	}
	return all
}

// busy reports whether a load average, as a text, is more than the machine can do.
func (m machine) busy(load string) bool {
	v, err := strconv.ParseFloat(load, 64)
	return err == nil && v > float64(m.Cores)/2
}

// number writes a figure with three digits that matter.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1 || v == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
