package grace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairclaim/fairclaim/internal/grace"
)

func TestContext(t *testing.T) {
	for name, test := range map[string]struct {
		ends  bool          // ctx ends after a second
		stop  bool          // the work is done after a second
		wants time.Duration // how long the context goes on; 0: without end
	}{
		"nothing ends it":          {},
		"its parent ends":          {ends: true, wants: time.Second + 5*time.Second},
		"the work is done":         {stop: true, wants: time.Second},
		"the work is done in time": {ends: true, stop: true, wants: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, end := context.WithCancel(t.Context())
				ctx, stop := grace.Context(parent, 5*time.Second)
				start := time.Now()
				time.Sleep(time.Second)
				if test.ends {
					end()
				}
				if test.stop {
					stop()
				}
				select {
				case <-ctx.Done():
					if took := time.Since(start); took != test.wants || test.wants == 0 {
						t.Errorf("it went on for %v, want %v", took, test.wants)
					}
				case <-time.After(time.Hour):
					if test.wants != 0 {
						t.Errorf("it goes on, want %v", test.wants)
					}
				}
				stop()
				end()
			})
		})
	}
}
