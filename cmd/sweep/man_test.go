package main

import "testing"

// No line of a text is a request of roff, and examples keep their lines.
func TestManText(t *testing.T) {
	t.Parallel()
	const text = "A path\n.hidden and 'quoted', C:\\dir\n'first\n\nExamples:\n\n    sweep --all\n    .profile\n\nThe end."
	const want = "A path\n\\&.hidden and 'quoted', C:\\edir\n\\&'first\n.PP\nExamples:\n.PP\n.RS 4\n.nf\nsweep \\-\\-all\n\\&.profile\n.fi\n.RE\nThe end.\n"
	if got := manText(text); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := manQuote(`a "b" - c`), `"a \(dqb\(dq \- c"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
