package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/text"
)

// jsonFlag is embedded by commands that can print JSON.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
}

// tableFlags are embedded by commands that print tables of names and texts.
type tableFlags struct {
	jsonFlag
	Wide bool `help:"Print long names and texts whole, in place of cutting them in the middle. JSON has them whole anyway."`
}

// printJSON prints v as one line.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return printError(enc.Encode(v))
}

// printf prints a line of the result.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
	return printError(err)
}

// What a table shows of a text, in characters: one long name widens its column in every row.
const (
	cellShown = 64
	lastShown = 200 // in the last column, which widens nothing
)

// table prints rows in aligned columns. Each character counts as one column, also those
// that a terminal shows wider.
type table struct {
	out  io.Writer
	wide bool // cuts no text
	buf  bytes.Buffer
	w    *tabwriter.Writer
}

// newTable begins a table. Unless it is wide, long texts in its rows are cut.
func newTable(out io.Writer, wide bool, head ...string) *table {
	t := &table{out: out, wide: wide}
	t.w = tabwriter.NewWriter(&t.buf, 0, 0, 2, ' ', 0)
	t.line(head)
	return t
}

// row adds a row. Strings go through visible; nil and nil pointers are empty cells.
func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = cell(c)
		switch {
		case t.wide:
		case i < len(cells)-1:
			texts[i] = cutMiddle(texts[i], cellShown)
		default:
			texts[i] = cutMiddle(texts[i], lastShown)
		}
	}
	t.line(texts)
}

// cutMiddle shows most characters of a text, more of its beginning than of its end.
func cutMiddle(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	end := most / 3
	return string(runes[:most-1-end]) + "…" + string(runes[len(runes)-end:])
}

func (t *table) line(cells []string) {
	_, _ = io.WriteString(t.w, strings.Join(cells, "\t")+"\n") // into memory
}

// flush prints the table, without spaces at the ends of lines.
func (t *table) flush() error {
	_ = t.w.Flush() // into memory
	var b strings.Builder
	for line := range strings.Lines(t.buf.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	_, err := io.WriteString(t.out, b.String())
	return printError(err)
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case *string:
		if v == nil {
			return ""
		}
		return visible(*v)
	case *int64:
		if v == nil {
			return ""
		}
		return strconv.FormatInt(*v, 10)
	case *int32:
		if v == nil {
			return ""
		}
		return strconv.Itoa(int(*v))
	case time.Time:
		return timeText(v)
	case *time.Time:
		if v == nil {
			return ""
		}
		return timeText(*v)
	case string:
		return visible(v)
	}
	return fmt.Sprint(v)
}

// timeText shows a time in the time zone of this machine.
func timeText(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05Z07:00") }

// visible is what a terminal may be given to show.
func visible(s string) string { return text.Visible(s) }

// counted prints a count that stopped at limit as "1000+".
func counted(n, limit int64) string {
	if limit > 0 && n >= limit {
		return strconv.FormatInt(limit, 10) + "+"
	}
	return strconv.FormatInt(n, 10)
}

// plural is "1 message", "2 messages".
func plural(n int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.FormatInt(n, 10) + " " + word + "s"
}

// printCut says that a table shows only the first rows.
func printCut(a *app, rows, limit int) error {
	if rows < limit {
		return nil
	}
	return a.printf("The first %d.", limit)
}

// ago is how long before now a time was; empty for none.
func ago(now time.Time, at *time.Time) string {
	if at == nil {
		return ""
	}
	return max(now.Sub(*at), 0).Round(time.Second).String() + " ago"
}
