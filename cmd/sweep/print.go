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
	"unicode"
	"unicode/utf8"
)

// jsonFlag is embedded by commands that can print JSON.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON, for programs."`
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

// table prints rows in aligned columns. Each character counts as one column, also those
// that a terminal shows wider.
type table struct {
	out io.Writer
	buf bytes.Buffer
	w   *tabwriter.Writer
}

func newTable(out io.Writer, head ...string) *table {
	t := &table{out: out}
	t.w = tabwriter.NewWriter(&t.buf, 0, 0, 2, ' ', 0)
	t.line(head)
	return t
}

// row adds a row. Strings go through visible; nil and nil pointers are empty cells.
func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = cell(c)
	}
	t.line(texts)
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

// visible returns s with everything that a terminal would act on instead of showing
// it (control characters, line breaks, direction overrides, odd spaces) written as
// Go escapes: \n, \x1b, \u202e.
func visible(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b.WriteRune(r)
		} else {
			quoted := strconv.Quote(s[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[size:]
	}
	return b.String()
}

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
