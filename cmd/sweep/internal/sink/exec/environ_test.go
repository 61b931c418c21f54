package exec

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/driver"
)

func TestPassedOn(t *testing.T) {
	kept := []string{"PATH=/bin", "HOME=/root", "LANG=C", "DATABASE=x", "MY_PGPASSWORD=x", "EMPTY=", "ODD"}
	dropped := []string{
		"DATABASE_URL=postgres://u:p@h/d", "PGPASSWORD=p", "PGPASSFILE=/x", "PGSERVICEFILE=/x", "PGHOST=h", "PGSSLKEY=k",
		"FAIRCLAIM_SINK=exec:x", "FAIRCLAIM_NAMESPACE=forged", "SWEEP_DATABASE_URL=x", "database_url=x", "PgPassword=p",
	}
	if got := passedOn(slices.Concat(dropped, kept)); !slices.Equal(got, kept) {
		t.Errorf("passed on %q, want %q", got, kept)
	}
}

func TestNoHeadersAreAnEmptyObject(t *testing.T) {
	got, err := facts(driver.Delivery{})
	if err != nil || !slices.Contains(got, "FAIRCLAIM_HEADERS={}") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestFactsThatFitNowhere(t *testing.T) {
	for _, c := range []struct {
		name string
		m    driver.Delivery
		says string
	}{
		{"headers", driver.Delivery{Headers: map[string]string{"a": strings.Repeat("x", maxVariable)}}, "FAIRCLAIM_HEADERS would be"},
		{"content type", driver.Delivery{ContentType: strings.Repeat("x", maxVariable)}, "FAIRCLAIM_CONTENT_TYPE would be"},
		{"NUL", driver.Delivery{Namespace: "a\x00b"}, "FAIRCLAIM_NAMESPACE would hold a NUL"},
	} {
		if _, err := facts(c.m); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}
