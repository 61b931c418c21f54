// Package stamp writes instants as all sinks show them to consumers.
package stamp

import "time"

// Text is an instant in UTC, by RFC 3339 with microseconds, all that PostgreSQL keeps. All texts of years
// with four digits are of one length, so that they sort as the instants do.
func Text(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }
