package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/driver"
)

type enqueueSummary struct{ Lines, Enqueued, Duplicates, Bad int64 }

// INV-3: the real webhooks go in once; a second time all are duplicates. Each payload
// is stored byte for byte as it stands in the file.
func TestCLIEnqueueWebhooks(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	file := webhookFile(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	n := int64(len(lines))
	if got, want := sweep(t, db.DSN, "enqueue", file), fmt.Sprintf("enqueued %d, duplicates 0, bad 0\n", n); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	got := fromJSON[enqueueSummary](t, sweepWith(t, db.DSN, string(text), "enqueue", "--json"))
	if want := (enqueueSummary{Lines: n, Duplicates: n}); got != want {
		t.Errorf("the second time: %+v, want %+v", got, want)
	}
	for i, line := range lines {
		var in struct {
			Namespace   string            `json:"namespace"`
			TaskQueue   string            `json:"task_queue"`
			DispatchKey string            `json:"dispatch_key"`
			Payload     json.RawMessage   `json:"payload"`
			ContentType string            `json:"content_type"`
			Headers     map[string]string `json:"headers"`
		}
		if err := json.Unmarshal(line, &in); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(line, in.Payload) {
			t.Fatalf("line %d: the test does not find the payload's bytes", i+1)
		}
		wantStored(t, db.Pool, driver.Message{
			Namespace: in.Namespace, TaskQueue: in.TaskQueue, DispatchKey: in.DispatchKey,
			Payload: in.Payload, ContentType: in.ContentType, Headers: in.Headers,
		})
	}
}

const goodLine = `{"namespace":"n","task_queue":"q","dispatch_key":%q,"payload":1}`

// Each bad line is named by file and number and stops nothing else; the rest is
// written.
func TestCLIEnqueueBadLines(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "other", "q", "taken")
	line := func(more string) string {
		return `{"namespace":"n","task_queue":"q","dispatch_key":"k",` + more + `}`
	}
	bad := []struct{ text, want string }{
		{`nonsense`, "not valid JSON"},
		{`[]`, "not a JSON object"},
		{`null`, "not a JSON object"},
		{`"text"`, "not a JSON object"},
		{`{}`, "no namespace"},
		{`{"namespace":"n","dispatch_key":"k","payload":1}`, "no task_queue"},
		{`{"namespace":"n","task_queue":"q","payload":1}`, "no dispatch_key"},
		{line(`"content_type":"text/plain"`), "no payload and no payload_base64"},
		{line(`"payload":1,"payload_base64":""`), "both payload and payload_base64"},
		{line(`"payload":1,"payload":2`), `\"payload\" is there twice`},
		{line(`"Payload":1`), `unknown field \"Payload\"`},
		{line(`"payload":1,"tenant":"x"`), `unknown field \"tenant\"`},
		{line(`"payload":1`) + ` {}`, "more on the line"},
		{line(`"payload":1,`), "not valid JSON"},
		{`{"namespace":"n"`, "the line ends in the middle"},
		{`{"namespace":7,"task_queue":"q","dispatch_key":"k","payload":1}`, "namespace: not a string"},
		{`{"namespace":null,"task_queue":"q","dispatch_key":"k","payload":1}`, "namespace: not a string"},
		{`{"namespace":"","task_queue":"q","dispatch_key":"k","payload":1}`, "namespace has 0 bytes"},
		{`{"namespace":"` + strings.Repeat("x", 513) + `","task_queue":"q","dispatch_key":"k","payload":1}`, "namespace has 513 bytes"},
		{`{"namespace":"a\u0000b","task_queue":"q","dispatch_key":"k","payload":1}`, "namespace has a NUL byte"},
		{`{"namespace":"\ud800","task_queue":"q","dispatch_key":"k","payload":1}`, "half of a surrogate pair"},
		{"{\"namespace\":\"caf\xe9\",\"task_queue\":\"q\",\"dispatch_key\":\"k\",\"payload\":1}", "not valid UTF-8"},
		{line(`"payload_base64":"???"`), "payload_base64: not base64"},
		{line(`"payload_base64":7`), "payload_base64: not a string"},
		{line(`"payload":1,"headers":[]`), "headers: not an object of strings"},
		{line(`"payload":1,"headers":{"X":1}`), `headers: \"X\" is not a string`},
		{line(`"payload":1,"headers":{"X":"\u0000"}`), "has a NUL byte"},
		{line(`"payload":1,"delay":"soon"`), "delay: "},
		{line(`"payload":1,"delay":true`), "delay: "},
		{line(`"payload":1,"delay":1e300`), "too many"},
		{line(`"payload":1,"content_type":"` + strings.Repeat("x", 257) + `"`), "content_type has 257 bytes"},
		{`{"namespace":"n","task_queue":"q","dispatch_key":"taken","payload":1}`, "belongs to another namespace"},
		{line(`"payload":"` + strings.Repeat("x", 1<<20) + `"`), "1048578 bytes, the limit is 1048576"},
		{line(`"payload":"` + strings.Repeat("x", 3<<20) + `"`), "line too long"},
	}
	var input strings.Builder
	for i, b := range bad {
		fmt.Fprintf(&input, goodLine+"\n%s\n", fmt.Sprint("good", i), b.text)
	}
	file := filepath.Join(t.TempDir(), "in.ndjson")
	if err := os.WriteFile(file, []byte(input.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"enqueue", file, "--json"}
	got := sweepFails(t, db.DSN, 1, args, fmt.Sprintf("sweep: %d of %d lines are bad", len(bad), 2*len(bad)))
	n := int64(len(bad))
	if sum := fromJSON[enqueueSummary](t, got.stdout); sum != (enqueueSummary{Lines: 2 * n, Enqueued: n, Bad: n}) {
		t.Errorf("summary %+v", sum)
	}
	reports := map[string]string{}
	for report := range strings.Lines(got.stderr) {
		_, rest, _ := strings.Cut(report, "at="+file+":")
		number, text, _ := strings.Cut(rest, " ")
		reports[number] = text
	}
	for i, b := range bad {
		if report := reports[fmt.Sprint(2*i+2)]; !strings.Contains(report, b.want) {
			t.Errorf("line %d is reported as %q, want %q", 2*i+2, report, b.want)
		}
	}
	if got := one[int64](t, db.Pool, `select count(*) from outbox.message where dispatch_key like 'good%'`); got != n {
		t.Errorf("%d of %d good lines were written", got, n)
	}
}

// Forms of lines and files that are good.
func TestCLIEnqueueForms(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	m := func(key string) driver.Message {
		return driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: key, Payload: []byte("1")}
	}
	odd := m("odd \u202e\"\\\t'é")
	odd.Namespace, odd.TaskQueue = "שלום\n", "🦉"
	bytesMessage, labelled, spaced, headed := m("base64"), m("labelled"), m("spaced"), m("headed")
	bytesMessage.Payload, bytesMessage.ContentType = []byte{0, 1, 255}, "application/octet-stream"
	labelled.Payload, labelled.ContentType = []byte{}, "text/plain"
	spaced.Payload = []byte(`{ "b":1.0,"a" :[ ],"b":"\u00e9\/" }`)
	headed.Headers = map[string]string{"X": "é", "": ""}
	null := m("null")
	null.Payload = []byte("null")
	tests := []struct {
		name, input string
		want        []driver.Message
	}{
		{"nothing", "", nil},
		{"blank lines", "\n \n\r\n", nil},
		{"BOM alone", "\ufeff", nil},
		{"BOM, CRLF, no last line end", "\ufeff" + fmt.Sprintf(goodLine, "a") + "\r\n\r\n" + fmt.Sprintf(goodLine, "b"), []driver.Message{m("a"), m("b")}},
		{"white space around", "\t " + fmt.Sprintf(goodLine, "c") + " \n", []driver.Message{m("c")}},
		{"base64", `{"payload_base64":"AAH/","dispatch_key":"base64","task_queue":"q","namespace":"n"}`, []driver.Message{bytesMessage}},
		{"empty base64, content type", `{"content_type":"text/plain","payload_base64":"","dispatch_key":"labelled","task_queue":"q","namespace":"n"}`, []driver.Message{labelled}},
		{"bytes kept", `{"namespace":"n","task_queue":"q","dispatch_key":"spaced","payload": ` + string(spaced.Payload) + ` }`, []driver.Message{spaced}},
		{"null payload", `{"namespace":"n","task_queue":"q","dispatch_key":"null","payload":null}`, []driver.Message{null}},
		{"headers", `{"namespace":"n","task_queue":"q","dispatch_key":"headed","payload":1,"headers":{"X":"\u00e9","":""}}`, []driver.Message{headed}},
		{"names", `{"namespace":"שלום\n","task_queue":"\ud83e\udd89","dispatch_key":"odd \u202e\"\\\t'é","payload":1}`, []driver.Message{odd}},
	}
	for _, tt := range tests {
		got := fromJSON[enqueueSummary](t, sweepWith(t, db.DSN, tt.input, "enqueue", "--json", "-"))
		n := int64(len(tt.want))
		if got != (enqueueSummary{Lines: n, Enqueued: n}) {
			t.Errorf("%s: %+v", tt.name, got)
		}
		for _, want := range tt.want {
			wantStored(t, db.Pool, want)
		}
	}

	var delays strings.Builder
	want := []int64{0, 30, 5400, 7 * 86400, 36*3600 + 1, 90, 1, 0, 0}
	for i, delay := range []string{`"0"`, `"30s"`, `"1h30m"`, `"7d"`, `"1d12h1s"`, `90`, `1.5`, `-5`, `"-1h"`} {
		fmt.Fprintf(&delays, `{"namespace":"d","task_queue":"q","dispatch_key":"d%d","payload":1,"delay":%s}`+"\n", i, delay)
	}
	sweepWith(t, db.DSN, delays.String(), "enqueue")
	got := list[int64](t, db.Pool, `select floor(extract(epoch from p.visible_after - m.created_at))::bigint
		from outbox.message as m join outbox.pending as p using (id) where m.namespace = 'd' order by m.dispatch_key`)
	if !slices.Equal(got, want) {
		t.Errorf("delays are %v seconds, want %v", got, want)
	}
}

