package http

import (
	nethttp "net/http"
	"strings"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	const none = time.Duration(-1)
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	for _, c := range []struct {
		name, value, date string
		want              time.Duration // none: the server has not said
	}{
		{"none", "", date, none},
		{"seconds", "120", "", 2 * time.Minute},
		{"one second", "1", "", time.Second},
		{"white space around", " \t7 ", "", 7 * time.Second},
		{"leading zeros", "007", "", 7 * time.Second},
		{"at once", "0", "", 0},
		{"the cap", "3600", "", time.Hour},
		{"beyond the cap", "3601", "", time.Hour},
		{"a year", "31536000", "", time.Hour},
		{"more than fits", "99999999999999999999999999", "", time.Hour},
		{"would overflow a Duration", "9223372037", "", time.Hour},
		{"negative", "-5", "", none},
		{"signed", "+5", "", none},
		{"fraction", "1.5", "", none},
		{"exponent", "1e3", "", none},
		{"hexadecimal", "0x10", "", none},
		{"unit", "10s", "", none},
		{"other digits", "١٢", "", none},
		{"list", "5, 10", "", none},
		{"words", "soon", date, none},
		{"date", "Sun, 06 Nov 1994 08:51:07 GMT", date, 90 * time.Second},
		{"date in RFC 850 form", "Sunday, 06-Nov-94 08:50:37 GMT", date, time.Minute},
		{"date in C form", "Sun Nov  6 08:50:37 1994", date, time.Minute},
		{"date beyond the cap", "Mon, 06 Nov 1995 08:49:37 GMT", date, time.Hour},
		{"date at the end of time", "Fri, 31 Dec 9999 23:59:59 GMT", date, time.Hour},
		{"date far beyond a Duration", "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", time.Hour},
		{"date now", date, date, 0},
		{"date past", "Sun, 06 Nov 1994 08:49:36 GMT", date, 0},
		{"date long past", "Thu, 01 Jan 1970 00:00:00 GMT", date, 0},
		{"date without a Date", "Sun, 06 Nov 2094 08:49:37 GMT", "", none},
		{"date beside a bad Date", "Sun, 06 Nov 2094 08:49:37 GMT", "yesterday", none},
		{"date in another zone", "Sun, 06 Nov 1994 08:51:07 PST", date, none},
		{"ISO date", "1994-11-06T08:51:07Z", date, none},
		{"date that is none", "Sun, 31 Feb 1994 08:51:07 GMT", date, none},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := nethttp.Header{}
			h.Set("Retry-After", c.value)
			if c.date != "" {
				h.Set("Date", c.date)
			}
			got, ok := retryAfter(h)
			if ok != (c.want != none) || ok && got != c.want {
				t.Errorf("retryAfter = %v, %v, want %v", got, ok, c.want)
			}
		})
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{
		"120", "0", "-1", "9223372036854775808", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Fri, 31 Dec 9999 23:59:59 GMT",
	} {
		f.Add(value, "Sun, 06 Nov 1994 08:49:36 GMT")
		f.Add("Sun, 06 Nov 1994 08:49:37 GMT", value)
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		got, ok := retryAfter(nethttp.Header{"Retry-After": {value}, "Date": {date}})
		if !ok && got != 0 || got < 0 || got > maxRetryAfter {
			t.Fatalf("retryAfter(%q, %q) = %v, %v", value, date, got, ok)
		}
		if !ok && value != "" && strings.Trim(value, "0123456789") == "" {
			t.Fatalf("%q seconds are ignored", value)
		}
	})
}
