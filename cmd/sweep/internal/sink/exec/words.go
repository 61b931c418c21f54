package exec

import (
	"errors"
	"fmt"
	"strings"
)

// operators are characters with a meaning in a shell, where they are not quoted. Here they
// would be plain characters of an argument, which nobody expects: they are refused.
const operators = "|&;<>()$`"

// words splits a command line with the quoting of a POSIX shell, and expands nothing:
// words end at spaces, tabs and line feeds; single quotes keep everything; double
// quotes keep everything but \" \\ \$ and \`; elsewhere a backslash keeps the next
// character. Variables, globs, ~ and # have no meaning. An error gives a position in bytes
// and never the text, which may be a secret.
func words(line string) ([]string, error) {
	var (
		list   []string
		word   strings.Builder
		inWord bool
	)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == 0:
			return nil, fmt.Errorf("NUL at byte %d", i)
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				list = append(list, word.String())
				word.Reset()
				inWord = false
			}
			continue
		case c == '\'':
			n := strings.IndexByte(line[i+1:], '\'')
			if n < 0 {
				return nil, fmt.Errorf("the single quote at byte %d is never closed", i)
			}
			word.WriteString(line[i+1 : i+1+n])
			i += n + 1
		case c == '"':
			n, err := doubleQuoted(&word, line[i+1:])
			if err != nil {
				return nil, fmt.Errorf("the double quote at byte %d is never closed", i)
			}
			i += n
		case c == '\\':
			i++
			if i == len(line) {
				return nil, errors.New("nothing follows the backslash at the end")
			}
			word.WriteByte(line[i])
		case strings.IndexByte(operators, c) >= 0:
			return nil, fmt.Errorf("%q at byte %d: the command is not run by a shell; "+
				"quote the character, or give the line to a shell yourself: exec:sh -c '...'", c, i)
		default:
			word.WriteByte(c)
		}
		inWord = true
	}
	if inWord {
		list = append(list, word.String())
	}
	return list, nil
}

// doubleQuoted appends the text before the closing quote in rest to word, and returns how
// many bytes of rest that are, with the closing quote.
func doubleQuoted(word *strings.Builder, rest string) (int, error) {
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\' && i+1 < len(rest) && strings.IndexByte("\"\\$`", rest[i+1]) >= 0:
			i++
			word.WriteByte(rest[i])
		default:
			word.WriteByte(c)
		}
	}
	return 0, errors.New("not closed")
}
