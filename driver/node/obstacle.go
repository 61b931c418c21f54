package node

import (
	"context"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// obstaclesEvery is how often a live node looks for strangers that hold locks of claims.
const obstaclesEvery = 30 * time.Second

// logObstacles tells the log who holds locks of claims and is not claiming, and how to be rid of
// that; and, where this node has been shut out for longer than a claim may be left open, who has
// them at all.
func (l *loop) logObstacles(ctx context.Context) error {
	obstacles, err := driver.Obstacles(ctx, l.db, l.pace.shutOutFor > l.pace.shutOutLimit)
	for _, o := range obstacles {
		l.notify(shutOutNotice(o, time.Now()))
	}
	return err
}

// shutOut is for a Once whose claim others have shut out.
func (l *loop) shutOut(ctx context.Context) {
	switch {
	case l.pace.shutOutFor == 0:
		l.log.Info("other claims hold the shards: trying again")
	case l.pace.shutOutFor <= l.pace.shutOutLimit:
		return
	}
	call, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	if err := l.logObstacles(call); err != nil {
		l.log.Warn("could not look who holds locks of claims", "error", err)
	}
}
