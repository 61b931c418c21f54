// Package http is the sink that posts each message to a URL.
//
// The body is the payload as it is. The header has the message's Content-Type, its
// dispatch key as Idempotency-Key (the same at each attempt; '%' and all bytes but visible
// ASCII are written as %XX), its attempt as Fairclaim-Attempt, when it was enqueued (the same at
// each attempt, by the database's clock, RFC 3339 in UTC) as Fairclaim-Created-At, and the
// message's own headers.
//
// The status of the answer says what becomes of the message, or how its destination is: see
// meaningOf. No redirect is followed, since it would take payload and credentials to a place
// that the operator did not name.
//
// Errors name the scheme and the host of the URL only: user and query are secrets, and
// often the path is too.
package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/snippet"
	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

const (
	// DefaultTimeout is the time-out of an exchange where [New] is given 0.
	DefaultTimeout = 30 * time.Second

	// Of a body at most maxBody bytes are read, for at most bodyPatience after the status:
	// enough to use the connection again, and for the text of an error.
	maxBody      = 64 << 10
	bodyPatience = time.Second

	maxHeader  = 256 << 10 // of a response, in bytes
	maxSnippet = 512       // of a response's body in an error, in bytes

	// defaultConns is how many idle connections are kept where [New] is given 0.
	defaultConns = 64

	// longestSilence is the longest time without a frame before an HTTP/2 connection is
	// tested with a ping.
	longestSilence = 10 * time.Second
)

// Sink posts messages to a URL. It is safe for use by many goroutines. Use [New];
// the zero value does not work.
type Sink struct {
	url     *template
	hidden  *strings.Replacer
	timeout time.Duration
	client  nethttp.Client

	final4xx bool // most 4xx are the message's, and final: see meaningOf
}

// New returns a sink for a URL, in which {namespace} and {task_queue} stand for
// those of the message, in the path or the query. A value fills part of a single
// path segment or query value: its slashes, quotes and so on are escaped. Messages
// whose value would make a path segment "." or ".." fail.
//
// A user and password in the URL are sent as basic authentication. timeout bounds
// the whole exchange, from dialling to the end of the body; 0 is [DefaultTimeout].
// conns is how many idle connections are kept: as many as there are deliveries at a
// time; 0 is 64. A proxy is taken from the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
// With final4xx most answers of 4xx fail the message for good.
func New(rawURL string, timeout time.Duration, conns int, final4xx bool) (*Sink, error) {
	t, err := parseTemplate(rawURL)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if conns <= 0 {
		conns = defaultConns
	}
	if _, err := nethttp.ProxyFromEnvironment(&nethttp.Request{URL: &t.origin}); err != nil {
		return nil, errors.New("http: the proxy in HTTP_PROXY or HTTPS_PROXY is not a URL")
	}
	return &Sink{
		url: t, hidden: t.redactor(), timeout: timeout, final4xx: final4xx,
		client: nethttp.Client{
			CheckRedirect: func(*nethttp.Request, []*nethttp.Request) error { return nethttp.ErrUseLastResponse },
			Transport:     transport(timeout, conns),
		},
	}, nil
}

// transport returns a transport that finds a dead connection within the time-out of a
// delivery. HTTP/2 has one connection for all deliveries, and only a ping tells a dead
// connection from a slow server. The ping is sent after a third of the time-out and waited
// for as long, so that the next attempt gets a new connection.
func transport(timeout time.Duration, conns int) *nethttp.Transport {
	silence := max(min(timeout/3, longestSilence), time.Millisecond)
	return &nethttp.Transport{
		Proxy:                  nethttp.ProxyFromEnvironment,
		OnProxyConnectResponse: tunnel,
		DisableCompression:     true, // bodies are thrown away
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    conns,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		HTTP2:                  &nethttp.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence, WriteByteTimeout: silence},
	}
}

// String is the name of the sink in logs: scheme and host.
func (s *Sink) String() string { return s.url.origin.String() }

// Shared says that the messages of all namespaces go to one server: no placeholder stands in a host.
func (s *Sink) Shared(string) bool { return true }

// Close closes the idle connections.
func (s *Sink) Close() { s.client.CloseIdleConnections() }

