package http

import (
	"maps"
	nethttp "net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/stamp"
	"github.com/fairclaim/fairclaim/driver"
)

// headerOf returns the header fields for m. A header of the message is passed on, unless
// its name is not a valid one, or is that of a field that belongs to the connection or to
// this sink, or it would replace the credentials in the URL (hasUser). Two headers whose
// names differ only in case are both sent.
//
// Of the message's times only CreatedAt is sent: by it a consumer finds out how old a message is, and
// whether it is older than another one. The others change with each attempt and tell of this
// outbox, not of the message.
func headerOf(m driver.Delivery, hasUser bool) nethttp.Header {
	h := nethttp.Header{}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if isToken(name) && !reserved(strings.ToLower(name), hasUser) {
			h.Add(name, cleanValue(m.Headers[name]))
		}
	}
	if h.Get("User-Agent") == "" {
		h.Set("User-Agent", "fairclaim")
	}
	if contentType := cleanValue(m.ContentType); contentType != "" {
		h.Set("Content-Type", contentType)
	}
	h.Set("Idempotency-Key", encodeKey(m.DispatchKey))
	h.Set("Fairclaim-Attempt", strconv.FormatInt(int64(m.Attempt), 10))
	h.Set("Fairclaim-Created-At", stamp.Text(m.CreatedAt))
	return h
}

// reserved reports whether a message must not set the field with this name, given in lower
// case. Names that differ only in punctuation count as the same: servers that turn fields
// into environment variables (CGI, WSGI, Rack, PHP) read Idempotency_Key and
// Idempotency.Key as HTTP_IDEMPOTENCY_KEY too.
func reserved(name string, hasUser bool) bool {
	name = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, name)
	switch name {
	case "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "http2-settings",
		"host", "content-length", "content-type", "idempotency-key":
		return true
	case "authorization":
		return hasUser
	}
	return strings.HasPrefix(name, "proxy-") || strings.HasPrefix(name, "fairclaim-")
}

// isToken reports whether s can be the name of a field (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// cleanValue makes s fit to be the value of a field: control characters become spaces (a
// line break would begin another field). Bytes beyond ASCII stay.
func cleanValue(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			b[i] = ' '
		}
	}
	return strings.Trim(string(b), " \t")
}

// encodeKey writes a dispatch key as the value of a field, two keys never in the same way:
// '%' and every byte that is not visible ASCII become %XX. Most keys stay as they are.
func encodeKey(key string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(key); i++ {
		if c := key[i]; c > ' ' && c < 0x7f && c != '%' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
