package sink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fairclaim/fairclaim/driver/node"
)

// maxTaskQueue is the longest name of a task queue, in bytes.
const maxTaskQueue = 512

// Route sends the messages of one task queue to a sink of their own.
type Route struct {
	TaskQueue string
	Spec      string // as [Parse] reads it
}

// ParseRoute parses QUEUE=SINK. The name of a queue may hold '=' too: it ends before the
// first '=' that a kind of sink follows. So a queue cannot be given whose name ends with
// "=stdout", or has "=exec:", "=http:" or "=https:" in it.
func ParseRoute(value string) (Route, error) {
	queue, spec, ok := strings.Cut(value, "=")
	if !ok {
		return Route{}, fmt.Errorf("%q is not QUEUE=SINK; write for example emails=exec:COMMAND", show(value))
	}
	for i := range len(value) {
		if value[i] == '=' && kindOf(value[i+1:]) != "" {
			queue, spec = value[:i], value[i+1:]
			break
		}
	}
	switch {
	case queue == "":
		return Route{}, errors.New("no task queue before the '='; write QUEUE=SINK")
	case len(queue) > maxTaskQueue:
		return Route{}, fmt.Errorf("the task queue %q has %d bytes, none has more than %d", cut(queue), len(queue), maxTaskQueue)
	case kindOf(spec) == "":
		_, err := Parse(spec, Options{})
		return Route{}, fmt.Errorf("task queue %q: %w", cut(queue), err)
	}
	return Route{TaskQueue: queue, Spec: spec}, nil
}

// Routes are the sinks of a node. [NewRoutes] makes them.
type Routes struct {
	Default  node.Sink            // for the messages of all queues but those in ByQueue
	ByQueue  map[string]node.Sink // for the messages of one task queue each; names are compared byte by byte
	ToStdout bool                 // one of the sinks writes to Options.Stdout

	all []node.Sink // each sink once, Default first
}

// NewRoutes makes a sink for defaultSpec, and for each of the values QUEUE=SINK. Equal
// specs share one sink. An error begins with the flag that is wrong, --sink or --route.
func NewRoutes(defaultSpec string, values []string, options Options) (*Routes, error) {
	made := map[string]node.Sink{}
	r := &Routes{ByQueue: map[string]node.Sink{}}
	add := func(spec string) (node.Sink, error) {
		if s, ok := made[spec]; ok {
			return s, nil
		}
		s, err := Parse(spec, options)
		if err != nil {
			return nil, err
		}
		made[spec] = s
		r.all = append(r.all, s)
		r.ToStdout = r.ToStdout || kindOf(spec) == "stdout"
		return s, nil
	}
	var err error
	if r.Default, err = add(defaultSpec); err != nil {
		return nil, fmt.Errorf("--sink %q: %w", show(defaultSpec), err)
	}
	for _, value := range values {
		route, err := ParseRoute(value)
		if err != nil {
			return nil, fmt.Errorf("--route: %w", err)
		}
		if _, ok := r.ByQueue[route.TaskQueue]; ok {
			return nil, fmt.Errorf("--route: the task queue %q has two sinks; give it one", cut(route.TaskQueue))
		}
		if r.ByQueue[route.TaskQueue], err = add(route.Spec); err != nil {
			return nil, fmt.Errorf("--route %q: %w", cut(route.TaskQueue)+"="+show(route.Spec), err)
		}
	}
	return r, nil
}

// Close closes what the sinks hold open (idle connections). No delivery may be under way.
func (r *Routes) Close() {
	for _, s := range r.all {
		if c, ok := s.(interface{ Close() }); ok {
			c.Close()
		}
	}
}
