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
