package http

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// serveTLS starts a server that speaks HTTP/2, or HTTP/1.1 only, and returns what trusts it.
func serveTLS(t *testing.T, http2 bool, handler nethttp.HandlerFunc) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = http2
	server.Config.ErrorLog = nil
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return server, pool
}

func trust(s *Sink, pool *x509.CertPool) {
	s.client.Transport.(*nethttp.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, ServerName: "example.com"}
}

// One attempt is one request: a connection that was used before and breaks while the answer
// is awaited is no reason to send a message again, whatever its body and its key.
func TestOneAttemptIsOneRequest(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, payload := range []string{"", "body"} {
			for _, header := range []string{"X-Other", "X-Idempotency-Key", "x-idempotency-key"} {
				t.Run(fmt.Sprintf("http2=%t,payload=%q,%s", http2, payload, header), func(t *testing.T) {
					var requests atomic.Int32
					keys := make(chan string, 10)
					conns := make(chan net.Conn, 10)
					server, pool := serveTLS(t, http2, func(w nethttp.ResponseWriter, r *nethttp.Request) {
						keys <- r.Header.Get("Idempotency-Key") + " " + r.Header.Get(header)
						if requests.Add(1) > 1 {
							(<-conns).Close()
						}
					})
					relayed, _ := relay(t, server.Listener.Addr().String(), func(c net.Conn) { conns <- c })
					s := newSink(t, "https://"+relayed, 0)
					trust(s, pool)
					m := driver.Delivery{DispatchKey: "k", Payload: []byte(payload), Headers: map[string]string{header: "v"}}
					check(t, s.Deliver(t.Context(), m), sinktest.Done, "")
					check(t, s.Deliver(t.Context(), m), sinktest.Unreachable, "")
					if n := requests.Load(); n != 2 {
						t.Errorf("two attempts came as %d requests", n)
					}
					for range 2 {
						if got := <-keys; got != "k v" {
							t.Errorf("the keys arrived as %q", got)
						}
					}
				})
			}
		}
	}
}

// relay passes connections on to a server. What it calls forget with is dead from then on,
// as the network forgets it: bytes vanish, in both directions, and nobody is told.
func relay(t *testing.T, to string, accepted func(net.Conn)) (address string, forget func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var forgotten []*atomic.Bool
	var conns []net.Conn
	var wg sync.WaitGroup
	pass := func(dst, src net.Conn, dead *atomic.Bool) {
		defer dst.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := src.Read(buffer)
			if err != nil {
				return
			}
			if dead.Load() {
				_, _ = io.Copy(io.Discard, src)
				return
			}
			if _, err := dst.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			accepted(client)
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			dead := &atomic.Bool{}
			mu.Lock()
			forgotten, conns = append(forgotten, dead), append(conns, client, server)
			mu.Unlock()
			wg.Go(func() { pass(server, client, dead) })
			wg.Go(func() { pass(client, server, dead) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String(), func() {
		mu.Lock()
		defer mu.Unlock()
		for _, dead := range forgotten {
			dead.Store(true)
		}
	}
}

// Connections that the network has forgotten cost one attempt, not one each, nor all until
// the kernel gives up.
func TestForgottenConnections(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%t", http2), func(t *testing.T) {
			const together = 3
			var meet sync.WaitGroup // so that HTTP/1.1 takes a connection for each
			meet.Add(together)
			protocol := make(chan string, 100)
			server, pool := serveTLS(t, http2, func(w nethttp.ResponseWriter, r *nethttp.Request) {
				protocol <- r.Proto
				if r.Header.Get("X-Meet") != "" {
					meet.Done()
					meet.Wait()
				}
			})
			address, forget := relay(t, server.Listener.Addr().String(), func(net.Conn) {})
			s := newSink(t, "https://"+address, 6*time.Second)
			trust(s, pool)
			var wg sync.WaitGroup
			for range together {
				wg.Go(func() {
					check(t, s.Deliver(t.Context(), driver.Delivery{Headers: map[string]string{"X-Meet": "1"}}), sinktest.Done, "")
				})
			}
			wg.Wait()
			if p := <-protocol; http2 != (p == "HTTP/2.0") {
				t.Fatalf("the server was asked by %s", p)
			}
			forget()
			check(t, s.Deliver(t.Context(), driver.Delivery{Payload: []byte("x")}), sinktest.Unreachable, "")
			check(t, s.Deliver(t.Context(), driver.Delivery{Payload: []byte("x")}), sinktest.Done, "")
		})
	}
}

// As many connections are kept as there are slots: none is dialled anew for each delivery.
func TestAConnectionForEachSlot(t *testing.T) {
	const slots = 100
	var dialled atomic.Int32
	turn := make(chan struct{}, slots)
	answer := make(chan struct{})
	address := listen(t, func(c net.Conn) {
		dialled.Add(1)
		reader := bufio.NewReader(c)
		for {
			r, err := nethttp.ReadRequest(reader)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			turn <- struct{}{}
			<-answer
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	s, err := New("http://"+address, 0, slots, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		var wg sync.WaitGroup
		for range slots {
			wg.Go(func() { check(t, s.Deliver(t.Context(), driver.Delivery{}), sinktest.Done, "") })
		}
		for range slots {
			<-turn
		}
		for range slots {
			answer <- struct{}{}
		}
		wg.Wait()
	}
	if n := dialled.Load(); n != slots {
		t.Errorf("%d connections for %d slots", n, slots)
	}
}
