package http

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

func TestRedirectsAreNotFollowed(t *testing.T) {
	var followed atomic.Int32
	target := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) { followed.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
			w.Header().Set("Location", strings.Replace(target.URL, "http://", "http://u:hunter2@", 1)+"/in?token=hunter2")
			w.WriteHeader(status)
		})
		err := newSink(t, server.URL, 0).Deliver(t.Context(), driver.Delivery{Payload: []byte("x")})
		check(t, err, sinktest.Unreachable, "(to "+target.URL+"; redirects are not followed")
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("shows a secret: %v", err)
		}
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// INV-11: an exchange ends in time wherever the server stops, and what it has said
// by then counts.
func TestSlowServers(t *testing.T) {
	const (
		short = 400 * time.Millisecond
		long  = time.Hour // ends none of these exchanges
	)
	stall := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) } // until the client hangs up
	drip := func(c net.Conn) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := io.WriteString(c, "x"); err != nil {
				return
			}
		}
	}
	flood := func(c net.Conn) {
		for {
			if _, err := c.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
				return
			}
		}
	}
	floodOf := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, strings.Repeat(text, 1000)); err != nil {
					return
				}
			}
		}
	}
	for _, c := range []struct {
		name, head string
		then       func(net.Conn)
		timeout    time.Duration
		want, says string
	}{
		{"no byte", "", stall, short, sinktest.Unreachable, "timed out after 400ms without a full answer"},
		{"half a status line", "HTTP/1.", stall, short, sinktest.Unreachable, "timed out after 400ms without a full answer"},
		{"endless header, slow", "HTTP/1.1 200 OK\r\nX: ", drip, short, sinktest.Unreachable, "timed out after 400ms without a full answer"},
		{"endless header, fast", "HTTP/1.1 200 OK\r\nX: ", flood, long, sinktest.Unreachable, "headers exceeded"},
		{"endless interim answers", "HTTP/1.1 102 Processing\r\n\r\n", stall, short, sinktest.Unreachable, "timed out after 400ms without a full answer"},
		{"interim answers, fast", "HTTP/1.1 ", floodOf("103 Early Hints\r\n\r\nHTTP/1.1 "), long, sinktest.Unreachable, ""},
		{"interim answers, dripping", "HTTP/1.1 103 Early Hints\r\nX: ", drip, short, sinktest.Unreachable, "timed out after 400ms"},
		{"done, endless trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", floodOf("X: y\r\n"), long, sinktest.Done, ""},
		{"done, a trailer drips", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", drip, long, sinktest.Done, ""},
		{"gone, endless trailers", "HTTP/1.1 410 Gone\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwhy\r\n0\r\n", floodOf("X: y\r\n"), long, sinktest.Gone, "answered 410 Gone: why"},
		{"done, body stalls", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx", stall, long, sinktest.Done, ""},
		{"done, body drips", "HTTP/1.1 200 OK\r\n\r\n", drip, long, sinktest.Done, ""},
		{"done, endless body", "HTTP/1.1 200 OK\r\n\r\n", flood, long, sinktest.Done, ""},
		{"gone, body stalls", "HTTP/1.1 410 Gone\r\nContent-Length: 10\r\n\r\nwhy", stall, long, sinktest.Gone, "answered 410 Gone: why"},
		{"gone, endless body", "HTTP/1.1 410 Gone\r\n\r\nwhy xxx", flood, long, sinktest.Gone, "answered 410 Gone: why xxx"},
		{"busy, body drips", "HTTP/1.1 503 Busy\r\nRetry-After: 5\r\n\r\n", drip, long, sinktest.Busy, "answered 503"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address := listen(t, func(conn net.Conn) {
				_, _ = nethttp.ReadRequest(bufio.NewReader(conn))
				_, _ = io.WriteString(conn, c.head)
				c.then(conn)
			})
			s := newSink(t, "http://"+address, c.timeout)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			err := s.Deliver(ctx, driver.Delivery{})
			check(t, err, c.want, c.says)
			if ctx.Err() != nil {
				t.Error("it does not end by itself")
			}
			if err != nil && len(err.Error()) > maxSnippet+200 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
}

// A body that drips on after the status is left alone long before the time-out.
func TestStatusIsEnough(t *testing.T) {
	release := make(chan struct{})
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		w.WriteHeader(200)
		_ = nethttp.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	began := time.Now()
	check(t, newSink(t, server.URL, time.Hour).Deliver(t.Context(), driver.Delivery{}), sinktest.Done, "")
	if took := time.Since(began); took > bodyPatience+5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestNoAnswer(t *testing.T) {
	// Nobody listens on the port that a connection goes out from, and nobody else gets it.
	out, err := net.Dial("tcp", listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	closed := out.LocalAddr().String()
	hangUp := listen(t, func(c net.Conn) { _, _ = nethttp.ReadRequest(bufio.NewReader(c)) })
	garbage := listen(t, func(c net.Conn) {
		_, _ = nethttp.ReadRequest(bufio.NewReader(c))
		fmt.Fprintf(c, "220 smtp \x1b[31m%s\r\n\r\n", strings.Repeat("x", 5000))
	})
	plain := serve(t, func(nethttp.ResponseWriter, *nethttp.Request) {})
	for _, c := range []struct{ name, url, says string }{
		{"connection refused", "http://" + closed, "connection refused"},
		{"no such host", "http://no-such-host.invalid", "no-such-host.invalid"},
		{"hangs up", "http://" + hangUp, "EOF"},
		{"not HTTP", "http://" + garbage, "malformed HTTP"},
		{"not TLS", strings.Replace(plain.URL, "http:", "https:", 1), "HTTP response to HTTPS client"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := strings.Replace(c.url, "://", "://user:hunter2@", 1) + "/path?token=hunter2"
			err := newSink(t, raw, 5*time.Second).Deliver(t.Context(), driver.Delivery{})
			check(t, err, sinktest.Unreachable, c.says)
			if text := err.Error(); strings.Contains(text, "hunter2") || strings.Contains(text, "/path") || len(text) > 1000 || strings.Contains(text, "\x1b") {
				t.Errorf("error is %q", text)
			}
		})
	}
}

func TestSelfSignedCertificateIsRefused(t *testing.T) {
	server := httptest.NewUnstartedServer(nethttp.HandlerFunc(func(nethttp.ResponseWriter, *nethttp.Request) {
		t.Error("the request got through")
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	check(t, newSink(t, server.URL, 0).Deliver(t.Context(), driver.Delivery{}), sinktest.Unreachable, "certificate")
}

func TestContextEnds(t *testing.T) {
	arrived := make(chan struct{})
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	s := newSink(t, server.URL, time.Hour)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-arrived; cancel(errors.New("stopped by the test")) }()
	check(t, s.Deliver(ctx, driver.Delivery{}), sinktest.Unreachable, "stopped by the test")
	check(t, s.Deliver(ctx, driver.Delivery{}), sinktest.Undelivered, "not sent: stopped by the test")
}

// A server that sends back what it got must not put the URL's secrets into errors.
func TestEchoedSecretsAreHidden(t *testing.T) {
	server := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		user, password, _ := r.BasicAuth()
		w.WriteHeader(500)
		fmt.Fprintf(w, "cannot POST %s as %s / %s (%s), token %s", r.RequestURI, user, password, r.Header.Get("Authorization"), r.URL.Query().Get("token"))
	})
	raw := strings.Replace(server.URL, "http://", "http://login%21:login%21pass%2Fword@", 1) + "/services/T%210001/{namespace}/p?token=tok%2Fen%2F1&ns={namespace}&v=1&bareword"
	err := newSink(t, raw, 0).Deliver(t.Context(), driver.Delivery{Namespace: "acme"})
	check(t, err, sinktest.Broken, "cannot POST /[hidden]/acme/p?token=[hidden]&ns=acme&v=1&[hidden] as [hidden] / [hidden] (Basic [hidden]), token [hidden]")
}

// A body without end is not read to fill the memory.
func TestBodyIsReadUpToABound(t *testing.T) {
	for _, status := range []string{"200 OK", "500 Oops"} {
		sent := make(chan int, 1)
		address := listen(t, func(c net.Conn) {
			_, _ = nethttp.ReadRequest(bufio.NewReader(c))
			total, err := fmt.Fprintf(c, "HTTP/1.1 %s\r\n\r\n", status)
			for err == nil {
				var n int
				n, err = c.Write(make([]byte, 64<<10))
				total += n
			}
			sent <- total
		})
		_ = newSink(t, "http://"+address, 0).Deliver(t.Context(), driver.Delivery{})
		if n := <-sent; n > 32<<20 { // the kernel's buffers take a part of it
			t.Errorf("%s: took %d bytes", status, n)
		}
	}
}
