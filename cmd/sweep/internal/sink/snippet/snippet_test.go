package snippet

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for _, c := range []struct {
		name, in string
		max      int
		want     string
	}{
		{"plain", "disk is full", 100, "disk is full"},
		{"empty", "", 100, ""},
		{"only white space", " \t\r\n ", 100, ""},
		{"lines become one", "  first\n\n\tsecond\r\n", 100, "first second"},
		{"terminal escapes lose their escape", "\x1b[31mred\x1b[0m\x07", 100, "[31mred [0m"},
		{"C1 control", "a\u009bb", 100, "a b"},
		{"right-to-left override", "abc\u202egnp.exe", 100, "abc gnp.exe"},
		{"invalid UTF-8", "a\xff\xfeb", 100, "a\uFFFD\uFFFDb"},
		{"NUL", "a\x00b", 100, "a b"},
		{"letters of every script stay", "שלום 你好 🦉", 100, "שלום 你好 🦉"},
		{"exactly the bound", "12345", 5, "12345"},
		{"one over the bound", "123456", 5, "123…56"},
		{"both ends stay", "cannot: " + strings.Repeat("x", 100) + " disk full", 18, "cannot: x…disk full"},
		{"never inside a character", "aé", 2, "a…"},
		{"never inside a character at the end", "aaaé", 4, "aa…é"},
		{"nor where the tail begins", "aaéé", 5, "aa…é"},
		{"nothing fits", "é", 1, "…"},
		{"white space after the bound is no cut", "12345 \n", 5, "12345"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Clean([]byte(c.in), c.max); got != c.want {
				t.Errorf("Clean(%q, %d) = %q, want %q", c.in, c.max, got, c.want)
			}
		})
	}
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("a\xffb\n\u202e"), 3)
	f.Add([]byte(strings.Repeat("é ", 50)), 20)
	f.Fuzz(func(t *testing.T, in []byte, max int) {
		max %= 1 << 12
		if max < 0 {
			max = -max
		}
		got := Clean(in, max)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b") {
			t.Fatalf("Clean(%q) = %q is not one clean line", in, got)
		}
		if n := len(strings.Replace(got, "…", "", 1)); n > max && len(got) > max {
			t.Fatalf("Clean(%q, %d) is %d bytes", in, max, n)
		}
	})
}
