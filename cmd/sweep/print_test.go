package main

import (
	"strings"
	"testing"
	"unicode"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"plain", "plain"},
		{"a b", "a b"},
		{`back\slash "quoted"`, `back\slash "quoted"`},
		{"é 字 🦉 שלום", "é 字 🦉 שלום"},
		{"\ufffd", "\ufffd"},
		{"line\nfeed\ttab\r", `line\nfeed\ttab\r`},
		{"\x1b[31mred", `\x1b[31mred`},
		{"\x00\x7f", `\x00\x7f`},
		{"\u202eevil\u200b\u00a0\ufeff", `\u202eevil\u200b\u00a0\ufeff`},
		{"bad \xff utf-8", `bad \xff utf-8`},
	} {
		if got := visible(tt.text); got != tt.want {
			t.Errorf("visible(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\n\x1b\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		got := visible(text)
		if strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("visible(%q) = %q", text, got)
		}
	})
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	table := newTable(&b, false, "NAME", "N", "NOTE")
	n := int64(12)
	note := "line\nbreak"
	table.row("a\tb", &n, nil)
	table.row("c", (*int64)(nil), &note)
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  N   NOTE\na\\tb  12\nc         line\\nbreak\n"; b.String() != want {
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}

// TestTableCut: one long text widens no column beyond what a person can look at, and both its ends are
// there; a wide table has it whole.
func TestTableCut(t *testing.T) {
	t.Parallel()
	long := "begin" + strings.Repeat("é", 500) + "end"
	for _, wide := range []bool{false, true} {
		var b strings.Builder
		table := newTable(&b, wide, "A", "B", "C")
		table.row(strings.Repeat("a", cellShown), &long, &long)
		table.row(1, 2, 3)
		if err := table.flush(); err != nil {
			t.Fatal(err)
		}
		cells := strings.Fields(strings.Split(b.String(), "\n")[1])
		if len(cells) != 3 || cells[0] != strings.Repeat("a", cellShown) {
			t.Fatalf("wide %t: %q", wide, cells)
		}
		for i, most := range []int{cellShown, cellShown, lastShown} {
			if n := len([]rune(cells[i])); i > 0 && ((wide && cells[i] != long) || (!wide && n != most)) {
				t.Errorf("wide %t: cell %d has %d characters: %s", wide, i, n, cells[i])
			}
			if i > 0 && (!strings.HasPrefix(cells[i], "begin") || !strings.HasSuffix(cells[i], "end")) {
				t.Errorf("wide %t: an end is lost: %s", wide, cells[i])
			}
		}
	}
}
