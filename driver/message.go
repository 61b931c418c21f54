package driver

import "time"

// Message is a message to enqueue. The zero value of each optional field
// means its default.
type Message struct {
	Namespace   string // the tenant; 1 to 512 bytes of UTF-8
	TaskQueue   string // the route inside the tenant; 1 to 512 bytes of UTF-8
	DispatchKey string // the message's identity, UNIQUE over all tenants; 1 to 512 bytes of UTF-8
	Payload     []byte // opaque bytes, at most outbox.config.max_payload_bytes; nil is empty

	ContentType string            // optional; "application/json" if empty
	Headers     map[string]string // optional; kept as a JSON object
	Delay       time.Duration     // optional; due this long after the database receives the call
}

// Delivery is one claimed message: what [Claim] returns, and what a sink gets.
type Delivery struct {
	ID          int64 // of the message; the same in each claim of it
	ClaimToken  int64 // new with each claim; a settle that shows an old one is lost (INV-9)
	Namespace   string
	TaskQueue   string
	DispatchKey string // stable over retries: the consumer's idempotency key
	Shard       int32  // 0 to the setting shard_count, less 1
	Attempt     int32  // 1 at the first claim
	ContentType string
	Headers     map[string]string // nil where there are none
	Payload     []byte
	LeaseUntil  time.Time // on the database's clock (INV-15); display only, never compare with time.Now
	Pass        int       // 1: out of the namespace's guaranteed slice; 2: out of what was left

	PayloadBytes int64 // length of the payload, also where the claim left it out
	Suspect      int32 // so many claimers in a row may have died of it; above 0, see [BeginDelivery]
}

// Ref names one claim of one message: what a settle call must show (INV-9).
type Ref struct {
	ID    int64
	Token int64
}

// Ref returns the reference to this claim of the message.
func (d *Delivery) Ref() Ref { return Ref{d.ID, d.ClaimToken} }

func idsAndTokens(refs []Ref) (ids, tokens []int64) {
	ids, tokens = make([]int64, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		ids[i], tokens[i] = r.ID, r.Token
	}
	return ids, tokens
}
