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
	Spec      string // as [Parse] takes it
}

// ParseRoute parses QUEUE=SINK. They part at the first '=' that a known kind of
// sink follows, so a queue's name may hold '=' as well; only a name that has
// "=stdout" at its end, or "=exec:", "=http:" or "=https:" in it, cannot be given.
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

// Routes finds the sink of a task queue. It does not change after [NewRoutes], so
// any number of goroutines may use it.
type Routes struct {
	fallback target
	queues   map[string]target
	all      []target
}

type target struct {
	name string
	sink Sink
}

// NewRoutes makes the sinks of a default spec and of any number of QUEUE=SINK
// values. Equal specs share one sink. Errors begin with the flag at fault, --sink
// or --route.
func NewRoutes(defaultSpec string, values []string, options Options) (*Routes, error) {
	made := map[string]target{}
	names := map[string]bool{}
	r := &Routes{queues: map[string]target{}}
	add := func(spec string) (target, error) {
		if t, ok := made[spec]; ok {
			return t, nil
		}
		s, err := Parse(spec, options)
		if err != nil {
			return target{}, err
		}
		t := target{name: unique(names, s.String()), sink: s}
		names[t.name] = true
		made[spec] = t
		r.all = append(r.all, t)
		return t, nil
	}
	var err error
	if r.fallback, err = add(defaultSpec); err != nil {
		return nil, fmt.Errorf("--sink %q: %w", show(defaultSpec), err)
	}
	for _, value := range values {
		route, err := ParseRoute(value)
		if err != nil {
			return nil, fmt.Errorf("--route: %w", err)
		}
		if _, ok := r.queues[route.TaskQueue]; ok {
			return nil, fmt.Errorf("--route: the task queue %q has two sinks; give it one", cut(route.TaskQueue))
		}
		if r.queues[route.TaskQueue], err = add(route.Spec); err != nil {
			return nil, fmt.Errorf("--route %q: %w", cut(route.TaskQueue)+"="+show(route.Spec), err)
		}
	}
	return r, nil
}

// unique returns name, with a number behind it if it is taken: sinks that differ
// only in what their names hide still need names of their own.
func unique(taken map[string]bool, name string) string {
	candidate := name
	for n := 2; taken[candidate]; n++ {
		candidate = fmt.Sprintf("%s (%d)", name, n)
	}
	return candidate
}

// For returns the sink for a task queue, and a name that no other sink has. The
// queue's name is compared byte by byte.
func (r *Routes) For(taskQueue string) (name string, s node.Sink) {
	t, ok := r.queues[taskQueue]
	if !ok {
		t = r.fallback
	}
	return t.name, t.sink
}

// Names returns the names of all sinks, the default one first.
func (r *Routes) Names() []string {
	var names []string
	for _, t := range r.all {
		names = append(names, t.name)
	}
	return names
}

// Close gives back what the sinks hold (idle connections). No Deliver may be under
// way.
func (r *Routes) Close() {
	for _, t := range r.all {
		if c, ok := t.sink.(interface{ Close() }); ok {
			c.Close()
		}
	}
}
