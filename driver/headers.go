package driver

import (
	"context"
	"maps"
)

// HeaderFunc adds headers to those that are there, by what it finds in a context: the trace that a message
// belongs to, say. Injectors of OpenTelemetry and others are one in a line; this package
// imports none of them.
type HeaderFunc func(ctx context.Context, headers map[string]string)

// fillKey is the key of a HeaderFunc in a context.
type fillKey struct{}

// FillHeaders returns a context with which [Enqueue], [EnqueueBatch], [EnqueueSQL] and [EnqueueBatchSQL] call fill
// for each message, with the context of their own call, before they write it. A header that the message has
// already stays as it is; the message's own map is not changed. Call it once, where a request's context is
// made: the calls need not know. Where ctx has such a function already, both are called, that one first.
//
// What fill adds is stored, and goes along with every delivery: see Delivery.Headers. The setting
// max_header_bytes bounds all headers of a message together.
func FillHeaders(ctx context.Context, fill HeaderFunc) context.Context {
	if first, ok := ctx.Value(fillKey{}).(HeaderFunc); ok {
		second := fill
		fill = func(ctx context.Context, headers map[string]string) {
			first(ctx, headers)
			second(ctx, headers)
		}
	}
	return context.WithValue(ctx, fillKey{}, fill)
}

// filled are the messages with the headers that the context's function adds.
func filled(ctx context.Context, ms []Message) []Message {
	fill, ok := ctx.Value(fillKey{}).(HeaderFunc)
	if !ok {
		return ms
	}
	all := make([]Message, len(ms))
	for i, m := range ms {
		headers := map[string]string{}
		fill(ctx, headers)
		maps.Copy(headers, m.Headers)
		m.Headers = headers
		all[i] = m
	}
	return all
}
