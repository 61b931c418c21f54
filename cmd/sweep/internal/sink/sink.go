// Package sink makes sinks out of what is written on the command line.
package sink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/exec"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/http"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/stdout"
	"github.com/fairclaim/fairclaim/driver/node"
)

// known lists the kinds of sinks, for errors.
const known = "use stdout, exec:COMMAND [ARGUMENT...], http://HOST/PATH or https://HOST/PATH"

// Options apply to all sinks that are made with them. The zero value is ready to use.
type Options struct {
	// Stdout is where the stdout sink writes; nil is os.Stdout. For os.Stdout the caller
	// must have called [stdout.CatchBrokenPipe].
	Stdout io.Writer

	// HTTPTimeout bounds each HTTP exchange, from dialling to the end of the body;
	// 0 is [http.DefaultTimeout].
	HTTPTimeout time.Duration

	// HTTPConns is how many idle connections an HTTP sink keeps: one for each dispatch
	// slot; 0 is 64.
	HTTPConns int

	// HTTPFinal4xx has most answers of 4xx fail their message for good, whatever they say of
	// the destination.
	HTTPFinal4xx bool

	// ExecTimeout bounds each run of a command; 0 leaves it to Deliver's context.
	ExecTimeout time.Duration
}

// Sink is a [node.Sink] with a name for logs, which shows no secret.
type Sink interface {
	node.Sink
	fmt.Stringer
}

// Parse makes the sink that spec describes:
//
//	stdout              a line of JSON a message
//	exec:COMMAND ...    runs a command a message; words are split as a shell does
//	http://..., https://...
//	                    posts each message; {namespace} and {task_queue} may stand in
//	                    path and query
//
// Errors repeat no part of spec that may be a secret. Two stdout sinks must not write to
// the same place: use [NewRoutes] for several specs.
func Parse(spec string, options Options) (Sink, error) {
	switch kindOf(spec) {
	case "stdout":
		if options.Stdout == nil {
			options.Stdout = os.Stdout
		}
		return stdout.New(options.Stdout), nil
	case "exec":
		return orNil(exec.New(strings.TrimPrefix(spec, "exec:"), options.ExecTimeout))
	case "http":
		return orNil(http.New(spec, options.HTTPTimeout, options.HTTPConns, options.HTTPFinal4xx))
	}
	if spec == "" {
		return nil, errors.New("no sink; " + known)
	}
	return nil, fmt.Errorf("unknown kind of sink %q; %s", show(spec), known)
}

// orNil keeps a nil pointer from becoming an interface that is not nil.
func orNil[S Sink](s S, err error) (Sink, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// kindOf returns the kind of sink that spec names: "stdout", "exec", "http", or "" for no
// known kind.
func kindOf(spec string) string {
	kind, _, colon := strings.Cut(spec, ":")
	switch {
	case spec == "stdout":
		return "stdout"
	case colon && kind == "exec":
		return "exec"
	case colon && (strings.EqualFold(kind, "http") || strings.EqualFold(kind, "https")):
		return "http"
	}
	return ""
}

// show returns the part of a spec that an error may repeat: the kind, without what follows.
func show(spec string) string {
	kind, _, colon := strings.Cut(spec, ":")
	if colon {
		return cut(kind) + ":..."
	}
	return cut(spec)
}

// cut shortens a text that an error repeats.
func cut(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
