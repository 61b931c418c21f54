package http

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fairclaim/fairclaim/driver"
)

// template is a URL with placeholders in its path and its query.
type template struct {
	origin url.URL       // scheme and host, nothing else
	user   *url.Userinfo // nil if the URL has none
	path   []part
	query  []part
}

// part is a piece of literal URL text, or a placeholder if field is not nil.
type part struct {
	literal string
	field   func(driver.Delivery) string
}

// fieldOf returns what a placeholder stands for, nil for an unknown one.
func fieldOf(name string) func(driver.Delivery) string {
	switch name {
	case "namespace":
		return func(m driver.Delivery) string { return m.Namespace }
	case "task_queue":
		return func(m driver.Delivery) string { return m.TaskQueue }
	}
	return nil
}

// parseTemplate parses a URL. Its errors repeat nothing of user, password, path and query,
// which may all be secrets.
//
// Placeholders may be in the path and in the query only: the operator chooses the server
// that gets the messages, and never the tenant.
func parseTemplate(raw string) (*template, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "http" && scheme != "https" {
		return nil, errors.New("a URL begins with http:// or https://")
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("the URL has a '#'; fragments are never sent, and in a password # is written %23")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.ContainsAny(authority, "{}") {
		return nil, errors.New("the URL has a placeholder in its host; placeholders stand in path and query only")
	}
	base, err := url.Parse(scheme + "://" + authority)
	if err != nil || !validHost(base.Hostname()) || base.Path != "" || !validPort(base) {
		return nil, errors.New("the URL's host or port is not valid (not shown: it may hold a password); " +
			"in user and password write special characters as %XX")
	}
	t := &template{origin: url.URL{Scheme: scheme, Host: base.Host}, user: base.User}
	if t.path, err = parseParts(path, "/"); err != nil {
		return nil, fmt.Errorf("the URL's path %w", err)
	}
	if t.query, err = parseParts(query, "/?[]"); err != nil {
		return nil, fmt.Errorf("the URL's query %w", err)
	}
	if _, err := t.render(driver.Delivery{Namespace: "n", TaskQueue: "q"}); err != nil {
		return nil, err
	}
	return t, nil
}

// validHost accepts names, also international ones, and addresses. [url.Parse] accepts some
// hosts that it cannot write again.
func validHost(host string) bool {
	for _, r := range host {
		switch {
		case r == utf8.RuneError:
			return false
		case unicode.IsLetter(r), unicode.IsMark(r), unicode.IsDigit(r), strings.ContainsRune("-._:", r):
		case r == '%' && strings.Contains(host, ":"): // an IPv6 zone
		default:
			return false
		}
	}
	return host != ""
}

func validPort(u *url.URL) bool {
	if !strings.HasSuffix(u.Host, ":"+u.Port()) { // no colon
		return true
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// parseParts splits text at its placeholders. The rest of the text must be as it is sent:
// characters of pchar in RFC 3986, the characters in also, and %XX.
func parseParts(text, also string) ([]part, error) {
	var parts []part
	for text != "" {
		literal, rest, found := strings.Cut(text, "{")
		if err := checkLiteral(literal, also); err != nil {
			return nil, err
		}
		if literal != "" {
			parts = append(parts, part{literal: literal})
		}
		if !found {
			break
		}
		name, rest, closed := strings.Cut(rest, "}")
		field := fieldOf(name)
		if !closed || field == nil {
			return nil, errors.New("has a '{' that begins neither {namespace} nor {task_queue}; write any other '{' as %7B")
		}
		parts = append(parts, part{field: field})
		text = rest
	}
	return parts, nil
}

func checkLiteral(s, also string) error {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-._~!$&'()*+,;=:@"+also, c) >= 0:
		case c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			i += 2
		default:
			return fmt.Errorf("holds the byte %q; write it as %%%02X", c, c)
		}
	}
	return nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// render fills in the placeholders: each value becomes part of one path segment, or of one
// value of the query, whatever characters it has. An error is final.
//
// Servers and proxies resolve the path segments "." and "..", many of them after they have
// decoded %2E and %2F. No escaping makes a value with such a segment safe, so it is refused.
// In a query it is harmless.
func (t *template) render(m driver.Delivery) (*url.URL, error) {
	u := t.origin
	u.RawPath = join(t.path, m, url.PathEscape)
	u.RawQuery = join(t.query, m, url.QueryEscape)
	var err error
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, errors.New("the URL's path is not valid")
	}
	segments := strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' || r == '\\' })
	for _, s := range segments {
		if s, _, _ = strings.Cut(s, ";"); s == "." || s == ".." {
			return nil, errors.New(`the URL's path would have a "." or ".." segment, which servers resolve; ` +
				"put the placeholder into the query")
		}
	}
	return &u, nil
}

func join(parts []part, m driver.Delivery, escape func(string) string) string {
	var b strings.Builder
	for _, p := range parts {
		if p.field == nil {
			b.WriteString(p.literal)
		} else {
			b.WriteString(escape(p.field(m)))
		}
	}
	return b.String()
}
