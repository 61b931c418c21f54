package pgtest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

func TestScaled(t *testing.T) {
	for text, want := range map[string]time.Duration{"": time.Second, "1": time.Second, "2.5": 2500 * time.Millisecond, "0.1": 100 * time.Millisecond} {
		t.Setenv("FAIRCLAIM_TEST_PATIENCE", text)
		if got := pgtest.Scaled(time.Second); got != want {
			t.Errorf("FAIRCLAIM_TEST_PATIENCE=%q makes a second %v, want %v", text, got, want)
		}
	}
}

// A wrong factor ends the tests before the first of them, and does not count as 1.
func TestWrongPatienceIsAnError(t *testing.T) {
	for _, text := range []string{"0", "-1", "2m", "NaN", "Inf", "1e9", " "} {
		t.Setenv("FAIRCLAIM_TEST_PATIENCE", text)
		server, err := pgtest.Start(t.Context(), pgtest.Options{})
		if err == nil {
			stop(t, server)
		}
		if err == nil || !strings.Contains(err.Error(), "FAIRCLAIM_TEST_PATIENCE=") || !strings.Contains(err.Error(), "above 0") {
			t.Errorf("%q: got %v; want an error that names the variable and its values", text, err)
		}
	}
}
