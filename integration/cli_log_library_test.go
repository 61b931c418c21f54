package integration

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// What net/http has to say of a server comes in the form of the log, cut and on one line.
func TestLibraryLog(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, request.Body)
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 what nobody\x1b[31m asked for\r\n\r\n"+strings.Repeat("x", 4000))
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	b := &badDay{t: t, db: pg.New(t), hooks: newHooks(t)}
	put(t, b.db.Pool, "n", "q", "k")
	n := b.node("n1", b.db.DSN, "--sink", "http://"+listener.Addr().String(), "--log-format", "json")
	eventually(t, "the log tells of the server", func() bool { return strings.Contains(n.log.String(), "what nobody") })
	for line := range strings.Lines(n.log.String()) {
		var entry struct{ Level, Text string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || len(line) > 1000 {
			t.Errorf("%d bytes, %v: %.200q", len(line), err, line)
		}
		if strings.Contains(line, "what nobody") && entry.Level != "WARN" {
			t.Errorf("level %s in %s", entry.Level, line)
		}
	}
}
