package exec

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestEnds(t *testing.T) {
	head, long := strings.Repeat("h", maxHead), strings.Repeat("x", maxOutput-maxHead)
	for _, c := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"short", []string{"a", "b"}, "ab"},
		{"exactly full", []string{head + long}, head + long},
		{"one over", []string{head + long, "y"}, head + " … " + long[1:] + "y"},
		{"one large write", []string{head + "lost" + long}, head + " … " + long},
		{"large after small", []string{"a", head + long}, "a" + head[1:] + " … " + long},
		{"never half a character", []string{head[1:] + "é", long[2:] + "é", long[1:]}, head[1:] + " … " + long[1:]},
		{"a character on the border", []string{head[1:] + "é", "end"}, head[1:] + "éend"},
		{"cleaned", []string{"\x1b[31m a\n\n", "b\xff"}, "[31m a b\uFFFD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out ends
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

func TestEndsKeepsFirstAndLastBytes(t *testing.T) {
	var out ends
	var all strings.Builder
	for range 300 {
		w := strings.Repeat(string(rune('a'+rand.IntN(26))), rand.IntN(3*maxOutput)*rand.IntN(2)+rand.IntN(50))
		all.WriteString(w)
		_, _ = out.Write([]byte(w))
		head := all.String()[:min(all.Len(), maxHead)]
		rest := all.String()[len(head):]
		rest = rest[max(0, len(rest)-(maxOutput-maxHead)):]
		if string(out.head) != head || string(out.tail) != rest {
			t.Fatalf("after %d bytes it does not hold both ends", all.Len())
		}
	}
}