// INV-2: with --strict a bad line anywhere, found here or by the database, leaves
// nothing written, and is the one that is named.
func TestCLIEnqueueStrict(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "other", "q", "taken")
	var good []string
	for i := range 2500 {
		good = append(good, fmt.Sprintf(goodLine, fmt.Sprint(i)))
	}
	for _, tt := range []struct {
		name, bad string
		at        int
	}{
		{"syntax", "{", 2400},
		{"key of another namespace", fmt.Sprintf(goodLine, "taken"), 1700},
		{"the first of two", fmt.Sprintf(goodLine, "taken"), 3},
	} {
		lines := slices.Insert(slices.Clone(good), tt.at, tt.bad)
		lines = append(lines, "{")
		got := sweepCall{dsn: db.DSN, stdin: strings.Join(lines, "\n"), args: []string{"enqueue", "--strict", "--json"}}.do(t)
		got.want(t, 1, []string{tt.name}, fmt.Sprintf("sweep: stdin:%d: ", tt.at+1), "nothing was written")
		if sum := fromJSON[enqueueSummary](t, got.stdout); sum.Enqueued != 0 || sum.Bad != 1 {
			t.Errorf("%s: %+v", tt.name, sum)
		}
		if n := one[int](t, db.Pool, `select count(*) from outbox.message`); n != 1 {
			t.Errorf("%s: %d messages", tt.name, n)
		}
	}
	if got := sweepWith(t, db.DSN, strings.Join(good, "\n"), "enqueue", "--strict"); got != "enqueued 2500, duplicates 0, bad 0\n" {
		t.Errorf("good lines alone: %q", got)
	}
}

