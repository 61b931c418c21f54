package http

import (
	"context"
	"errors"
	"fmt"
	"net"
	nethttp "net/http"
	"net/url"
	"time"
)

// proxyPause is how long a message is held whose request this node's proxy has not let through: so that
// releasing and claiming it again does not become a busy loop.
const proxyPause = 5 * time.Second

// proxyError is a failure of this node's proxy: neither the message nor its destination has a part in it.
type proxyError struct{ err error }

func (e *proxyError) Error() string { return e.err.Error() }
func (e *proxyError) Unwrap() error { return e.err }

// isOfProxy reports whether an exchange failed at the proxy: it could not be connected to, or has refused to
// let this node through.
func isOfProxy(err error) bool {
	if _, ok := errors.AsType[*proxyError](err); ok {
		return true
	}
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "proxyconnect"
}

// tunnel reads how a proxy has answered a CONNECT. That it could not reach the server (502, 503 and 504) is
// the destination's doing, and comes as such; all else but 200 is the proxy's.
func tunnel(_ context.Context, _ *url.URL, _ *nethttp.Request, response *nethttp.Response) error {
	status := response.StatusCode
	err := fmt.Errorf("the proxy answered CONNECT with %d %s", status, nethttp.StatusText(status))
	switch {
	case status == nethttp.StatusOK:
		return nil
	case status == nethttp.StatusBadGateway || status == nethttp.StatusServiceUnavailable || status == nethttp.StatusGatewayTimeout:
		return err
	}
	return &proxyError{err}
}

// answeredByProxy reports whether the answer to a request may be a proxy's own: without TLS it passes requests on,
// and answers on the server's behalf.
func (s *Sink) answeredByProxy(request *nethttp.Request) bool {
	proxy, err := s.client.Transport.(*nethttp.Transport).Proxy(request)
	return err == nil && proxy != nil && request.URL.Scheme == "http"
}

// pause waits for proxyPause, or until ctx ends.
func pause(ctx context.Context) {
	timer := time.NewTimer(proxyPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
