package pgtest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// findScript looks for PostgreSQL. It is a shell script because make runs it too, before
// anything is compiled.
//
//go:embed find.sh
var findScript string

// open starts a server of the kind that opts name, or of the first kind that is there.
func open(ctx context.Context, opts Options) (Kind, engine, error) {
	kind, dir, err := find(ctx, opts)
	if err != nil {
		return "", nil, err
	}
	var e engine
	switch kind {
	case KindDSN:
		e = existing{adminDSN: os.Getenv("FAIRCLAIM_TEST_DSN")}
	case KindBinary:
		e, err = openBinary(ctx, dir, opts)
	case KindDocker:
		e, err = openDocker(ctx, opts)
	default:
		err = fmt.Errorf("find.sh found %q, a kind of server that is not known", kind)
	}
	return kind, e, err
}

// find asks the script which kind of server to start, and in which directory the
// binaries are. Its error is the script's, one line that says what to do.
func find(ctx context.Context, opts Options) (kind Kind, dir string, err error) {
	major := ""
	if opts.Major != 0 {
		major = strconv.Itoa(opts.Major)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", findScript, "find.sh", "plain")
	cmd.Env = append(os.Environ(), "FAIRCLAIM_PG="+string(opts.Kind), "FAIRCLAIM_PG_MAJOR="+major)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if reason := strings.TrimSpace(stderr.String()); err != nil && reason != "" {
		return "", "", errors.New(reason)
	}
	if err != nil {
		return "", "", fmt.Errorf("look for PostgreSQL: %w", err)
	}
	name, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return Kind(name), dir, nil
}

// wanted names the versions that will do.
func wanted(major int) string {
	if major != 0 {
		return strconv.Itoa(major)
	}
	return strconv.Itoa(minMajor) + " or newer"
}
