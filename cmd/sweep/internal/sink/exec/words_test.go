package exec

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"", nil},
		{" \t\n ", nil},
		{"notify", []string{"notify"}},
		{"  notify\t-v \n", []string{"notify", "-v"}},
		{`a 'b c' "d e" f\ g`, []string{"a", "b c", "d e", "f g"}},
		{`'' ""`, []string{"", ""}},
		{`a''b"c"d`, []string{"abcd"}},
		{`'\n $x "'`, []string{`\n $x "`}},
		{`"\" \\ \$ \` + "`" + ` \n '"`, []string{`" \ $ ` + "`" + ` \n '`}},
		{`"$x" '|' \;`, []string{"$x", "|", ";"}},
		{`sh -c 'cat | wc > "$HOME/x"'`, []string{"sh", "-c", `cat | wc > "$HOME/x"`}},
		{`* ~ # ! [a] {b} a=b ? %`, []string{"*", "~", "#", "!", "[a]", "{b}", "a=b", "?", "%"}},
		{"/opt/ünï/🦉 שלום", []string{"/opt/ünï/🦉", "שלום"}},
	} {
		got, err := words(c.line)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("words(%q) = %q, %v, want %q", c.line, got, err, c.want)
		}
	}
}

func TestWordsRefuses(t *testing.T) {
	for _, c := range []struct{ line, says string }{
		{"a 'b", "the single quote at byte 2"},
		{`a "b`, "the double quote at byte 2"},
		{`a "b\"`, "the double quote at byte 2"},
		{`a \`, "backslash"},
		{"a\x00b", "NUL at byte 1"},
		{"cat > file", `'>' at byte 4`},
		{"cat | wc", `'|' at byte 4`},
		{"a; b", `';' at byte 1`},
		{"a & b", `'&' at byte 2`},
		{"echo $HOME", `'$' at byte 5`},
		{"echo `id`", "sh -c"},
		{"(a)", `'(' at byte 0`},
	} {
		got, err := words(c.line)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("words(%q) = %q, %v, want an error with %q", c.line, got, err, c.says)
		}
	}
	if _, err := words("cmd 'hunter2"); strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows the command line: %v", err)
	}
}

// Where words takes a line of letters, quotes and white space, a POSIX shell splits
// it alike.
func FuzzWordsAsTheShell(f *testing.F) {
	for _, line := range []string{`a 'b c' "d e" f\ g`, `a''b"c"d '' ""`, `"\"\\\$\x" '\'`, "a\tb\n"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got, err := words(line)
		if err != nil || strings.Trim(line, "abc '\"\\\t") != "" {
			return
		}
		shell, err := exec.Command("sh", "-c", "set -- "+line+"\nfor w; do printf '%s\\n' \"$w\"; done").Output()
		if err != nil {
			t.Fatalf("sh on %q: %v", line, err)
		}
		var mine strings.Builder
		for _, w := range got {
			mine.WriteString(w + "\n")
		}
		if mine.String() != string(shell) {
			t.Fatalf("words(%q) = %q, sh has %q", line, got, shell)
		}
	})
}
