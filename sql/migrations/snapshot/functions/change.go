package functions

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// Pin begins a migration. Names in it then mean PostgreSQL's own objects, whatever the
// installing role's search_path is, until its transaction ends.
const Pin = "set local search_path = pg_catalog, pg_temp;\n"

const dir = "sql/functions/"

// A copy in a migration stands between two lines that name its file; the removal
// of a file is marked by a line too.
var (
	openMark  = regexp.MustCompile(`(?m)^-- >>> ` + dir + `(\S+)$`)
	closeMark = regexp.MustCompile(`(?m)^-- <<< ` + dir + `(\S+)$`)
	dropMark  = regexp.MustCompile(`(?m)^-- dropped: ` + dir + `(\S+)$`)
)

// Installed returns what the named migrations, read in that order, install: the
// last copy of each file, in the order in which files are installed.
func Installed(migrations fs.FS, names []string) ([]File, error) {
	byName := make(map[string]File)
	for _, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			return nil, fmt.Errorf("read migrations: %w", err)
		}
		if err := replay(string(text), byName); err != nil {
			return nil, fmt.Errorf("read migrations: %s: %w", name, err)
		}
	}
	files := make([]File, 0, len(byName))
	for _, f := range byName {
		files = append(files, f)
	}
	sorted, err := Sort(files)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return sorted, nil
}

// replay applies the copies and removals in one migration to files.
func replay(text string, files map[string]File) error {
	name, body := "", strings.Builder{}
	loose := !strings.HasPrefix(text, Pin)
	for line := range strings.Lines(text) {
		mark := strings.TrimRight(line, "\r\n")
		if m := closeMark.FindStringSubmatch(mark); m != nil {
			if m[1] != name {
				return fmt.Errorf("the copy of %s ends without a beginning", m[1])
			}
			f, err := Parse(name, body.String())
			if err != nil {
				return err
			}
			f.Loose = loose
			files[name] = f
			name = ""
			body.Reset()
		} else if name != "" {
			body.WriteString(line)
		} else if m := openMark.FindStringSubmatch(mark); m != nil {
			name = m[1]
		} else if m := dropMark.FindStringSubmatch(mark); m != nil {
			delete(files, m[1])
		}
	}
	if name != "" {
		return fmt.Errorf("the copy of %s does not end", name)
	}
	return nil
}

// Change is the way from one set of files to another.
type Change struct {
	SQL       string   // empty where nothing changed
	Installed []string // files that it creates or replaces
	Dropped   []string // files that it drops; those that are Installed too keep the rights on them
}

// Diff finds the change that leads from one set of files to another, each in its
// order. What a migration without Pin has bound to names is installed again, too. Files are
// replaced where the server can do that. They are dropped first where it
// cannot, because the arguments or the result are others, and where recreate names them;
// and with them the files that require them. The rights on what is dropped, and on what
// gets an overload, are read before and granted again after.
func Diff(from, to []File, recreate []string) (Change, error) {
	before, after := index(from), index(to)
	drop := make(map[string]bool)
	for _, name := range recreate {
		if _, ok := after[name]; !ok {
			return Change{}, fmt.Errorf("there is no %s%s to create again", dir, name)
		}
		drop[name] = true
	}
	for _, old := range from {
		next, ok := after[old.Name]
		if !ok || lost(old, next) {
			drop[old.Name] = true
		}
	}
	for _, old := range from { // in order, so that what requires a dropped one comes after it
		if slices.ContainsFunc(old.Requires, func(name string) bool { return drop[name] }) {
			drop[old.Name] = true
		}
	}

	var c Change
	var dropped, gained []Object
	var sql strings.Builder
	for _, old := range slices.Backward(from) {
		if !drop[old.Name] {
			continue
		}
		c.Dropped = append(c.Dropped, old.Name)
		dropped = append(dropped, old.Objects...)
		fmt.Fprintf(&sql, "-- dropped: %s%s\n", dir, old.Name)
		for _, o := range slices.Backward(old.Objects) {
			fmt.Fprintln(&sql, o.drop)
		}
		fmt.Fprintln(&sql)
	}
	for _, f := range to {
		if old, ok := before[f.Name]; ok && old.Text == f.Text && !drop[f.Name] && !(old.Loose && old.Bound) {
			continue
		}
		c.Installed = append(c.Installed, f.Name)
		gained = append(gained, added(before[f.Name], f)...)
		fmt.Fprintf(&sql, "-- >>> %s%s\n%s-- <<< %s%s\n\n", dir, f.Name, f.Text, dir, f.Name)
	}
	kept := carry(dropped, gained, all(from), all(to))
	c.SQL = kept.before + sql.String() + kept.after
	return c, nil
}

func index(files []File) map[string]File {
	byName := make(map[string]File, len(files))
	for _, f := range files {
		byName[f.Name] = f
	}
	return byName
}

func keys(f File) []string {
	var all []string
	for _, o := range f.Objects {
		all = append(all, o.key)
	}
	return all
}

func all(files []File) []Object {
	var objects []Object
	for _, f := range files {
		objects = append(objects, f.Objects...)
	}
	return objects
}

// added is what next creates and old did not.
func added(old, next File) []Object {
	had := keys(old)
	return slices.DeleteFunc(slices.Clone(next.Objects), func(o Object) bool { return slices.Contains(had, o.key) })
}

// lost tells whether something that old creates is not created by next.
func lost(old, next File) bool {
	have := keys(next)
	return slices.ContainsFunc(keys(old), func(key string) bool { return !slices.Contains(have, key) })
}
