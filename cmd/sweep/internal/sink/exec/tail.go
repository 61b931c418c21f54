package exec

import (
	"unicode/utf8"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/snippet"
)

const (
	// maxOutput is how many bytes of a command's output an error has: of a longer output
	// the first maxHead bytes, and the last bytes.
	maxOutput = 1536
	maxHead   = 512
)

// ends is an [io.Writer] that keeps the first maxHead bytes written to it, and the last
// bytes of the rest: the first lines of a command mostly say what failed, and the last ones
// why. The zero value is ready to use.
type ends struct {
	head, tail []byte
	cut        bool
}

func (e *ends) Write(p []byte) (int, error) {
	const most = maxOutput - maxHead
	n := len(p)
	first := min(n, maxHead-len(e.head))
	e.head = append(e.head, p[:first]...)
	p = p[first:]
	e.cut = e.cut || len(e.tail)+len(p) > most
	e.tail = append(e.tail, p[max(0, len(p)-most):]...)
	e.tail = append(e.tail[:0], e.tail[max(0, len(e.tail)-most):]...)
	return n, nil
}

// String returns the output as one clean line, with " … " where it was cut.
func (e *ends) String() string {
	if !e.cut {
		return snippet.Clean(append(e.head[:len(e.head):len(e.head)], e.tail...), maxOutput*utf8.UTFMax)
	}
	// The cut may have split a character at either side.
	head, tail := e.head, e.tail
	for i := 1; i <= min(len(head), utf8.UTFMax); i++ {
		if b := head[len(head)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(head[len(head)-i:]) {
				head = head[:len(head)-i]
			}
			break
		}
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return snippet.Clean(head, maxHead*utf8.UTFMax) + " … " + snippet.Clean(tail, maxOutput*utf8.UTFMax)
}
