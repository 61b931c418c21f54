package driver

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCleanReason(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain":                "plain",
		"a\nb\tc":              "a\nb\tc",
		"nul\x00":              "nul\uFFFD",
		"bell\a, \x1b[31m, \r": "bell\uFFFD, \uFFFD[31m, \uFFFD",
		"\u0085 \u009b":        "\uFFFD \uFFFD",
		"bad \xff\xfe utf":     "bad \uFFFD utf",
		"\xed\xa0\x80":         "\uFFFD", // half of a surrogate pair
		"héllo \u202e 🎉":       "héllo \u202e 🎉",
	} {
		if got := CleanReason(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 3*maxReason).Draw(t, "bytes"))
		got := CleanReason(in)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > 3*maxReason {
			t.Fatalf("%q becomes %q", in, got)
		}
		if CleanReason(got[:min(len(got), maxReason)]) == "" && in != "" {
			t.Fatalf("nothing is left of %q", in)
		}
	})
	for _, before := range []string{"", "x"} { // so that the cuts are within characters, or are not
		got := CleanReason(before + "first " + strings.Repeat("é", maxReason) + " last" + before)
		if want := maxReason - 4; len(got) > maxReason || len(got) < want || strings.ContainsRune(got, '\uFFFD') ||
			!strings.HasPrefix(got, before+"first é") || !strings.HasSuffix(got, "é last"+before) || !strings.Contains(got, "é…é") {
			t.Errorf("a long reason is cut to %d bytes, want %d of both ends: %.20q", len(got), want, got)
		}
	}
}
