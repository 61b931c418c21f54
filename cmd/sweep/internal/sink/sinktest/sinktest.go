// Package sinktest holds what the tests of the sinks share.
package sinktest

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// What becomes of a message, as node.Sink's answer says.
const (
	Done        = "done"
	Failed      = "failed"           // node.Permanent
	NotBefore   = "retry not before" // node.RetryNotBefore
	RetryAfter  = "retry after"      // node.RetryAfter
	Undelivered = "undelivered"      // node.Undelivered
	Closed      = "closed"           // node.Undelivered and node.ErrSinkClosed
	Retry       = "retry"
	Unreachable = "unreachable" // node.DestinationFailed
	Broken      = "broken"      // node.DestinationBroken
	Gone        = "gone"        // node.DestinationGone
	Busy        = "busy"        // node.Hold
)

// Outcome tells a Sink's answers apart.
func Outcome(err error) string {
	probe := errors.New("probe")
	switch {
	case err == nil:
		return Done
	case find(err, node.Undelivered(probe)) != nil && errors.Is(err, node.ErrSinkClosed):
		return Closed
	case errors.Is(err, node.ErrSinkClosed):
		return "closed, but charged"
	case find(err, node.Undelivered(probe)) != nil:
		return Undelivered
	case find(err, node.Hold(probe, 0)) != nil:
		return reflect.ValueOf(find(err, node.Hold(probe, 0))).Elem().FieldByName("trouble").String()
	case find(err, node.Permanent(probe)) != nil:
		return Failed
	case find(err, node.RetryAfter(probe, 0)) != nil:
		if reflect.ValueOf(find(err, node.RetryAfter(probe, 0))).Elem().FieldByName("least").Bool() {
			return NotBefore
		}
		return RetryAfter
	}
	return Retry
}

// Delay is the delay of a node.RetryAfter, node.RetryNotBefore or node.Hold, -1 for every other answer.
func Delay(err error) time.Duration {
	if found := find(err, node.Hold(errors.New("probe"), 0)); found != nil && Outcome(err) == Busy {
		return time.Duration(reflect.ValueOf(found).Elem().FieldByName("hold").Int())
	}
	found := find(err, node.RetryAfter(errors.New("probe"), 0))
	if found == nil {
		return -1
	}
	return time.Duration(reflect.ValueOf(found).Elem().FieldByName("delay").Int())
}

// find returns the first error in err's chain of the same type as like.
func find(err, like error) error {
	for ; err != nil; err = errors.Unwrap(err) {
		if reflect.TypeOf(err) == reflect.TypeOf(like) {
			return err
		}
	}
	return nil
}

// Awkward are names of tenants and queues that go wrong where text is pasted
// together.
func Awkward() []string {
	return []string{
		"plain", "with space", `back\slash`, `quo"te'd`, "semi;colon&and|pipe", "$HOME $(id) `id`", "%2e%2e%2f", "100%",
		"a/b", "/", "..", ".", "../../etc/passwd", `..\..\win.ini`, "a/../b", "...", "?query=1", "#fragment", "x@host:80",
		"{namespace}", "{task_queue}", "tab\there", "line\nfeed", "cr\r\nX-Injected: 1", "🦉🦉", "שלום", "\u202eevil",
		"caf\u00e9", "cafe\u0301", "-rf", "--", "a=b", "+plus", "\x01\x1b[31m\x7f", "*", "~root",
	}
}

// Webhooks returns real webhook payloads as claimed messages. The file is
// $FAIRCLAIM_WEBHOOKS, or lies beside the repository; without it the test is
// skipped.
func Webhooks(t testing.TB) []driver.Delivery {
	t.Helper()
	path := os.Getenv("FAIRCLAIM_WEBHOOKS")
	if path == "" {
		path = filepath.Join(root(t), "..", "shared", "data", "github-webhooks.ndjson")
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("no webhook data: set FAIRCLAIM_WEBHOOKS to an NDJSON file of messages (looked for %s)", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var messages []driver.Delivery
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var in struct {
			Namespace   string            `json:"namespace"`
			TaskQueue   string            `json:"task_queue"`
			DispatchKey string            `json:"dispatch_key"`
			ContentType string            `json:"content_type"`
			Headers     map[string]string `json:"headers"`
			Payload     json.RawMessage   `json:"payload"`
		}
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			t.Fatalf("%s: line %d: %v", path, len(messages)+1, err)
		}
		messages = append(messages, driver.Delivery{
			ID: int64(len(messages) + 1), Namespace: in.Namespace, TaskQueue: in.TaskQueue, DispatchKey: in.DispatchKey,
			Attempt: 1, ContentType: in.ContentType, Headers: in.Headers, Payload: in.Payload,
		})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return messages
}

// root is the directory of go.mod.
func root(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = parent
	}
}
