package driver

import "time"

// NewMessage is a message to enqueue. The zero value of each optional field
// means "use the default".
type NewMessage struct {
	Namespace   string // the tenant; 1 to 512 bytes of UTF-8
	TaskQueue   string // the route inside the tenant; 1 to 512 bytes of UTF-8
	DispatchKey string // the message's identity, UNIQUE over all tenants; 1 to 512 bytes of UTF-8
	Payload     []byte // opaque bytes, at most outbox.config.max_payload_bytes; nil is empty

	ContentType string            // optional; "application/json" if empty
	Headers     map[string]string // optional; kept as a JSON object
	Delay       time.Duration     // optional; due this long after the database receives the call
}

// Message is one claimed message: what a [Sink] gets and a settle call shows.
type Message struct {
	ID          int64
	ClaimToken  int64 // new with each claim; a settle that shows an old one is lost (INV-9)
	Namespace   string
	TaskQueue   string
	DispatchKey string // stable over retries: the consumer's idempotency key
	Shard       int32
	Attempt     int32 // 1 at the first claim
	ContentType string
	Headers     map[string]string
	Payload     []byte
	LeaseUntil  time.Time // on the database's clock (INV-15); display only, never compare with time.Now
	Pass        int       // 1: out of the namespace's guaranteed slice; 2: out of what was left

	PayloadBytes int64 // length of the payload, also where the claim left it out
	Suspect      int32 // so many nodes in a row may have died of it; above 0, see [BeginDelivery]
}