// A producer needs no more than the right to enqueue, and the role's isolation does
// not matter.
func TestCLIEnqueueAsProducer(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		role := db.Role(t, fmt.Sprintf("set default_transaction_isolation = '%s'", level))
		run(t, db.Pool, `select outbox.grant_producer($1)`, role.Name)
		if got := sweepWith(t, role.DSN, fmt.Sprintf(goodLine, level), "enqueue"); got != "enqueued 1, duplicates 0, bad 0\n" {
			t.Errorf("%s: %q", level, got)
		}
		sweepFails(t, role.DSN, 1, []string{"why", level}, "permission denied", "grant_operator")
	}
}

// Two loads of the same file at once: each message is written once (INV-3).
func TestCLIEnqueueTwiceAtOnce(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	var input strings.Builder
	const n = 5000
	for i := range n {
		fmt.Fprintf(&input, goodLine+"\n", fmt.Sprint(i))
	}
	sums := make(chan enqueueSummary, 2)
	for range cap(sums) {
		go func() {
			got := sweepCall{dsn: db.DSN, stdin: input.String(), args: []string{"enqueue", "--json"}}.do(t)
			var sum enqueueSummary
			_ = json.Unmarshal([]byte(got.stdout), &sum)
			sums <- sum
		}()
	}
	a, b := <-sums, <-sums
	if a.Enqueued+b.Enqueued != n || a.Duplicates+b.Duplicates != n || a.Bad+b.Bad != 0 {
		t.Errorf("%+v and %+v of %d lines", a, b, n)
	}
}

// Payloads of the largest size go in, as JSON and in base64.
func TestCLIEnqueueLargest(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	most := one[int](t, db.Pool, `select max_payload_bytes from outbox.config`)
	text := `"` + strings.Repeat("x", most-2) + `"`
	raw := bytes.Repeat([]byte{0xff}, most)
	input := fmt.Sprintf(`{"namespace":"n","task_queue":"q","dispatch_key":"text","payload":%s}`+"\n"+
		`{"namespace":"n","task_queue":"q","dispatch_key":"raw","payload_base64":%q}`, text, base64.StdEncoding.EncodeToString(raw))
	if got := sweepWith(t, db.DSN, input, "enqueue"); got != "enqueued 2, duplicates 0, bad 0\n" {
		t.Fatalf("%q", got)
	}
	wantStored(t, db.Pool, driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: "text", Payload: []byte(text)})
	wantStored(t, db.Pool, driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: "raw", Payload: raw, ContentType: "application/octet-stream"})
}
