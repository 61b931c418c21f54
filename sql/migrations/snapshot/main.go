// Command snapshot writes the next pair of migrations from what changed in
// sql/functions since the last one.
//
//	go run ./sql/migrations/snapshot -name faster_claim
//
// The up file holds the new text of the changed files, the down file the former
// one. Both begin with the search_path: whoever runs them, names mean PostgreSQL's own
// objects. What is dropped and created again keeps the rights on it, in both directions:
// see [functions.Diff]. Both keep their copies between two marked lines; what is written by hand
// above or below those, say an "alter table", stays when the pair is amended. A line
//
//	-- recreate: views.sql
//
// above them has the same effect on that file as -recreate has on both: a view that gets a column is
// replaced on the way up, and must be dropped on the way down.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/golang-migrate/migrate/v4/source"

	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "snapshot:", err)
		os.Exit(1)
	}
}

const (
	sectionBegin = "-- >>> snapshot\n"
	sectionEnd   = "-- <<< snapshot\n"
)

var recreateMark = regexp.MustCompile(`(?m)^-- recreate: (\S+)$`)

var validName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,59}$`)

type options struct {
	root, name string
	amend      bool
	check      bool
	recreate   []string
}

func run(args []string, out io.Writer) error {
	var o options
	var recreate string
	flags := flag.NewFlagSet("snapshot", flag.ContinueOnError)
	flags.StringVar(&o.root, "root", ".", "the repository's root")
	flags.StringVar(&o.name, "name", "", "the new pair's name: small letters, digits and _")
	flags.BoolVar(&o.amend, "amend", false, "write the newest pair again; only before it is released")
	flags.BoolVar(&o.check, "check", false, "write nothing; fail when a file differs from its last copy")
	flags.StringVar(&recreate, "recreate", "", "files, separated by commas, to drop and create again where the server cannot replace them (a view that loses a column)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.recreate = strings.FieldsFunc(recreate, func(r rune) bool { return r == ',' })
	switch {
	case o.check && (o.amend || o.name != ""):
		return errors.New("-check goes with neither -name nor -amend")
	case o.amend && o.name != "":
		return errors.New("-amend keeps the name of the newest pair: leave out -name")
	case !o.check && !o.amend && !validName.MatchString(o.name):
		return fmt.Errorf("-name %q: want small letters, digits and _, a letter first, at most 60", o.name)
	}
	return snapshot(o, out)
}

func snapshot(o options, out io.Writer) error {
	pairs, err := listPairs(filepath.Join(o.root, "sql", "migrations"))
	if err != nil {
		return err
	}
	var target pair
	switch {
	case !o.amend:
		target = pair{dir: filepath.Join(o.root, "sql", "migrations"), version: uint(len(pairs)) + 1, name: o.name}
	case len(pairs) == 0:
		return errors.New("there is no migration to amend")
	default:
		target = pairs[len(pairs)-1]
		pairs = pairs[:len(pairs)-1]
	}

	current, err := functions.Read(os.DirFS(filepath.Join(o.root, "sql", "functions")))
	if err != nil {
		return err
	}
	var names []string
	for _, p := range pairs {
		names = append(names, filepath.Base(p.path(source.Up)))
	}
	installed, err := functions.Installed(os.DirFS(filepath.Join(o.root, "sql", "migrations")), names)
	if err != nil {
		return err
	}
	if o.amend {
		o.recreate = append(o.recreate, target.marked(source.Up)...)
	}
	up, err := functions.Diff(installed, current, o.recreate)
	if err != nil {
		return err
	}
	changed := slices.Compact(slices.Sorted(slices.Values(slices.Concat(up.Installed, up.Dropped))))
	if o.check {
		if len(changed) > 0 {
			return fmt.Errorf("not in the migrations as it stands in sql/functions: %s", strings.Join(changed, ", "))
		}
		return nil
	}
	if len(changed) == 0 && !o.amend {
		fmt.Fprintln(out, "nothing changed in sql/functions, nothing written")
		return nil
	}
	return write(target, o.amend, up, installed, current, out)
}

// write writes both files and says what is in them.
func write(target pair, amend bool, up functions.Change, installed, current []functions.File, out io.Writer) error {
	var again []string // dropped and created: in both directions
	for _, name := range up.Dropped {
		if slices.Contains(up.Installed, name) {
			again = append(again, name)
		}
	}
	if amend {
		again = append(again, target.marked(source.Down)...)
	}
	down, err := functions.Diff(current, installed, again)
	if err != nil {
		return err
	}
	if err := target.write(source.Up, amend, up.SQL); err != nil {
		return err
	}
	if err := target.write(source.Down, amend, down.SQL); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d files of sql/functions\n", target.path(source.Up), len(up.Installed))
	for _, name := range up.Dropped {
		what := "dropped"
		if slices.Contains(again, name) {
			what = "dropped and created again, with the rights on it"
		}
		fmt.Fprintf(out, "  %s: %s\n", name, what)
	}
	return nil
}

// pair is the two files of one migration.
type pair struct {
	dir, name string
	version   uint
}

func (p pair) path(d source.Direction) string {
	return filepath.Join(p.dir, fmt.Sprintf("%06d_%s.%s.sql", p.version, p.name, d))
}

func listPairs(dir string) ([]pair, error) {
	names, err := fs.Glob(os.DirFS(dir), "*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var pairs []pair
	for _, name := range names { // sorted, as the versions all have six digits
		m, err := source.Parse(name)
		if err != nil {
			return nil, fmt.Errorf("list migrations: %s: %w", name, err)
		}
		pairs = append(pairs, pair{dir: dir, version: m.Version, name: m.Identifier})
		if m.Version != uint(len(pairs)) {
			return nil, fmt.Errorf("list migrations: %s should have version %d", name, len(pairs))
		}
	}
	return pairs, nil
}

// marked is the files that a line by hand names to drop and create again. A migration that
// cannot be read has none: to write it fails then.
func (p pair) marked(d source.Direction) (files []string) {
	text, _ := os.ReadFile(p.path(d))
	above, _, _ := strings.Cut(string(text), sectionBegin)
	for _, m := range recreateMark.FindAllStringSubmatch(above, -1) {
		files = append(files, m[1])
	}
	return files
}

// write writes one file: a new one, or the generated section of one that is there.
func (p pair) write(d source.Direction, amend bool, sql string) error {
	section := sectionBegin + "\n" + sql + sectionEnd
	path := p.path(d)
	if !amend {
		return create(path, p.frame(d, section))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("amend: %w", err)
	}
	above, rest, found := strings.Cut(string(text), sectionBegin)
	_, below, ended := strings.Cut(rest, sectionEnd)
	if !found || !ended {
		return fmt.Errorf("amend: %s has no section that this program wrote: give -name for a new pair", path)
	}
	if err := os.WriteFile(path, []byte(above+section+below), 0o644); err != nil {
		return fmt.Errorf("amend: %w", err)
	}
	return nil
}

// frame puts the search_path and the ledger's line around a section.
func (p pair) frame(d source.Direction, section string) string {
	if d == source.Up {
		return fmt.Sprintf(functions.Pin+"\n%s\ninsert into outbox.migration (version) values (%d);\n", section, p.version)
	}
	return fmt.Sprintf(functions.Pin+"delete from outbox.migration where version = %d;\n\n%s", p.version, section)
}

func create(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
