package driver

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// The statements of this package run in sessions of the caller, often in his transactions:
// they change no setting there, and depend on none.
//
// So every name in them is qualified: functions, types and operators too, without which
// the search_path decides what is called, and whoever may create objects in a schema on it
// has them run with the caller's rights. int, bigint, boolean and interval are words of
// the grammar and always mean PostgreSQL's own types. in, between, nullif and "is distinct
// from" look an operator up by the search_path, and are not used.
//
// And results are of types that look the same under every setting of bytea_output,
// DateStyle, IntervalStyle, extra_float_digits and TimeZone, for query modes in which they
// come as text: whole numbers, for instants and spans too (microseconds), texts, and bytea.

// bytea reads a bytea in whatever form it comes. pgx by itself reads text in the form of
// bytea_output = hex alone.
type bytea []byte

// ScanBytes takes the binary form.
func (b *bytea) ScanBytes(v []byte) error {
	*b = slices.Clone(v)
	return nil
}

var errBytea = errors.New("not the text of a bytea")

// ScanText takes the text of either setting of bytea_output. They cannot be mixed up: the
// escape form writes each backslash twice, or before three digits.
func (b *bytea) ScanText(v pgtype.Text) (err error) {
	text, isHex := strings.CutPrefix(v.String, `\x`)
	if !v.Valid {
		*b = nil
		return nil
	}
	if isHex {
		*b, err = hex.DecodeString(text)
		return err
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c != '\\':
			out = append(out, c)
		case strings.HasPrefix(text[i+1:], `\`):
			out = append(out, '\\')
			i++
		default:
			if len(text) < i+4 {
				return errBytea
			}
			n := 0
			for _, digit := range []byte(text[i+1 : i+4]) {
				if digit < '0' || digit > '7' {
					return fmt.Errorf("%w: %q", errBytea, text[i:i+4])
				}
				n = n<<3 | int(digit-'0')
			}
			out = append(out, byte(n))
			i += 3
		}
	}
	*b = out
	return nil
}

// interned reads texts of which few differ, namespaces for example: a string is made once for each.
type interned struct {
	text *string
	seen map[string]string
}

// ScanBytes takes the bytes of the text; they are the same in either format.
func (i interned) ScanBytes(v []byte) error {
	text, ok := i.seen[string(v)]
	if !ok {
		text = string(v)
		i.seen[text] = text
	}
	*i.text = text
	return nil
}

// headersText reads the JSON object that headers are, as text; null for none.
type headersText map[string]string

// ScanBytes takes the bytes of the text.
func (h *headersText) ScanBytes(v []byte) error {
	*h = nil
	if len(v) > 0 {
		*h = parseHeaders(v)
	}
	return nil
}

// bigints writes numbers as the text of a bigint[]: pgx, given a []int64, allocates each one of them.
type bigints []byte

func (b *bigints) add(n int64) {
	*b = strconv.AppendInt(append(*b, ','), n, 10)
}

// text is the array.
func (b bigints) text() string {
	if len(b) == 0 {
		return "{}"
	}
	return "{" + string(b[1:]) + "}"
}

// orNull is an optional text: null where it is empty.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// interval writes a duration as PostgreSQL reads it, whatever its IntervalStyle. It rounds up
// to microseconds: nothing is due, and no lease is over, sooner than was asked for.
func interval(d time.Duration) string {
	us := d / time.Microsecond
	if d > us*time.Microsecond {
		us++
	}
	return strconv.FormatInt(int64(us), 10) + " microseconds"
}

// Between them they make SQL that is an instant as a whole number of microseconds. Infinite instants,
// which no number holds, and others that are no year of four digits, which RFC 3339 and JSON
// have, become the first or the last that is one.
const (
	microsOf = `(extract(epoch from greatest(timestamp with time zone '0001-01-01 00:00:00+00',
              least(timestamp with time zone '9999-12-31 23:59:59.999999+00', `
	endMicros = `))) operator(pg_catalog.*) 1000000)::bigint`
)

// instant reads an instant that comes as a whole number of microseconds.
type instant time.Time

// ScanInt64 takes the number; null is the zero time.
func (i *instant) ScanInt64(v pgtype.Int8) error {
	if *i = (instant{}); v.Valid {
		*i = instant(time.UnixMicro(v.Int64))
	}
	return nil
}

// micros reads a span that comes as a whole number of microseconds.
type micros time.Duration

// ScanInt64 takes the number.
func (d *micros) ScanInt64(v pgtype.Int8) error {
	*d = micros(time.Duration(v.Int64) * time.Microsecond)
	return nil
}
