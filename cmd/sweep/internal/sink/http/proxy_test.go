package http

import (
	"bufio"
	"context"
	"fmt"
	"net"
	nethttp "net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// through has a sink use a proxy.
func through(t *testing.T, s *Sink, proxy string) {
	t.Helper()
	u, err := url.Parse("http://" + proxy)
	if err != nil {
		t.Fatal(err)
	}
	s.client.Transport.(*nethttp.Transport).Proxy = nethttp.ProxyURL(u)
}

// answering is a server that answers every request with one status.
func answering(t *testing.T, status int) (address string) {
	return listen(t, func(c net.Conn) {
		_, _ = nethttp.ReadRequest(bufio.NewReader(c))
		fmt.Fprintf(c, "HTTP/1.1 %d Whatever\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
	})
}

// What fails at this node's proxy is neither the message's nor its destination's doing; what the proxy says of the
// destination is.
func TestProxyThatFails(t *testing.T) {
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing.Close()
	for _, c := range []struct {
		name, scheme, proxy string
		want, says          string
	}{
		{"refused", "http", refusing.Addr().String(), sinktest.Undelivered, "connection refused"},
		{"refused, TLS", "https", refusing.Addr().String(), sinktest.Undelivered, "connection refused"},
		{"wants a password", "http", answering(t, 407), sinktest.Undelivered, "answered 407"},
		{"wants a password, TLS", "https", answering(t, 407), sinktest.Undelivered, "answered CONNECT with 407"},
		{"forbids, TLS", "https", answering(t, 403), sinktest.Undelivered, "answered CONNECT with 403"},
		{"cannot reach it, TLS", "https", answering(t, 502), sinktest.Unreachable, "answered CONNECT with 502"},
		{"cannot reach it", "http", answering(t, 502), sinktest.Unreachable, "answered 502"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSink(t, c.scheme+"://user:hunter2@destination.example/hunter2", time.Minute)
			through(t, s, c.proxy)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it holds the message for longer
			defer cancel()
			check(t, s.Deliver(ctx, driver.Delivery{}), c.want, c.says)
		})
	}
}

// A message that the proxy did not let through is held for a moment: else it would be claimed and released in
// a busy loop.
func TestProxyPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		pause(t.Context())
		if took := time.Since(began); took != proxyPause {
			t.Errorf("it took %v, want %v", took, proxyPause)
		}
	})
}

// A destination that asks for a password as a proxy does is no proxy.
func TestDestinationThatActsAsAProxy(t *testing.T) {
	check(t, newSink(t, "http://"+answering(t, 407), 0).Deliver(t.Context(), driver.Delivery{}), sinktest.Broken, "answered 407")
}
