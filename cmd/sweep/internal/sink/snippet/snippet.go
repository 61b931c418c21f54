// Package snippet makes foreign text (the output of a command, the body of an answer) fit
// for an error or a log line: one line of valid UTF-8, of bounded length, without
// characters that a terminal would act on.
package snippet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns text as one line of at most max bytes: every run of white space,
// control and formatting characters (escape sequences, right-to-left overrides)
// becomes one space, and invalid UTF-8 becomes U+FFFD. Of a longer text the middle is cut
// out, between two characters: "…" stands there, which is not counted. Its beginning often
// says what failed, and its end why.
func Clean(text []byte, max int) string {
	line := oneLine(text)
	if len(line) <= max {
		return line
	}
	head := (max + 1) / 2
	for head > 0 && !utf8.RuneStart(line[head]) {
		head--
	}
	tail := len(line) - (max - head)
	for tail < len(line) && !utf8.RuneStart(line[tail]) {
		tail++
	}
	return line[:head] + "…" + line[tail:]
}

func oneLine(text []byte) string {
	var b strings.Builder
	gap := false
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		if r == ' ' || !unicode.IsPrint(r) {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte(' ')
			gap = false
		}
		b.WriteRune(r)
	}
	return b.String()
}
