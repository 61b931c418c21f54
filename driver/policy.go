package driver

import (
	"math"
	"time"
)

// retryPolicy is what the outbox does with a message after a failed attempt, read from its
// settings.
type retryPolicy struct {
	maxAttempts int32
	base, cap   time.Duration
	multiplier  float64
	jitter      float64 // to both sides, as part of the backoff
}

// over reports whether the attempt was the message's last. The database decides by what its
// settings are at the settle; they may have changed a moment ago, so this is for what is
// counted and logged.
func (p *retryPolicy) over(attempt int32) bool { return attempt >= p.maxAttempts }

// backoff is the policy's after a failed attempt, as outbox.retry_delay computes it; rnd is
// uniform in [0, 1).
func (p *retryPolicy) backoff(attempt int32, rnd float64) time.Duration {
	exponent := float64(max(attempt, 1) - 1)
	seconds := p.cap.Seconds()
	if exponent*math.Log(p.multiplier) < math.Log(p.cap.Seconds()/p.base.Seconds()) {
		seconds = p.base.Seconds() * math.Pow(p.multiplier, exponent)
	}
	return time.Duration(seconds * (1 + p.jitter*(2*rnd-1)) * float64(time.Second))
}
