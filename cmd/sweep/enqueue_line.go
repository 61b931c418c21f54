package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/when"
	"github.com/fairclaim/fairclaim/driver"
)

// parseLine reads one line of input. It reads the object field by field, because
// encoding/json accepts what is a mistake here: a name in other letters (Payload), a name
// that is there twice, text that is not Unicode.
func parseLine(text []byte) (m driver.Message, err error) {
	if !utf8.Valid(text) {
		return m, errors.New("not valid UTF-8; write other bytes as payload_base64")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return m, orSyntax(err, "not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return m, orSyntax(err, "")
		}
		name, _ := t.(string)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return m, orSyntax(err, "")
		}
		if seen[name] {
			return m, fmt.Errorf("field %q is there twice", name)
		}
		seen[name] = true
		if err := setField(&m, name, value); err != nil {
			return m, err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return m, orSyntax(err, "")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return m, errors.New("there is more on the line after the object")
	}
	return m, complete(&m, seen)
}

func setField(m *driver.Message, name string, value json.RawMessage) (err error) {
	switch name {
	case "namespace":
		m.Namespace, err = jsonText(value)
	case "task_queue":
		m.TaskQueue, err = jsonText(value)
	case "dispatch_key":
		m.DispatchKey, err = jsonText(value)
	case "payload":
		m.Payload = value
	case "payload_base64":
		m.Payload, err = jsonBase64(value)
	case "content_type":
		m.ContentType, err = jsonText(value)
	case "headers":
		m.Headers, err = jsonHeaders(value)
	case "delay":
		m.Delay, err = jsonDelay(value)
	case "id", "shard", "attempt", "created_at", "due_at", "claimed_at": // written by the sink stdout; the outbox gives new ones
	default:
		return fmt.Errorf("unknown field %q", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// complete checks the fields together, and sets the content type of payload_base64.
func complete(m *driver.Message, seen map[string]bool) error {
	for _, name := range []string{"namespace", "task_queue", "dispatch_key"} {
		if !seen[name] {
			return fmt.Errorf("no %s", name)
		}
	}
	switch {
	case seen["payload"] && seen["payload_base64"]:
		return errors.New("both payload and payload_base64")
	case !seen["payload"] && !seen["payload_base64"]:
		return errors.New("no payload and no payload_base64")
	case seen["payload_base64"] && m.ContentType == "":
		m.ContentType = "application/octet-stream"
	}
	return m.Validate()
}

func orSyntax(err error, otherwise string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("not valid JSON: the line ends in the middle")
	}
	var syntax *json.SyntaxError
	if err != nil && (otherwise == "" || errors.As(err, &syntax)) {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	return errors.New(otherwise)
}

// jsonText reads a string, and refuses one with half a surrogate pair, which
// encoding/json would replace.
func jsonText(value json.RawMessage) (string, error) {
	if len(value) == 0 || value[0] != '"' {
		return "", errors.New("not a string")
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return "", errors.New("not a string")
	}
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(value, utf8.RuneError) &&
		!bytes.Contains(bytes.ToLower(value), []byte(`\ufffd`)) {
		return "", errors.New("half of a surrogate pair, which is no character")
	}
	return s, nil
}

func jsonBase64(value json.RawMessage) ([]byte, error) {
	s, err := jsonText(value)
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("not base64: %w", err)
	}
	return b, nil
}

func jsonHeaders(value json.RawMessage) (map[string]string, error) {
	var fields map[string]json.RawMessage
	if value[0] != '{' {
		return nil, errors.New("not an object of strings")
	}
	if err := json.Unmarshal(value, &fields); err != nil {
		return nil, errors.New("not an object of strings")
	}
	headers := make(map[string]string, len(fields))
	for name, value := range fields {
		s, err := jsonText(value)
		if err != nil {
			return nil, fmt.Errorf("%q is %w", name, err)
		}
		headers[name] = s
	}
	return headers, nil
}

// jsonDelay reads "1h30m", "7d", or seconds.
func jsonDelay(value json.RawMessage) (time.Duration, error) {
	if value[0] == '"' {
		s, err := jsonText(value)
		if err != nil {
			return 0, err
		}
		return when.ParseDuration(s)
	}
	seconds, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return 0, errors.New(`neither a text such as "30s" nor a number of seconds`)
	}
	ns := seconds * float64(time.Second)
	if math.Abs(ns) >= math.MaxInt64 {
		return 0, fmt.Errorf("%s seconds are too many", value)
	}
	return time.Duration(ns), nil
}
