package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completeBash is what bash offers for a command line whose last word is at the cursor.
func completeBash(t *testing.T, script string, words ...string) []string {
	t.Helper()
	const ask = `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sweep; printf '%s\n' "${COMPREPLY[@]}"`
	out, err := exec.Command("bash", append([]string{"--norc", "-c", ask, "bash", script}, words...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", words, err, out)
	}
	return strings.Fields(string(out))
}

// TestCLICompletionBash: each command is offered, with its own flags and the values that are few; what
// stands behind a flag as its value is no command.
func TestCLICompletionBash(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash here")
	}
	script := filepath.Join(t.TempDir(), "sweep.bash")
	if err := os.WriteFile(script, []byte(sweep(t, "", "completion", "bash")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line string // the last word is at the cursor; _ is an empty one
		want []string
	}{
		{"sweep re", []string{"resume", "redrive", "retry"}},
		{"sweep migrate d", []string{"down"}},
		{"sweep migrate down --st", []string{"--steps"}},
		{"sweep failed --g", []string{"--group"}},
		{"sweep --log-level run failed --g", []string{"--group"}},
		{"sweep failed --namespace retry --sc", []string{"--scan"}},
		{"sweep redrive --dr", []string{"--dry-run"}},
		{"sweep status --log-level w", []string{"warn"}},
		{"sweep status --log-level = w", []string{"warn"}},
		{"sweep status --log-format = _", []string{"text", "json"}},
		{"sweep failed --namespace _", nil},
		{"sweep completion _", []string{"bash", "zsh", "fish"}},
		{"sweep retry --gr", nil},
	} {
		words := strings.Fields(c.line)
		if last := len(words) - 1; words[last] == "_" {
			words[last] = ""
		}
		if got := completeBash(t, script, words...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
	_, commands, _ := strings.Cut(sweep(t, "", "--help"), "Commands:\n")
	offered := completeBash(t, script, "sweep", "")
	for line := range strings.Lines(commands) {
		if name := strings.Fields(line); strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "   ") && !slices.Contains(offered, name[0]) {
			t.Errorf("%q is not offered among %q", name[0], offered)
		}
	}
}

// TestCLICompletionSyntax: the shells that are here read their scripts without complaint.
func TestCLICompletionSyntax(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := sweep(t, "", "completion", shell)
		for _, want := range []string{"migrate", "redrive", "dry-run"} {
			if !strings.Contains(script, want) {
				t.Errorf("the script for %s lacks %s", shell, want)
			}
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("there is no %s here: its script was not read", shell)
			continue
		}
		path := filepath.Join(t.TempDir(), shell)
		if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(shell, "-n", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
	sweepFails(t, "", 2, []string{"completion"}, "<shell>")
	sweepFails(t, "", 2, []string{"completion", "tcsh"}, "tcsh")
}

// TestCLIMan: the page has each command with its flags and variables, and a formatter that is here
// warns of nothing.
func TestCLIMan(t *testing.T) {
	t.Parallel()
	page := sweep(t, "", "man")
	for _, want := range []string{".TH SWEEP 1", `.SS "failed [flags]"`, `.SS "migrate down [flags]"`, `\-\-dry\-run`, "SWEEP_REDRIVE_RATE", "SWEEP_DATABASE_URL", `sweep redrive \-\-id 17,18`} {
		if !strings.Contains(page, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains([]string{".TH", ".SH", ".SS", ".TP", ".PP", ".RS", ".RE", ".nf", ".fi", ".B", ".I"}, strings.Fields(line)[0]) {
			t.Errorf("roff would take this for a request: %q", line)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Log("there is no groff here: the page was not formatted")
		return
	}
	cmd := exec.Command("groff", "-man", "-Tutf8", "-ww")
	cmd.Stdin = strings.NewReader(page)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil || warnings.Len() > 0 || !strings.Contains(string(out), "sweep failed --group") {
		t.Errorf("groff: %v: %s", err, warnings.String())
	}
}
