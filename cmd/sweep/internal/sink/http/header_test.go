package http

import (
	nethttp "net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

func TestHeaderOf(t *testing.T) {
	for _, c := range []struct {
		name, field, value string
		hasUser            bool
		want               string // what the request has under that name; "" is nothing
	}{
		{"passed on", "X-GitHub-Event", "push", false, "push"},
		{"lower case", "x-github-event", "push", false, "push"},
		{"empty value", "X-Empty", "", false, ""},
		{"own user agent", "User-Agent", "acme/1", false, "acme/1"},
		{"own credentials", "Authorization", "Bearer x", false, "Bearer x"},
		{"encoded payload", "Content-Encoding", "gzip", false, "gzip"},
		{"beyond ASCII", "X-Name", "é🦉", false, "é🦉"},
		{"line break in the value", "X-A", "a\r\nX-B: c", false, "a  X-B: c"},
		{"NUL and friends in the value", "X-A", "\x00a\x0b\x7fb\t c\n", false, "a  b\t c"},
		{"the URL's credentials win", "authorization", "Bearer x", true, ""},
		{"idempotency key", "idempotency-key", "forged", false, "key"},
		{"content type", "CONTENT-TYPE", "text/html", false, "application/json"},
		{"attempt", "fairclaim-attempt", "99", false, "3"},
		{"created at", "fairclaim-created-at", "forged", false, "2026-01-02T03:04:05.678901Z"},
		{"created at to CGI", "fairclaim_created_at", "forged", false, ""},
		{"later fields of ours", "Fairclaim-Anything", "x", false, ""},
		{"host", "Host", "evil", false, ""},
		{"length", "Content-Length", "1", false, ""},
		{"coding", "Transfer-Encoding", "chunked", false, ""},
		{"connection", "Connection", "close", false, ""},
		{"keep-alive", "Keep-Alive", "1", false, ""},
		{"upgrade", "Upgrade", "h2c", false, ""},
		{"trailer", "Trailer", "X", false, ""},
		{"te", "TE", "trailers", false, ""},
		{"expect", "Expect", "100-continue", false, ""},
		{"proxy credentials", "Proxy-Authorization", "x", false, ""},
		{"idempotency key to CGI", "Idempotency_Key", "forged", false, ""},
		{"idempotency key to old CGI", "idempotency.key", "forged", false, ""},
		{"content type to CGI", "Content_Type", "text/html", false, ""},
		{"length to CGI", "content_Length", "1", false, ""},
		{"attempt to CGI", "FAIRCLAIM_ATTEMPT", "99", false, ""},
		{"proxy to CGI", "Proxy_Authorization", "x", false, ""},
		{"coding to CGI", "Transfer~Encoding", "chunked", false, ""},
		{"underscores of its own", "X_Request_Id", "7", false, "7"},
		{"h2 settings", "HTTP2-Settings", "x", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := headerOf(driver.Delivery{
				DispatchKey: "key", Attempt: 3, ContentType: "application/json",
				CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC),
				Headers:   map[string]string{c.field: c.value},
			}, c.hasUser)
			if got := strings.Join(h.Values(c.field), ", "); got != c.want {
				t.Errorf("%s: %q, want %q", c.field, got, c.want)
			}
		})
	}
}

func TestHeaderNamesThatAreNone(t *testing.T) {
	for _, name := range []string{
		"", " ", "X A", "X:A", "X\r\nY", "X\x00", "ü", "X-A:", " X", "Host ", "Content-Length\t", "Idempotency-Key:", "\"X\"", "X/Y", "X\x7f",
	} {
		h := headerOf(driver.Delivery{Headers: map[string]string{name: "v"}}, false)
		for field := range h {
			switch field {
			case "User-Agent", "Idempotency-Key", "Fairclaim-Attempt", "Fairclaim-Created-At":
			default:
				t.Errorf("%q got through as %q", name, field)
			}
		}
	}
}

func TestHeadersThatDifferInCase(t *testing.T) {
	for range 20 { // maps have no order
		h := headerOf(driver.Delivery{Headers: map[string]string{"x-a": "2", "X-A": "1"}}, false)
		if got := strings.Join(h["X-A"], ","); got != "1,2" {
			t.Fatalf("X-A is %q", got)
		}
	}
}

func TestContentType(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"application/json", "application/json"},
		{"text/plain\r\nX-Evil: 1", "text/plain  X-Evil: 1"},
		{"", ""},
		{"\n", ""},
	} {
		h := headerOf(driver.Delivery{ContentType: c.in}, false)
		if got := h.Get("Content-Type"); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestEncodeKey(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{"order/1234:retry-1", "order/1234:retry-1"},
		{"a b", "a%20b"},
		{"a%20b", "a%2520b"},
		{" a ", "%20a%20"},
		{"100%", "100%25"},
		{"a\r\nb\x00\x7f", "a%0D%0Ab%00%7F"},
		{"caf\u00e9", "caf%C3%A9"},
		{"cafe\u0301", "cafe%CC%81"},
		{"\xff", "%FF"},
		{`"quoted", key`, `"quoted",%20key`},
	} {
		if got := encodeKey(c.key); got != c.want {
			t.Errorf("encodeKey(%q) = %q, want %q", c.key, got, c.want)
		}
	}
}

// INV-3: two keys never look the same to a consumer.
func FuzzEncodeKey(f *testing.F) {
	for _, name := range sinktest.Awkward() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, key string) {
		encoded := encodeKey(key)
		if got, err := url.PathUnescape(encoded); err != nil || got != key {
			t.Fatalf("%q became %q, which reads as %q, %v", key, encoded, got, err)
		}
		if cleanValue(encoded) != encoded {
			t.Fatalf("%q became %q, which no header field can hold", key, encoded)
		}
	})
}

// Nothing that a message holds makes a header that net/http refuses to send.
func FuzzHeaderOf(f *testing.F) {
	for _, name := range sinktest.Awkward() {
		f.Add(name, name, name)
	}
	f.Fuzz(func(t *testing.T, field, value, contentType string) {
		h := headerOf(driver.Delivery{ContentType: contentType, Headers: map[string]string{field: value}}, true)
		if h.Get("Authorization") != "" {
			t.Fatal("the URL's credentials are replaced")
		}
		var b strings.Builder
		if err := h.Write(&b); err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, values := range h {
			want += len(values)
		}
		if got := strings.Count(b.String(), "\n"); got != want {
			t.Fatalf("%d lines for %d fields: %q", got, want, b.String())
		}
		for name := range h {
			if nethttp.CanonicalHeaderKey(name) != name || !isToken(name) {
				t.Fatalf("field %q", name)
			}
		}
	})
}
