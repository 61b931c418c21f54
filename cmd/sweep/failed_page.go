package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
)

// failedPage is where a list of dead letters ended, and of which list: those of one namespace are in
// another order than those of all, and a list by other flags has passed over others.
type failedPage struct {
	cursor deadletters.Cursor
	list   string
}

// UnmarshalText reads what String has written.
func (p *failedPage) UnmarshalText(text []byte) error {
	s := string(text)
	i := strings.LastIndexByte(s, '/')
	if i < 0 || strings.Count(s, "/") != 2 {
		return errors.New("not a page: give what was printed after --page")
	}
	p.list = s[i+1:]
	return p.cursor.UnmarshalText([]byte(s[:i]))
}

func (p failedPage) String() string { return p.cursor.String() + "/" + p.list }

// list names the list that the flags choose, for failedPage. Times are not in it: an age is
// another time at each call.
func (f *failedFilter) list() string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%q %q %q", f.Namespace, f.Route, f.Error)
	return fmt.Sprintf("%08x", h.Sum32())
}
