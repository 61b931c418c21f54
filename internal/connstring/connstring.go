// Package connstring reads connection strings as people paste them, for all programs of the
// project that connect to a database.
//
// In a string with a mistake, the password may be read as something else. With an @ or a
// slash that is not percent-encoded, a part of the password becomes the host or the
// database; after a missing quote or a space, a part becomes the name of a parameter, which
// the server repeats in its error. So a string that could be read in two ways is refused
// before anything connects, and an error never repeats a part of the string, except names
// that are on a list below.
package connstring

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"
)

// Config reads a connection string. What is left out of the string comes from the PG
// variables, the service file and the password file, which each call reads again.
func Config(raw string) (*pgx.ConnConfig, error) {
	text, err := Clean(raw)
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, Explain(text, err)
	}
	return config, Apply(config)
}

// Clean removes white space and quotes around a connection string, and refuses a string
// that could be read in two ways.
func Clean(raw string) (string, error) {
	text := strings.TrimFunc(raw, isSpace)
	if n := len(text); n >= 2 && strings.ContainsRune("\"'`", rune(text[0])) && text[0] == text[n-1] {
		text = strings.TrimFunc(text[1:n-1], isSpace)
	}
	if strings.ContainsRune(text, 0) {
		return "", refuse("hold a NUL byte", forms)
	}
	if text != "" && (strings.ContainsRune("\"`'", rune(text[0])) || strings.ContainsRune("\"`", rune(text[len(text)-1]))) {
		return "", refuse("begin or end with a quote without its counterpart", forms)
	}
	before, rest, isURL := strings.Cut(text, "://")
	if isURL && !strings.Contains(before, "=") {
		return cleanURL(before, rest)
	}
	return text, checkPairs(text)
}

// isSpace reports whether a character is one that copying leaves around a string: white
// space, control characters, byte order marks.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) && r != 0 || r == '\uFEFF' || r == '\u200B'
}

func cleanURL(scheme, rest string) (string, error) {
	switch s := strings.ToLower(scheme); {
	case s == "postgres" || s == "postgresql":
	case strings.HasPrefix(s, "jdbc:"), strings.HasPrefix(s, "postgresql+"), strings.HasPrefix(s, "postgres+"):
		return "", refuse("are a URL for another program", "Write a URL that begins with postgres://, with user and password before the host.")
	default:
		return "", refuse("are a URL, but not one of PostgreSQL", "Write a URL that begins with postgres://.")
	}
	if strings.ContainsFunc(rest, isSpace) {
		return "", refuse("are a URL with white space or a line end in it", encode)
	}
	end := strings.IndexAny(rest, "/?#")
	if strings.Count(rest, "@") > 1 || strings.Contains(rest, "#") || end >= 0 && strings.Contains(rest[end:], "@") {
		return "", refuse("are not a valid URL: an @ or # is in a place where it cannot be", encode)
	}
	if strings.Contains(rest, ";") {
		return "", refuse("are a URL with a semicolon in it", "In a URL, parameters follow ? and are separated by &; in a password, ; is written %3B.")
	}
	return strings.ToLower(scheme) + "://" + rest, nil
}

// checkPairs refuses keyword=value pairs in which a part may be a password without quotes:
// where a keyword is there twice, or is not a valid name.
func checkPairs(text string) error {
	seen := map[string]bool{}
	for rest := text; rest != ""; {
		name, after, ok := strings.Cut(rest, "=")
		if name = strings.TrimFunc(name, isSpace); !ok || !isName(name) {
			if strings.Contains(text, ";") {
				return refuse("are neither a postgres:// URL nor keyword=value pairs", "Separate pairs by spaces, not by semicolons: host=db user=app password='...'.")
			}
			return refuse("are neither a postgres:// URL nor keyword=value pairs", forms)
		}
		if seen[name] {
			return refuse("name one keyword twice", "Put a value with spaces or quotes into single quotes; in these, \\' is a quote and \\\\ a backslash.")
		}
		seen[name] = true
		value, next, closed := cutValue(strings.TrimLeftFunc(after, isSpace))
		switch {
		case !closed:
			return refuse("have a quote that does not end", forms)
		case strings.Contains(value, "://"), strings.Contains(value, ";") && strings.Contains(value, "="):
			return refuse("have a URL, or more pairs, as the value of a keyword", "Give the URL alone, without a name before it; separate pairs by spaces.")
		}
		rest = next
	}
	return nil
}

// cutValue cuts off a value as libpq reads it. Backslashes stay in the value.
func cutValue(text string) (value, rest string, closed bool) {
	quoted := strings.HasPrefix(text, "'")
	start := 0
	if quoted {
		start = 1
	}
	for i := start; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case quoted && c == '\'':
			return text[start:i], strings.TrimLeftFunc(text[i+1:], isSpace), true
		case !quoted && strings.IndexByte(" \t\n\r\v\f", c) >= 0:
			return text[:i], strings.TrimLeftFunc(text[i:], isSpace), true
		}
	}
	return text[start:], "", !quoted
}

// Explain returns an error in the place of err, which pgx has returned for a connection
// string: the new one repeats nothing of the string.
func Explain(text string, err error) error {
	var path *fs.PathError
	switch _, notURL := url.Parse(text); {
	case errors.As(err, &path):
		return refuse(fmt.Sprintf("name a file that cannot be read: %v", path.Err),
			"sslrootcert, sslcert, sslkey, servicefile, and the PG variables like them, name files.")
	case notURL != nil && strings.Contains(text, "://"):
		return refuse("are not a valid URL", encode)
	}
	return refuse("are neither a postgres:// URL nor keyword=value pairs, or with a value that is not allowed",
		"sslmode is disable, allow, prefer, require, verify-ca or verify-full; connect_timeout is a number of seconds; target_session_attrs is any, read-write, read-only, primary, standby or prefer-standby.")
}
