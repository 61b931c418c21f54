package driver

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxReason is the longest reason sent to the database, in bytes; SQL cuts again, to
// characters. Both take out the middle.
const maxReason = 8 << 10

// CleanReason is what becomes of a [Failure]'s Reason: it makes a text from outside one that PostgreSQL takes and a terminal shows
// as it is: valid UTF-8 of bounded length, without control characters but for tabs and
// line ends.
func CleanReason(s string) string {
	if len(s) > maxReason {
		const half = (maxReason - len("…")) / 2
		head, tail := half, len(s)-half
		for i := 0; i < utf8.UTFMax && !utf8.RuneStart(s[head]); i++ {
			head--
		}
		for i := 0; i < utf8.UTFMax && !utf8.RuneStart(s[tail]); i++ {
			tail++
		}
		s = s[:head] + "…" + s[tail:]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
