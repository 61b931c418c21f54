package ui

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/text"
)

const (
	payloadText = 64 << 10 // bytes of a payload that a page shows as text
	payloadHex  = 4 << 10  // and in hexadecimal
	headersText = 64 << 10 // bytes of headers
)

// whyRow is a row of outbox.why.
type whyRow struct {
	ID        *int64
	Namespace *string
	TaskQueue *string
	Shard     *int32
	State     string
	Attempts  *int32
	Reason    string
	NextAt    *time.Time
	Failures  []string
}

// detailRow is what outbox.messages knows besides.
type detailRow struct {
	CreatedAt    *time.Time
	VisibleAfter *time.Time
	ClaimedBy    *string
	SettledAt    *time.Time
	ContentType  string
	Headers      string
	HeaderBytes  int64
	PayloadBytes int64
}

type messageView struct {
	outbox
	Key     string
	Known   bool
	Why     whyRow
	More    detailRow
	Headers string
	Payload *payload // where it was asked for
	Show    string   // link that asks for it
	Self    string
}

// payload is the beginning of a payload, as text or in hexadecimal.
type payload struct {
	Text  string
	IsHex bool
	Shown int64 // bytes
}

// Can says which actions fit the state.
func (v messageView) Can(action string) bool {
	switch action {
	case "redrive":
		return v.Why.State == "failed" || v.Why.State == "cancelled"
	case "cancel":
		return v.Why.State == "pending" || v.Why.State == "claimed"
	case "retry":
		return v.Why.State == "pending" && v.More.VisibleAfter != nil && v.More.VisibleAfter.After(v.At)
	}
	return false
}

// message shows why a message stands where it stands.
func (s *Server) message(r *http.Request) (*page, error) {
	s.survey.look()
	q := r.URL.Query()
	v := messageView{Key: q.Get("key")}
	v.Self = link("/message", "key", v.Key)
	v.Show = link("/message", "key", v.Key, "payload", "show") + "#payload"
	err := s.read(r.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if v.outbox, err = readOutbox(ctx, tx); err != nil {
			return err
		}
		v.Why, _, err = rowOf[whyRow](ctx, tx, `
			select w.id, w.namespace, w.task_queue, w.shard, w.state, w.attempts, w.reason,
			       case when isfinite(w.next_at) then w.next_at end, w.failures
			from outbox.why($1::text) as w`, v.Key)
		if err != nil {
			return fmt.Errorf("ask why: %w", err)
		}
		v.More, v.Known, err = rowOf[detailRow](ctx, tx, `
			select m.created_at, case when isfinite(m.visible_after) then m.visible_after end, m.claimed_by, m.settled_at,
			       h.content_type, left(h.headers::text, $2::int), octet_length(h.headers::text)::bigint, octet_length(m.payload)::bigint
			from outbox.messages as m cross join outbox.message_headers($1::text) as h where m.dispatch_key = $1::text`, v.Key, headersText)
		if err != nil || !v.Known {
			return err
		}
		if q.Get("payload") == "" {
			return nil
		}
		var b []byte
		if err = tx.QueryRow(ctx, `select substr(m.payload, 1, $2::int) from outbox.messages as m where m.dispatch_key = $1::text`, v.Key, payloadText).Scan(&b); err != nil {
			return fmt.Errorf("read the payload: %w", err)
		}
		v.Payload = showPayload(b, int64(len(b)) < v.More.PayloadBytes)
		return nil
	})
	if err != nil {
		return nil, err
	}
	v.Headers = lines(v.More.Headers)
	var b bytes.Buffer
	if json.Indent(&b, []byte(v.More.Headers), "", "  ") == nil {
		v.Headers = lines(b.String())
	}
	return &page{name: "message", title: "Message " + shown(v.Key), at: v.At, data: v}, nil
}

// showPayload shows what is text as such, and all else in hexadecimal. isCut: b is the beginning only.
func showPayload(b []byte, isCut bool) *payload {
	whole := b
	if isCut { // perhaps in the middle of a character
		for i := 0; i < utf8.UTFMax && len(whole) > 0; i++ {
			if r, size := utf8.DecodeLastRune(whole); r != utf8.RuneError || size > 1 {
				break
			}
			whole = whole[:len(whole)-1]
		}
	}
	if utf8.Valid(whole) && bytes.IndexByte(whole, 0) < 0 {
		return &payload{Text: lines(string(whole)), Shown: int64(len(whole))}
	}
	b = b[:min(len(b), payloadHex)]
	return &payload{Text: hex.Dump(b), IsHex: true, Shown: int64(len(b))}
}

// lines is a text of several lines, each as a page may show it.
func lines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		body, newline := strings.CutSuffix(line, "\n")
		indent := len(body) - len(strings.TrimLeft(body, "\t"))
		b.WriteString(strings.Repeat("    ", indent) + text.Visible(strings.TrimSuffix(body[indent:], "\r")))
		if newline {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
