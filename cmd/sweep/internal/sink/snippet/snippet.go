// Package snippet makes text from outside (a command's output, a response body)
// fit to stand in an error: one line, valid UTF-8, bounded, and without anything
// that a terminal would act on.
package snippet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns text as one line of at most max bytes: every run of white space,
// control and formatting characters (escape sequences, right-to-left overrides)
// becomes one space, and invalid UTF-8 becomes U+FFFD. A longer text is cut
// between two characters and ends with "…", which is not counted.
func Clean(text []byte, max int) string {
	var b strings.Builder
	gap := false
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		if r == ' ' || !unicode.IsPrint(r) {
			gap = b.Len() > 0
			continue
		}
		need := utf8.RuneLen(r)
		if gap {
			need++
		}
		if b.Len()+need > max {
			b.WriteString("…")
			break
		}
		if gap {
			b.WriteByte(' ')
			gap = false
		}
		b.WriteRune(r)
	}
	return b.String()
}
