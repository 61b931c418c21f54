package driver

import (
	"context"
	"maps"
	"testing"
)

// What functions of the context add goes into each message, behind what the message has itself, and
// leaves the caller's own maps as they are.
func TestFillHeaders(t *testing.T) {
	type key struct{}
	ctx := FillHeaders(t.Context(), func(ctx context.Context, h map[string]string) {
		h["trace"], h["first"] = ctx.Value(key{}).(string), "1"
	})
	ctx = FillHeaders(ctx, func(_ context.Context, h map[string]string) { h["first"] += "2" })
	ctx = context.WithValue(ctx, key{}, "t")
	own := map[string]string{"trace": "own"}
	ms := []Message{{DispatchKey: "a"}, {DispatchKey: "b", Headers: own}}
	got := filled(ctx, ms)
	for i, want := range []map[string]string{{"trace": "t", "first": "12"}, {"trace": "own", "first": "12"}} {
		if !maps.Equal(got[i].Headers, want) || got[i].DispatchKey != ms[i].DispatchKey {
			t.Errorf("message %d is %+v, want the headers %v", i, got[i], want)
		}
	}
	if ms[0].Headers != nil || len(own) != 1 {
		t.Errorf("the caller's own have changed: %v, %v", ms[0].Headers, own)
	}
	if same := filled(t.Context(), ms); &same[0] != &ms[0] {
		t.Error("without a function, the messages were copied")
	}
}
