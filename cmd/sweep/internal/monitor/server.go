package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the server. A scrape sends a few headers and gets an answer of some kilobytes, so that
// whoever takes longer is none.
const (
	requestTimeout = 5 * time.Second
	answerTimeout  = 15 * time.Second // Prometheus gives up after 10 s, unless it is told otherwise
	idleTimeout    = 3 * time.Minute  // between two scrapes, mostly a minute or less
	closeTimeout   = 2 * time.Second  // for the answers under way when the process ends
	maxHeaderBytes = 16 << 10
	maxScrapes     = 8 // at a time
)

// Server answers requests of HTTP. Make one with [Serve].
type Server struct {
	server   *http.Server
	listener net.Listener
	done     chan struct{}
}

// Listen takes an address, "127.0.0.1:9464", for [Serve]. Port 0 is any free port. The error does not
// repeat the address.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	var op *net.OpError
	if errors.As(err, &op) {
		return nil, op.Err
	}
	return l, err
}

// Local reports whether only this machine can reach a listener.
func Local(l net.Listener) bool {
	address, ok := l.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// Serve answers /metrics, /healthz and /readyz with what the monitor knows, until [Server.Close].
func Serve(l net.Listener, m *Monitor) *Server {
	mux := http.NewServeMux() // a pattern with GET also takes HEAD, and nothing else
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.Handle("GET /healthz", verdict(m.alive))
	mux.Handle("GET /readyz", verdict(m.ready))
	s := &Server{listener: l, done: make(chan struct{}), server: &http.Server{
		Handler: plain(mux), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
	}}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l) // Close ends it
	}()
	return s
}

// Close ends the server. Answers under way have a little time left.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close()
	}
	<-s.done
}

// verdict answers 200 or 503, and says why in a line.
func verdict(judge func() (ok bool, why string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ok, why := judge()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, why+"\n") // whoever asked may be gone
	})
}

// plain has browsers and proxies take an answer as what it is, and keep none.
func plain(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		h.ServeHTTP(w, r)
	})
}

// CheckAddress returns an error for what is no HOST:PORT. It looks nothing up.
func CheckAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%q is no address; write HOST:PORT, for example 127.0.0.1:9464", address)
	}
	return nil
}
