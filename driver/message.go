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
	Pass        int       // 1: out of the namespace's guaranteed slice; 2: out of what was left; 0: the Probe
	Probe       bool      // the one message that finds out whether its destination, which is held, can be reached again

	// CreatedAt, DueAt and ClaimedAt are of the database's clock (INV-15): differences between them are
	// exact, those from time.Now are as wrong as the two clocks are. An instant before the year 1 or
	// after 9999, which only SQL can have written, comes as the first or the last one between.
	CreatedAt time.Time // when the message was enqueued; the same in each claim of it

	// DueAt is when the message came due: CreatedAt and its delay; after a failed attempt the end of the
	// backoff; after a redrive, or where a lease expired, the instant of that. Where SQL has written
	// '-infinity', "always due", DueAt is CreatedAt.
	DueAt     time.Time
	ClaimedAt time.Time // the instant of this claim

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

// Waited is how long the message was due before this claim, by the database's clock; never below 0.
func (d *Delivery) Waited() time.Duration { return max(d.ClaimedAt.Sub(d.DueAt), 0) }

// idsAndTokens returns them as the texts of two bigint[].
func idsAndTokens(refs []Ref) (ids, tokens string) {
	i, t := make(bigints, 0, 12*len(refs)), make(bigints, 0, 20*len(refs)) // as long as they usually are
	for _, r := range refs {
		i.add(r.ID)
		t.add(r.Token)
	}
	return i.text(), t.text()
}
