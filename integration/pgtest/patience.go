package pgtest

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// patienceEnv names the variable that makes every limit of [Scaled] longer or shorter.
const patienceEnv = "FAIRCLAIM_TEST_PATIENCE"

// maxPatience is the largest factor: more is a typing error.
const maxPatience = 1000

// Scaled is d times FAIRCLAIM_TEST_PATIENCE, which is 1 where it is not set. Every limit of
// a wait for something that will happen goes through it, so that a slow machine needs one
// variable and no edit. [Start] refuses a value that is no number above 0.
func Scaled(d time.Duration) time.Duration {
	factor, err := patience()
	if err != nil {
		return d // Start has said so
	}
	return time.Duration(float64(d) * factor)
}

// patience reads the factor from the environment.
func patience() (float64, error) {
	text := os.Getenv(patienceEnv)
	if text == "" {
		return 1, nil
	}
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || !(factor > 0 && factor <= maxPatience) {
		return 0, fmt.Errorf("%s=%q: want a number above 0, at most %d; 3 waits three times as long", patienceEnv, text, maxPatience)
	}
	return factor, nil
}