// Deliver posts m and waits for the answer. Where this node's proxy does not let it through, it holds m for 5
// seconds, or until ctx ends, and then hands it back uncharged.
func (s *Sink) Deliver(ctx context.Context, m driver.Delivery) error {
	err := s.post(ctx, m)
	if isOfProxy(err) {
		pause(ctx)
		return node.Undelivered(err)
	}
	return err
}

func (s *Sink) post(ctx context.Context, m driver.Delivery) error {
	u, err := s.url.render(m)
	if err != nil {
		return node.Permanent(fmt.Errorf("%s: %w", s, err))
	}
	if ctx.Err() != nil {
		return node.Undelivered(fmt.Errorf("%s: not sent: %w", s, context.Cause(ctx)))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("timed out after %v without a full answer", s.timeout))
	defer cancel()
	request, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodPost, s.String(), bytes.NewReader(m.Payload))
	if err != nil {
		return fmt.Errorf("%s: %s", s, s.clean([]byte(err.Error())))
	}
	request.URL = u
	request.Header = headerOf(m, s.url.user != nil)
	oneRequest(request)
	if user := s.url.user; user != nil {
		password, _ := user.Password()
		request.SetBasicAuth(user.Username(), password)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return s.noAnswer(ctx, err)
	}
	defer response.Body.Close()
	defer time.AfterFunc(bodyPatience, cancel).Stop()
	body := io.LimitReader(response.Body, maxBody)
	if response.StatusCode/100 == 2 {
		_, _ = io.Copy(io.Discard, body)
		return nil
	}
	text, _ := io.ReadAll(body)
	delay, waits := retryAfter(response.Header)
	err = s.refused(response, text)
	switch meaningOf(response.StatusCode, waits, s.answeredByProxy(request), s.final4xx) {
	case failed:
		return node.Permanent(err)
	case unreachable:
		return node.DestinationFailed(err)
	case busy:
		return node.Hold(err, delay)
	case gone:
		return node.DestinationGone(err)
	case ours:
		return &proxyError{err}
	default:
		return node.DestinationBroken(err)
	}
}

// oneRequest keeps net/http from sending a request a second time, after a connection broke
// and the server may have seen the request: the retry policy decides how often a message is
// sent. net/http repeats a POST with an Idempotency-Key where it can read the body again:
// where GetBody is set, or where there is no body. So GetBody is cleared, and without a body
// the field gets a name in lower case, which net/http does not look for, and which is the
// same name to a server.
func oneRequest(request *nethttp.Request) {
	request.GetBody = nil
	if request.Body != nethttp.NoBody {
		return
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := request.Header[name]; ok {
			delete(request.Header, name)
			request.Header[strings.ToLower(name)] = values
		}
	}
}

// noAnswer is the error of an exchange without a status.
func (s *Sink) noAnswer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// Where the network has dropped this connection, it probably dropped the idle ones too.
			s.client.CloseIdleConnections()
		}
		return node.DestinationFailed(fmt.Errorf("%s: %w", s, context.Cause(ctx)))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the rest of e is the URL
	}
	text := fmt.Errorf("%s: %s", s, s.clean([]byte(err.Error())))
	if isOfProxy(err) {
		return &proxyError{text}
	}
	return node.DestinationFailed(text)
}

// refused is the text of an answer that is not a 2xx.
func (s *Sink) refused(response *nethttp.Response, body []byte) error {
	status := response.StatusCode
	var b strings.Builder
	fmt.Fprintf(&b, "%s: answered %d", s, status)
	if text := nethttp.StatusText(status); text != "" {
		b.WriteString(" " + text)
	}
	if to, err := response.Location(); err == nil && status/100 == 3 {
		origin := url.URL{Scheme: to.Scheme, Host: to.Host}
		fmt.Fprintf(&b, " (to %s; redirects are not followed, change the sink's URL)", s.clean([]byte(origin.String())))
	}
	if text := s.clean(body); text != "" {
		b.WriteString(": " + text)
	}
	return errors.New(b.String())
}

// clean makes a text of the server or the network fit for an error, without secrets.
func (s *Sink) clean(text []byte) string {
	return snippet.Clean([]byte(s.hidden.Replace(string(text))), maxSnippet)
}
