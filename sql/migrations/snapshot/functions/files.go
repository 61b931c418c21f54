// Package functions knows the files in sql/functions: in which order they are
// installed, what they create, what the migrations last installed of them, and
// which SQL leads from one to the other.
//
// A file holds a function or a family, complete in itself: create or replace,
// comment, revoke. Its first lines may name what must exist before it:
//
//	-- requires: bad_argument.sql check_key.sql
//
// That is a must for what is called from a "begin atomic" body, a view or a
// signature, where the server looks names up at once and keeps the dependency.
// Files are installed in alphabetical order, what is required first, views.sql and
// then grants.sql last.
package functions

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// File is one file of sql/functions.
type File struct {
	Name     string   // check_key.sql
	Text     string   // as it stands in the file, with one newline at the end
	Requires []string // names of files
	Objects  []Object // in the order in which they are created

	// Bound is whether the server looks up names in it when it is installed.
	Bound bool
	// Loose is whether it was last installed by a migration that does not begin with Pin.
	Loose bool
}

var (
	requiresLine = regexp.MustCompile(`(?m)^-- requires:(.*)$`)
	boundEarly   = regexp.MustCompile(`(?i)\b(begin\s+atomic|create\s+(or\s+replace\s+)?view)\b`)
	transaction  = regexp.MustCompile(`(?im)^\s*(begin|commit|rollback|start\s+transaction)\s*;`)
)

// Parse reads one file.
func Parse(name, text string) (File, error) {
	f := File{Name: name, Text: strings.TrimSpace(text) + "\n"}
	for _, m := range requiresLine.FindAllStringSubmatch(f.Text, -1) {
		f.Requires = append(f.Requires, strings.Fields(m[1])...)
	}
	if openMark.MatchString(f.Text) || closeMark.MatchString(f.Text) || dropMark.MatchString(f.Text) {
		return f, fmt.Errorf("%s: holds a line that marks the copies in migrations", name)
	}
	code, err := blank(f.Text)
	if err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	if transaction.MatchString(code) {
		return f, fmt.Errorf("%s: begins or ends a transaction; a migration is one as a whole", name)
	}
	f.Bound = boundEarly.MatchString(code)
	if f.Objects, err = objects(code); err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// Read reads the files of a directory, in the order in which they are installed.
func Read(dir fs.FS) ([]File, error) {
	names, err := fs.Glob(dir, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("read functions: %w", err)
	}
	var files []File
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, fmt.Errorf("read functions: %w", err)
		}
		f, err := Parse(path.Base(name), string(text))
		if err != nil {
			return nil, fmt.Errorf("read functions: %w", err)
		}
		files = append(files, f)
	}
	return Sort(files)
}

// Sort puts files into the order in which they are installed.
func Sort(files []File) ([]File, error) {
	byName := make(map[string]File, len(files))
	for _, f := range files {
		byName[f.Name] = f
	}
	waiting := slices.Clone(files)
	slices.SortFunc(waiting, func(a, b File) int {
		if d := rank(a.Name) - rank(b.Name); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})

	var sorted []File
	done := make(map[string]bool, len(files))
	var visit func(f File, chain []string) error
	visit = func(f File, chain []string) error {
		if done[f.Name] {
			return nil
		}
		if slices.Contains(chain, f.Name) {
			return fmt.Errorf("files require each other: %s", strings.Join(append(chain, f.Name), " -> "))
		}
		for _, name := range f.Requires {
			required, ok := byName[name]
			if !ok {
				return fmt.Errorf("%s requires %s, which is not there", f.Name, name)
			}
			if err := visit(required, append(slices.Clone(chain), f.Name)); err != nil {
				return err
			}
		}
		done[f.Name] = true
		sorted = append(sorted, f)
		return nil
	}
	for _, f := range waiting {
		if err := visit(f, nil); err != nil {
			return nil, err
		}
	}
	return sorted, nil
}

func rank(name string) int {
	switch name {
	case "views.sql":
		return 1
	case "grants.sql":
		return 2
	}
	return 0
}
