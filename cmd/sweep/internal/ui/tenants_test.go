package ui

import "testing"

// In the table of tenants a route of all that is held takes a line; what is held for one tenant alone stays whole.
func TestShortReason(t *testing.T) {
	for why, want := range map[string]string{
		`route 'mail' of all is held until 14:32:10, after 16 failures in a row, "no, not now" (n1), then one message is tried`: `route 'mail' of all is held until 14:32:10`,
		`route 'mail' of all is held, and the next claim tries one message, after 16 failures in a row`:                         `route 'mail' of all is held`,
		`route 'mail' is held until 14:32:10, after 5 failures in a row, "no"`:                                                  `route 'mail' is held until 14:32:10, after 5 failures in a row, "no"`,
		`paused by ops since 15:51:29, "provider down"`:                                                                         `paused by ops since 15:51:29, "provider down"`,
	} {
		if got := (tenantRow{Why: why}).Short(); got != want {
			t.Errorf("%q is %q, want %q", why, got, want)
		}
	}
}
