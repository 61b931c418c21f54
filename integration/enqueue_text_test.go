package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// hostileTexts are payloads that some way of writing them would change.
var hostileTexts = []string{
	``, ` `, `{}`, `{"order": 17}`, `{"q": "say \"hi\""}`, `\`, `\\`, `\n`, `\101`, `\\x41`, `x41`, `'`, `''`, `"`, `$1`, `$$`, `%s`, "line\nend\r\n\ttab",
	"é", "e\u0301", "😀", "\ufeff", `{"path": "C:\\temp\\x"}`, `\x4`, `\xzz`, `\X41`, ` \x41`, "\\x41\n",
}

// realPayloads are those of the webhook file, where it is.
func realPayloads(t *testing.T) []string {
	t.Helper()
	f, err := os.Open(webhookFile(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var texts []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m struct{ Payload json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(m.Payload))
	}
	return texts
}

// enqueueWays are the ways in which a program or a person hands a text over. Each enqueues it under
// the key.
var enqueueWays = map[string]func(t *testing.T, conn *pgx.Conn, key, text string) error{
	"a literal": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		return conn.PgConn().Exec(t.Context(), fmt.Sprintf("select outbox.enqueue('n', 'q', '%s', '%s')", key, strings.ReplaceAll(text, "'", "''"))).Close()
	},
	"a literal of bytes": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		return conn.PgConn().Exec(t.Context(), fmt.Sprintf(`select outbox.enqueue('n', 'q', '%s', '\x%x'::bytea)`, key, text)).Close()
	},
	"a text": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		_, err := conn.Exec(t.Context(), "select outbox.enqueue('n', 'q', $1, $2::text)", key, text)
		return err
	},
	"bytes": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		_, err := conn.Exec(t.Context(), "select outbox.enqueue('n', 'q', $1, $2::bytea)", key, []byte(text))
		return err
	},
	"an untyped parameter of text": untypedParameter(pgx.TextFormatCode),
	"an untyped parameter, binary": untypedParameter(pgx.BinaryFormatCode),
	"names": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		_, err := conn.Exec(t.Context(), "select outbox.enqueue(dispatch_key => $1, payload => $2, namespace => 'n', task_queue => 'q', delay => '1 s')", key, text)
		return err
	},
	"an array of texts": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		_, err := conn.Exec(t.Context(), "select outbox.enqueue_texts('{n}', '{q}', array[$1], $2)", key, []string{text})
		return err
	},
	"an array of bytes": func(t *testing.T, conn *pgx.Conn, key, text string) error {
		_, err := conn.Exec(t.Context(), "select outbox.enqueue_batch('{n}', '{q}', array[$1], $2)", key, [][]byte{[]byte(text)})
		return err
	},
}

// untypedParameter sends what a driver does that leaves the types of parameters to the server.
func untypedParameter(format int16) func(t *testing.T, conn *pgx.Conn, key, text string) error {
	return func(t *testing.T, conn *pgx.Conn, key, text string) error {
		r := conn.PgConn().ExecParams(t.Context(), "select outbox.enqueue('n', 'q', $1, $2)",
			[][]byte{[]byte(key), []byte(text)}, nil, []int16{format, format}, nil)
		var err error
		_, err = r.Close()
		return err
	}
}

// Text arrives byte for byte, whichever way it is handed over.
func TestEnqueueTextByteForByte(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	check := func(t *testing.T, texts []string) {
		t.Helper()
		for how, enqueue := range enqueueWays {
			for i, text := range texts {
				key := fmt.Sprint(how, " ", len(texts), " ", i)
				if err := enqueue(t, conn, key, text); err != nil {
					t.Errorf("%s: %.60q: %v", how, text, err)
				} else if got := one[[]byte](t, conn, "select payload from outbox.message where dispatch_key = $1", key); !bytes.Equal(got, []byte(text)) {
					t.Errorf("%s: %.60q arrives as %.60q", how, text, got)
				}
			}
		}
	}
	check(t, hostileTexts)
	t.Run("real ones", func(t *testing.T) { check(t, realPayloads(t)) })
}

// Text that looks like bytes in hex is refused: bytes were meant, more likely.
func TestEnqueueTextThatLooksLikeBytes(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, text := range []string{`\x`, `\x41`, `\x7B7d`} {
		for _, call := range []string{
			"select outbox.enqueue('n', 'q', 'k', '%s')", "select outbox.enqueue_texts('{n,n}', '{q,q}', '{k,l}', array['fine', '%s'])",
		} {
			_, err := conn.Exec(t.Context(), fmt.Sprintf(call, text), pgx.QueryExecModeSimpleProtocol)
			wantError(t, err, "OB001", "payload", "hex", "bytea")
		}
	}
	_, err := conn.Exec(t.Context(), "select outbox.enqueue('n', 'q', 'k', null)")
	wantError(t, err, "OB001", "payload is null")
	if n := one[int](t, conn, "select count(*) from outbox.message"); n != 0 {
		t.Errorf("%d were written", n)
	}
}
