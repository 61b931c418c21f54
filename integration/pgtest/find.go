package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// open starts a server of the kind that opts name, or of the first kind that is there.
func open(ctx context.Context, opts Options) (Kind, engine, error) {
	switch opts.Kind {
	case KindDSN:
		e, err := openDSN()
		return KindDSN, e, err
	case KindBinary:
		bin, err := findBinaries(ctx, opts.Major)
		if err != nil {
			return "", nil, err
		}
		e, err := openBinary(ctx, bin, opts)
		return KindBinary, e, err
	case KindDocker:
		e, err := openDocker(ctx, opts)
		return KindDocker, e, err
	case "":
		opts.Kind = firstKind(ctx, opts.Major)
		if opts.Kind == "" {
			return "", nil, nothingFound("no PostgreSQL", opts.Major, "set PGBIN or FAIRCLAIM_TEST_DSN, or start a Docker engine")
		}
		return open(ctx, opts)
	default:
		return "", nil, fmt.Errorf("FAIRCLAIM_PG=%q: want dsn, binary or docker", opts.Kind)
	}
}

// firstKind is the first kind that is there, or "". What a variable points to
// counts as there, so that a wrong one is an error and not passed over.
func firstKind(ctx context.Context, major int) Kind {
	if os.Getenv("FAIRCLAIM_TEST_DSN") != "" {
		return KindDSN
	}
	if os.Getenv("PGBIN") != "" {
		return KindBinary
	}
	if _, err := findBinaries(ctx, major); err == nil {
		return KindBinary
	}
	if dockerAnswers(ctx) {
		return KindDocker
	}
	return ""
}

// findBinaries returns the directory of initdb and postgres: the first that
// has both in a supported version, or in the given one if major is not 0.
func findBinaries(ctx context.Context, major int) (string, error) {
	for _, dir := range binDirs(ctx) {
		have := binMajor(ctx, dir)
		if have >= minMajor && (major == 0 || have == major) {
			return dir, nil
		}
	}
	if dir := os.Getenv("PGBIN"); dir != "" {
		return "", fmt.Errorf("PGBIN=%s: no initdb and postgres of version %s there", dir, wanted(major))
	}
	return "", nothingFound("no server binaries of PostgreSQL", major, "set PGBIN")
}

// nothingFound is one line that says what is missing and what to type.
func nothingFound(what string, major int, otherwise string) error {
	install := "apt-get install postgresql"
	if major != 0 {
		install += "-" + strconv.Itoa(major)
	}
	return fmt.Errorf("%s %s found: %s (or %s)", what, wanted(major), install, otherwise)
}

// wanted names the versions that will do.
func wanted(major int) string {
	if major != 0 {
		return strconv.Itoa(major)
	}
	return strconv.Itoa(minMajor) + " or newer"
}

// binDirs lists where server binaries may be, best first.
func binDirs(ctx context.Context) []string {
	if dir := os.Getenv("PGBIN"); dir != "" {
		return []string{dir}
	}
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	packaged, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
	slices.SortFunc(packaged, func(a, b string) int { return debianMajor(b) - debianMajor(a) })
	dirs = append(dirs, packaged...)
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return dirs
}

// debianMajor is 17 for /usr/lib/postgresql/17/bin, and 0 for what is no version.
func debianMajor(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}

// binMajor is the major version of the server in dir, or 0 if there is none.
func binMajor(ctx context.Context, dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	match := regexp.MustCompile(`\) (\d+)`).FindSubmatch(out) // postgres (PostgreSQL) 17.6 (Debian ...)
	if match == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(match[1]))
	return n
}
