package exec

import (
	"unicode/utf8"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/snippet"
)

// maxOutput is how much of a command's output stands in an error, in bytes as the
// command wrote them.
const maxOutput = 2 << 10

// tail is an [io.Writer] that keeps the last maxOutput bytes written to it: what
// a command says last is mostly why it failed. The zero value is ready to use.
type tail struct {
	buf []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.cut = t.cut || len(t.buf)+len(p) > maxOutput
	t.buf = append(t.buf, p[max(0, len(p)-maxOutput):]...)
	t.buf = append(t.buf[:0], t.buf[max(0, len(t.buf)-maxOutput):]...)
	return len(p), nil
}

// String returns the output as one clean line, with "…" in front if it was cut.
func (t *tail) String() string {
	if !t.cut {
		return snippet.Clean(t.buf, maxOutput*utf8.UTFMax)
	}
	rest := t.buf
	for len(rest) > 0 && !utf8.RuneStart(rest[0]) { // the cut may have split a character
		rest = rest[1:]
	}
	return "…" + snippet.Clean(rest, maxOutput*utf8.UTFMax)
}
