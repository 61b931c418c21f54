package driver

import (
	"encoding/json"
	"testing"
)

// Any JSON object that SQL can have written as headers is read, with nothing left out.
func FuzzParseHeaders(f *testing.F) {
	for _, object := range []string{`{}`, `{"a": "b"}`, `{"a": null, "b": 1.50, "c": {"d": [true]}}`, `{"": "\u0000"}`, `{"a": "\ud800"}`, `[]`, `x`} {
		f.Add(object)
	}
	f.Fuzz(func(t *testing.T, object string) {
		got := parseHeaders([]byte(object))
		var want map[string]any
		if json.Unmarshal([]byte(object), &want) != nil {
			if len(got) != 1 || got[""] != object {
				t.Fatalf("parseHeaders(%q) = %q, want it whole", object, got)
			}
			return
		}
		if len(got) != len(want) {
			t.Fatalf("parseHeaders(%q) = %q, want %d", object, got, len(want))
		}
		for name, value := range want {
			text, isText := value.(string)
			if header, ok := got[name]; !ok || isText && header != text || !isText && !json.Valid([]byte(header)) {
				t.Fatalf("parseHeaders(%q)[%q] = %q, want %v", object, name, header, value)
			}
		}
	})
}
