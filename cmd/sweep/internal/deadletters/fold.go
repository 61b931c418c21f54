package deadletters

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"
)

// foldable finds in the text of an error: codes, which tell errors apart and stay; UUIDs; and words
// with a digit.
var foldable = regexp.MustCompile(`(?i)\b(?:status|code|http(?:/[0-9.]+)?|exit status|signal|sqlstate)[ :=]*[0-9][0-9a-z]{0,4}\b` +
	`|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b` +
	`|\w*[0-9]\w*`)

var (
	foldCode   = regexp.MustCompile(`(?i)^(?:status|code|http|exit|signal|sqlstate)`)
	foldDigits = regexp.MustCompile(`[0-9]+`)
)

// foldID is the length from which on a word with a digit is taken for an id as a whole.
const foldID = 8

// Fold makes errors alike that differ in numbers and ids only: each is a # then. The number behind
// status, code, HTTP, exit status, signal and SQLSTATE stays: it says what went wrong.
func Fold(text string) string {
	return foldable.ReplaceAllStringFunc(text, func(found string) string {
		switch {
		case foldCode.MatchString(found) && strings.ContainsAny(found, " :=/"):
			return found
		case len(found) >= foldID:
			return "#"
		}
		return foldDigits.ReplaceAllString(found, "#")
	})
}

// Group counts dead letters of one route with one folded error, over all namespaces.
type Group struct {
	Count      int64     `json:"count"`
	TaskQueue  string    `json:"task_queue"`
	Error      string    `json:"error"` // folded
	Namespaces int       `json:"namespaces"`
	First      time.Time `json:"first"`
	Last       time.Time `json:"last"`
	Example    *string   `json:"example"` // the key of the last one

	names map[string]bool
}

// maxGroups bounds the memory for groups: what comes in a group beyond them counts as one.
const maxGroups = 10_000

// Grouper groups dead letters. The zero value has none.
type Grouper struct {
	groups map[[2]string]*Group
}

// Add counts one more.
func (g *Grouper) Add(d Letter) {
	text := "no reason given"
	if d.Error != nil {
		text = Fold(*d.Error)
	}
	key := [2]string{d.TaskQueue, text}
	if g.groups == nil {
		g.groups = map[[2]string]*Group{}
	}
	if g.groups[key] == nil && len(g.groups) >= maxGroups {
		key = [2]string{"", "other errors"}
	}
	group := g.groups[key]
	if group == nil {
		group = &Group{TaskQueue: key[0], Error: key[1], First: d.FailedAt, names: map[string]bool{}}
		g.groups[key] = group
	}
	group.Count++
	group.names[d.Namespace] = true
	group.Namespaces = len(group.names)
	if d.FailedAt.Before(group.First) {
		group.First = d.FailedAt
	}
	if !d.FailedAt.Before(group.Last) {
		group.Last, group.Example = d.FailedAt, d.Key
	}
}

// Len is how many groups there are.
func (g *Grouper) Len() int { return len(g.groups) }

// Largest returns up to limit groups, the largest first (0: all).
func (g *Grouper) Largest(limit int64) []Group {
	all := make([]Group, 0, len(g.groups))
	for _, group := range g.groups {
		all = append(all, *group)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.TaskQueue, b.TaskQueue), cmp.Compare(a.Error, b.Error))
	})
	if limit > 0 && int64(len(all)) > limit {
		all = all[:limit]
	}
	return all
}
