package functions

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Object is one thing that a file creates.
type Object struct {
	kind string // function (a procedure too), view or trigger
	name string // without the schema; of a trigger, its drop
	drop string // the statement that takes it away
	key  string // two texts with the same key can replace each other
}

var (
	created   = regexp.MustCompile(`(?i)\bcreate\s+(?:or\s+replace\s+)?(\w+)\s+`)
	qualified = regexp.MustCompile(`^outbox\.(\w+)`)
	trigger   = regexp.MustCompile(`(?is)^(\w+)\s.*?\son\s+(outbox\.\w+)`)
	returning = regexp.MustCompile(`(?is)^\s*returns\s+(.*?)\slanguage\s`)
	defaulted = regexp.MustCompile(`(?i)\s+default\s|\s*:?=`)
)

// objects finds what code, a text that went through blank, creates.
func objects(code string) ([]Object, error) {
	var found []Object
	for _, at := range created.FindAllStringSubmatchIndex(code, -1) {
		kind := strings.ToLower(code[at[2]:at[3]])
		o, err := object(kind, code[at[1]:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", squeeze(code[at[0]:min(at[1]+40, len(code))]), err)
		}
		found = append(found, o)
	}
	return found, nil
}

// object reads what follows "create or replace <kind> ".
func object(kind, rest string) (Object, error) {
	if kind == "trigger" {
		m := trigger.FindStringSubmatch(rest)
		if m == nil {
			return Object{}, errors.New("want: trigger name ... on outbox.table")
		}
		drop := fmt.Sprintf("drop trigger %s on %s;", m[1], m[2])
		return Object{kind: kind, name: drop, drop: drop, key: drop}, nil
	}
	name := qualified.FindString(rest)
	if name == "" {
		return Object{}, errors.New("the name must begin with outbox")
	}
	switch kind {
	case "view":
		drop := fmt.Sprintf("drop view %s;", name)
		return Object{kind: kind, name: bare(name), drop: drop, key: drop}, nil
	case "function", "procedure":
		args, after, err := arguments(rest[len(name):])
		if err != nil {
			return Object{}, err
		}
		drop := fmt.Sprintf("drop %s %s(%s);", kind, name, args)
		key := drop
		if m := returning.FindStringSubmatch(after); m != nil {
			key += squeeze(m[1])
		}
		return Object{kind: "function", name: bare(name), drop: drop, key: key}, nil
	}
	return Object{}, fmt.Errorf("do not know how to drop a %s: it belongs in a migration of its own", kind)
}

// bare is a name without its schema, as the catalog has it.
func bare(name string) string { return strings.ToLower(strings.TrimPrefix(name, "outbox.")) }

// arguments reads a parenthesized list and returns it without its defaults, as
// "drop function" takes it, and the text that follows.
func arguments(text string) (args, after string, err error) {
	var list []string
	depth, start := 0, 0
	for i, c := range text {
		switch {
		case c == '(' || c == '[':
			depth++
			if depth == 1 {
				start = i + 1
			}
		case c == ')' || c == ']':
			depth--
		case depth == 0 && !strings.ContainsRune(" \t\n", c):
			return "", "", errors.New("want an argument list")
		}
		if (c == ',' && depth == 1) || (c == ')' && depth == 0) {
			arg := text[start:i]
			if at := defaulted.FindStringIndex(arg); at != nil {
				arg = arg[:at[0]]
			}
			list = append(list, squeeze(arg))
			start = i + 1
		}
		if c == ')' && depth == 0 {
			list = slices.DeleteFunc(list, func(s string) bool { return s == "" })
			return strings.Join(list, ", "), text[i+1:], nil
		}
	}
	return "", "", errors.New("the argument list does not end")
}

// squeeze makes one space of each run of white space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// blank overwrites with spaces what is not code: comments, string constants and
// dollar-quoted bodies. Offsets and line breaks stay.
func blank(text string) (string, error) {
	out := []byte(text)
	for i := 0; i < len(text); {
		end, err := skip(text, i)
		if err != nil {
			return "", fmt.Errorf("line %d: %w", 1+strings.Count(text[:i], "\n"), err)
		}
		if end == i {
			i++
			continue
		}
		for ; i < end; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	return string(out), nil
}

var dollarTag = regexp.MustCompile(`^\$(?:[A-Za-z_]\w*)?\$`)

// skip returns where the comment or constant that begins at text[i] ends, or i.
func skip(text string, i int) (int, error) {
	rest := text[i:]
	switch {
	case strings.HasPrefix(rest, "--"):
		if n := strings.IndexByte(rest, '\n'); n >= 0 {
			return i + n, nil
		}
		return len(text), nil
	case strings.HasPrefix(rest, "/*"):
		n := strings.Index(rest, "*/")
		if n < 0 || strings.Contains(rest[2:n], "/*") {
			return i, errors.New("a comment that does not end, or one inside of another")
		}
		return i + n + 2, nil
	case rest[0] == '\'':
		escapes := i > 0 && (text[i-1] == 'e' || text[i-1] == 'E') && (i < 2 || !isWord(text[i-2]))
		return constant(text, i, escapes)
	case rest[0] == '$' && (i == 0 || !isWord(text[i-1])):
		tag := dollarTag.FindString(rest)
		if tag == "" {
			return i, nil
		}
		n := strings.Index(rest[len(tag):], tag)
		if n < 0 {
			return i, fmt.Errorf("a body in %s that does not end", tag)
		}
		if _, err := blank(rest[len(tag) : len(tag)+n]); err != nil {
			return i, fmt.Errorf("in the body: %w", err)
		}
		return i + n + 2*len(tag), nil
	}
	return i, nil
}

// constant returns where the string constant that begins at text[i] ends. Of a
// doubled quote, each half ends or begins one.
func constant(text string, i int, escapes bool) (int, error) {
	for j := i + 1; j < len(text); j++ {
		switch {
		case text[j] == '\'':
			return j + 1, nil
		case text[j] == '\\' && escapes:
			j++
		case text[j] == '\\':
			return i, errors.New("a backslash in a string constant means something else where standard_conforming_strings is off: write E'' or chr(92)")
		}
	}
	return i, errors.New("a string constant that does not end")
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
