package exec

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	long := strings.Repeat("x", maxOutput)
	for _, c := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"short", []string{"a", "b"}, "ab"},
		{"exactly full", []string{long}, long},
		{"one over", []string{long, "y"}, "…" + long[1:] + "y"},
		{"one large write", []string{"first" + long}, "…" + long},
		{"large after small", []string{"a", long}, "…" + long},
		{"never half a character", []string{"é", long[1:]}, "…" + long[1:]},
		{"cleaned", []string{"\x1b[31m a\n\n", "b\xff"}, "[31m a b\uFFFD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out tail
			for _, w := range c.writes {
				if n, err := out.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("Write = %d, %v, want %d", n, err, len(w))
				}
			}
			if got := out.String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTailKeepsTheLastBytes(t *testing.T) {
	var out tail
	var all strings.Builder
	for range 300 {
		w := strings.Repeat(string(rune('a'+rand.IntN(26))), rand.IntN(3*maxOutput)*rand.IntN(2)+rand.IntN(50))
		all.WriteString(w)
		_, _ = out.Write([]byte(w))
		want := all.String()
		want = want[max(0, len(want)-maxOutput):]
		if string(out.buf) != want {
			t.Fatalf("after %d bytes the tail is not their end", all.Len())
		}
	}
}
