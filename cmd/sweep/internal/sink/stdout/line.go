package stdout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/stamp"
	"github.com/fairclaim/fairclaim/driver"
)

// maxNesting is how deep encoding/json reads nested arrays and objects.
const maxNesting = 10_000

// line is the NDJSON form of a message. Exactly one of Payload and PayloadBase64
// is set: a payload of no bytes is the empty string in base64.
type line struct {
	ID            int64             `json:"id"`
	Namespace     string            `json:"namespace"`
	TaskQueue     string            `json:"task_queue"`
	DispatchKey   string            `json:"dispatch_key"`
	Shard         int32             `json:"shard"`
	Attempt       int32             `json:"attempt"`
	CreatedAt     string            `json:"created_at"`
	DueAt         string            `json:"due_at"`
	ClaimedAt     string            `json:"claimed_at"`
	ContentType   string            `json:"content_type"`
	Headers       map[string]string `json:"headers"`
	PayloadBase64 *[]byte           `json:"payload_base64,omitempty"`
}

// appendLine appends m as one line of JSON, line feed included, to dst.
//
// A payload of JSON without line breaks is copied byte for byte: numbers keep their digits,
// objects the order of their keys and duplicate keys. From one with line breaks, which JSON
// has between tokens only, the white space between tokens is removed. Any other payload is
// written in base64.
func appendLine(dst []byte, m driver.Delivery) ([]byte, error) {
	l := line{
		ID: m.ID, Namespace: m.Namespace, TaskQueue: m.TaskQueue, DispatchKey: m.DispatchKey,
		Shard: m.Shard, Attempt: m.Attempt,
		CreatedAt: stamp.Text(m.CreatedAt), DueAt: stamp.Text(m.DueAt), ClaimedAt: stamp.Text(m.ClaimedAt),
		ContentType: m.ContentType, Headers: m.Headers,
	}
	if l.Headers == nil {
		l.Headers = map[string]string{}
	}
	raw := isJSON(m.ContentType, m.Payload)
	if !raw {
		payload := m.Payload
		if payload == nil {
			payload = []byte{} // nil would be null, which reads back as no payload at all
		}
		l.PayloadBase64 = &payload
	}

	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(l); err != nil {
		return nil, fmt.Errorf("encode message %d: %w", m.ID, err)
	}
	if !raw {
		return buf.Bytes(), nil
	}
	buf.Truncate(buf.Len() - len("}\n"))
	buf.WriteString(`,"payload":`)
	if bytes.ContainsAny(m.Payload, "\r\n") {
		if err := json.Compact(buf, m.Payload); err != nil {
			return nil, fmt.Errorf("compact payload of message %d: %w", m.ID, err)
		}
	} else {
		buf.Write(m.Payload)
	}
	buf.WriteString("}\n")
	return buf.Bytes(), nil
}

// isJSON reports whether the content type says JSON, and the payload can be a value inside
// a line. Invalid UTF-8 is refused: encoding/json accepts it in strings, most other readers
// do not.
func isJSON(contentType string, payload []byte) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil && mediaType == "" {
		return false
	}
	if mediaType != "application/json" && !strings.HasSuffix(mediaType, "+json") {
		return false
	}
	return utf8.Valid(payload) && json.Valid(payload) && !fillsNesting(payload)
}

// fillsNesting reports whether valid JSON is nested as deep as encoding/json can read: one
// level deeper, inside the line, it could not be read back.
func fillsNesting(payload []byte) bool {
	if bytes.Count(payload, []byte("["))+bytes.Count(payload, []byte("{")) < maxNesting {
		return false
	}
	return !json.Valid(slices.Concat([]byte("["), payload, []byte("]")))
}
