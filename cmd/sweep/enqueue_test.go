package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLineReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	for _, tt := range []struct {
		name, input string
		want        []string // "!" for a line that is too long
	}{
		{"nothing", "", nil},
		{"no line feed at the end", "a\nb", []string{"a\n", "b"}},
		{"BOM", "\ufeffa\n\ufeffb", []string{"a\n", "\ufeffb"}},
		{"CRLF and empty lines", "a\r\n\n\r\nb\n", []string{"a\r\n", "\n", "\r\n", "b\n"}},
		{"long lines", long + "\na\n" + long, []string{"!", "a\n", "!"}},
		{"as long as may be", strings.Repeat("y", 31) + "\nz", []string{strings.Repeat("y", 31) + "\n", "z"}},
	} {
		for _, chunk := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.DataErrReader, iotest.HalfReader} {
			r := &lineReader{in: bufio.NewReaderSize(chunk(strings.NewReader(tt.input)), 16), limit: 32}
			var got []string
			for {
				line, err := r.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if errors.Is(err, errLongLine) {
					line = []byte("!")
				} else if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(line))
				if r.number != len(got) {
					t.Errorf("%s: line %d has the number %d", tt.name, len(got), r.number)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: read %q, want %q", tt.name, got, tt.want)
			}
		}
	}
	broken := &lineReader{in: bufio.NewReader(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(io.ErrClosedPipe))), limit: 32}
	if _, err := broken.next(); err != nil {
		t.Error(err)
	}
	if _, err := broken.next(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("half a line before an error of the reader: %v", err)
	}
}

// A stream is cut at its line feeds, however it comes in: what is short enough comes
// whole, what is not costs its line and no other.
func FuzzLineReader(f *testing.F) {
	for _, input := range []string{"", "a\nb", "\ufeffa\r\n\n", strings.Repeat("x", 40) + "\ny", strings.Repeat("x", 31) + "\n" + strings.Repeat("x", 32)} {
		f.Add([]byte(input), uint8(32), false)
		f.Add([]byte(input), uint8(0), true)
	}
	f.Fuzz(func(t *testing.T, input []byte, limit uint8, slow bool) {
		want := bytes.SplitAfter(input, []byte("\n"))
		if len(want[len(want)-1]) == 0 {
			want = want[:len(want)-1]
		}
		var in io.Reader = bytes.NewReader(input)
		if slow {
			in = iotest.OneByteReader(in)
		}
		r := &lineReader{in: bufio.NewReaderSize(in, 16), limit: int(limit)}
		for i, w := range want {
			got, err := r.next()
			if r.number != i+1 {
				t.Fatalf("line %d of %q has the number %d", i+1, input, r.number)
			}
			if i == 0 && len(w) <= int(limit) {
				w = bytes.TrimPrefix(w, []byte("\ufeff"))
			}
			switch {
			case len(w) > int(limit):
				if !errors.Is(err, errLongLine) {
					t.Fatalf("line %d of %q: %q, %v; it is longer than %d", i+1, input, got, err, limit)
				}
			case err != nil || !bytes.Equal(got, w):
				t.Fatalf("line %d of %q: %q, %v; want %q", i+1, input, got, err, w)
			}
		}
		if got, err := r.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("behind the last line of %q: %q, %v", input, got, err)
		}
	})
}

// Whatever parseLine takes is a valid message, whose payload has the bytes of the
// line, and whose names are those that encoding/json reads.
func FuzzParseLine(f *testing.F) {
	for _, seed := range []string{
		`{"namespace":"n","task_queue":"q","dispatch_key":"k","payload": {"a" :1.0} }`,
		`{"namespace":"n","task_queue":"q","dispatch_key":"k","payload_base64":"AAE=","headers":{"a":"b"},"delay":"7d"}`,
		`{"namespace":"n","task_queue":"q","dispatch_key":"k","payload":null,"delay":1.5,"content_type":"x"}`,
		`{"namespace":"\ud800","task_queue":"q","dispatch_key":"k","payload":1}`,
		`{}`, `[]`, `{"a"`, `null`, "{\"a\":\xff}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseLine(text)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatalf("%q is no JSON: %v", text, err)
		}
		if _, ok := fields["delay"]; !ok && m.Delay != 0 || len(m.Headers) > 0 && fields["headers"] == nil {
			t.Errorf("%q: delay %v, headers %v", text, m.Delay, m.Headers)
		}
		if raw, ok := fields["payload_base64"]; ok {
			var want []byte // encoding/json reads base64 into bytes by itself
			if err := json.Unmarshal(raw, &want); err != nil || !bytes.Equal(m.Payload, want) {
				t.Errorf("%q: payload %q, want %q, %v", text, m.Payload, want, err)
			}
		}
		if raw, ok := fields["payload"]; ok && !bytes.Equal(raw, m.Payload) {
			t.Errorf("%q: payload %q, want %q", text, m.Payload, raw)
		}
		for name, got := range map[string]string{"namespace": m.Namespace, "task_queue": m.TaskQueue, "dispatch_key": m.DispatchKey} {
			var want string
			if err := json.Unmarshal(fields[name], &want); err != nil || got != want {
				t.Errorf("%q: %s is %q, want %q", text, name, got, want)
			}
		}
	})
}

func TestJSONDelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want string // "" for an error
	}{
		{`"30s"`, "30s"},
		{`"7d"`, "168h0m0s"},
		{`90`, "1m30s"},
		{`0.25`, "250ms"},
		{`1e3`, "16m40s"},
		{`-1`, "-1s"},
		{`9e9`, "2500000h0m0s"},
		{`1e10`, ""},
		{`-1e300`, ""},
		{`"1"`, ""},
		{`null`, ""},
		{`true`, ""},
		{`{}`, ""},
	} {
		got, err := jsonDelay(json.RawMessage(tt.text))
		if (err == nil) != (tt.want != "") || (err == nil && fmt.Sprint(got) != tt.want) {
			t.Errorf("jsonDelay(%s) = %v, %v; want %s", tt.text, got, err, tt.want)
		}
	}
}
