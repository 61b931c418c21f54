package driver

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// OutboxSettings are the settings of an outbox, as operators have set them with
// outbox.configure. They hold for all its nodes.
type OutboxSettings struct {
	ShardCount       int           // shards that dispatch keys hash to: 0 to ShardCount - 1
	DefaultQuota     int           // claimed messages at a time of a namespace without a quota of its own
	Lease            time.Duration // how long a claim holds a message
	Retry            RetryPolicy   // what becomes of a message after a failed attempt
	MaxPayloadBytes  int           // largest payload of a message
	MaxHeaderBytes   int           // most bytes of a message's headers, as JSON text
	MaxBatch         int           // most rows of a claim
	MaxVisits        int           // most namespaces that a claim looks at
	MaxRoutes        int           // most routes of a namespace that a claim looks at
	CountCap         int           // where the counts of views stop, rows
	ClaimIdleTimeout time.Duration // a claim that is left open for longer loses its session
	NodeLapse        time.Duration // a node without a heartbeat for this long is taken for dead
	Retention        time.Duration // how long done and cancelled messages are kept
}

// RetryPolicy is what the outbox does with a message after a failed attempt.
type RetryPolicy struct {
	MaxAttempts int32         // attempts after which a message has failed
	Base        time.Duration // backoff after the first failed attempt
	Cap         time.Duration // longest backoff, before jitter
	Multiplier  float64       // growth of the backoff with each attempt; 1 or more
	Jitter      float64       // the part of the backoff that is random, to both sides: 0.2 is 80 to 120 %
}

// Exhausted reports whether the attempt was a message's last. The database decides by its
// settings at the moment of the settle; they may have changed since they were read.
func (p *RetryPolicy) Exhausted(attempt int32) bool { return attempt >= p.MaxAttempts }

// Backoff is the pause after a failed attempt, by the formula of outbox.retry_delay:
// min(Cap, Base * Multiplier^(attempt-1)), spread by Jitter. random is uniform in [0, 1).
func (p *RetryPolicy) Backoff(attempt int32, random float64) time.Duration {
	exponent := float64(max(attempt, 1) - 1)
	seconds := p.Cap.Seconds()
	if exponent*math.Log(p.Multiplier) < math.Log(p.Cap.Seconds()/p.Base.Seconds()) {
		seconds = p.Base.Seconds() * math.Pow(p.Multiplier, exponent)
	}
	return time.Duration(seconds * (1 + p.Jitter*(2*random-1)) * float64(time.Second))
}

// Settings reads the settings of the outbox.
func Settings(ctx context.Context, db Querier) (s OutboxSettings, err error) {
	// Microseconds, and millionths: no text of a span or of a floating-point number depends
	// on a setting of the session then.
	rows, err := db.Query(ctx, `select s.shard_count, s.default_quota,
       (extract(epoch from s.lease) operator(pg_catalog.*) 1000000)::bigint, s.max_attempts,
       (extract(epoch from s.retry_base) operator(pg_catalog.*) 1000000)::bigint,
       (extract(epoch from s.retry_cap) operator(pg_catalog.*) 1000000)::bigint,
       (s.retry_multiplier operator(pg_catalog.*) 1000000)::bigint,
       (s.retry_jitter operator(pg_catalog.*) 1000000)::bigint,
       s.max_payload_bytes, s.max_header_bytes, s.max_batch, s.max_visits, s.max_routes, s.count_cap,
       (extract(epoch from s.claim_idle_timeout) operator(pg_catalog.*) 1000000)::bigint,
       (extract(epoch from s.node_lapse) operator(pg_catalog.*) 1000000)::bigint,
       (extract(epoch from s.retention) operator(pg_catalog.*) 1000000)::bigint
from outbox.settings() as s`)
	if err != nil {
		return s, wrap("read the settings", err)
	}
	var multiplier, jitter int64 // millionths
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&s.ShardCount, &s.DefaultQuota, (*micros)(&s.Lease), &s.Retry.MaxAttempts,
			(*micros)(&s.Retry.Base), (*micros)(&s.Retry.Cap), &multiplier, &jitter,
			&s.MaxPayloadBytes, &s.MaxHeaderBytes, &s.MaxBatch, &s.MaxVisits, &s.MaxRoutes, &s.CountCap,
			(*micros)(&s.ClaimIdleTimeout), (*micros)(&s.NodeLapse), (*micros)(&s.Retention))
	})
	s.Retry.Multiplier, s.Retry.Jitter = float64(multiplier)/1e6, float64(jitter)/1e6
	return s, wrap("read the settings", err)
}
