package pgtest

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Direction is a way through a [Proxy].
type Direction int

const (
	ToServer Direction = 1 << iota
	FromServer

	BothWays = ToServer | FromServer
)

// Proxy is the network between one client and the server: a TCP relay that can hold
// back bytes one way or both, delay them, cut connections, and forget them. It needs no
// privilege, so it works wherever the tests do. What is held back arrives once the way
// is free again, as what TCP sends again does after packets were lost. Its methods may be
// called concurrently.
type Proxy struct {
	listener net.Listener
	network  string // where the server listens
	address  string
	accepted atomic.Int64

	mu      sync.Mutex
	free    *sync.Cond // a way may have become free
	blocked Direction
	delay   time.Duration
	refuse  bool
	closed  bool
	links   map[*link]bool
	left    int64  // bytes from the server until then
	then    func() // nil: nothing is waited for
	ended   sync.WaitGroup
}

// link is one connection and its other half.
type link struct {
	client, server net.Conn
	forgotten      bool // nothing passes any more; under Proxy.mu
}

// NewProxy starts a relay to the server that dsn names; it ends with the test.
func NewProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal("pgtest: the connection string does not parse")
	}
	p := &Proxy{links: map[*link]bool{}}
	p.free = sync.NewCond(&p.mu)
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p.ended.Go(p.listen)
	t.Cleanup(p.close)
	return p
}

// DSN is dsn by way of the proxy.
func (p *Proxy) DSN(dsn string) string {
	return throughPort(dsn, p.listener.Addr().(*net.TCPAddr).Port)
}

// Accepted is how many connections the client has opened so far.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Block holds back all bytes that go these ways, until Block is called with others.
func (p *Proxy) Block(ways Direction) {
	p.change(func() { p.blocked = ways })
}

// Delay lets each piece of data take d more or less by half, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.change(func() { p.delay = d })
}

// Refuse resets new connections at once, as a server that is down does.
func (p *Proxy) Refuse(on bool) {
	p.change(func() { p.refuse = on })
}

// Reset cuts all connections with a reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// After calls do, once, when so many more bytes have come from the server, over all
// connections, before the last of them are passed on.
func (p *Proxy) After(bytes int64, do func()) {
	p.change(func() { p.left, p.then = bytes, do })
}

// count counts bytes from the server.
func (p *Proxy) count(n int) {
	p.mu.Lock()
	p.left -= int64(n)
	then := p.then
	if p.left > 0 {
		then = nil
	} else {
		p.then = nil
	}
	p.mu.Unlock()
	if then != nil {
		then()
	}
}

// Forget lets nothing pass on the connections of now, ever, without telling either
// side: as a firewall does that has lost its state.
func (p *Proxy) Forget() {
	p.change(func() {
		for l := range p.links {
			l.forgotten = true
		}
	})
}

func (p *Proxy) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	p.free.Broadcast()
}

func (p *Proxy) listen() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		p.ended.Go(func() { p.relay(client) })
	}
}

func (p *Proxy) relay(client net.Conn) {
	l := &link{client: client}
	p.mu.Lock()
	refuse := p.refuse || p.closed
	p.mu.Unlock()
	var err error
	if !refuse {
		l.server, err = net.DialTimeout(p.network, p.address, connectTimeout)
	}
	if refuse || err != nil {
		l.cut()
		return
	}
	p.change(func() { p.links[l] = true })
	if p.isClosed() {
		l.cut()
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, l.client, l.server, ToServer) })
	pumps.Go(func() { p.pump(l, l.server, l.client, FromServer) })
	pumps.Wait()
	l.cut()
	p.change(func() { delete(p.links, l) })
}

// pump moves what comes from one side to the other. Where the way is blocked it does not
// read on: the sender's buffers fill up, and its end, too, is not told.
func (p *Proxy) pump(l *link, from io.Reader, to net.Conn, way Direction) {
	buffer := make([]byte, 32<<10)
	for p.pass(l, way) {
		n, err := from.Read(buffer)
		p.linger()
		if way == FromServer {
			p.count(n)
		}
		if !p.pass(l, way) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				l.cut()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the other side may be gone
			}
			return
		}
		if err != nil {
			l.cut()
			return
		}
	}
}

// linger waits for the delay.
func (p *Proxy) linger() {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	if d > 0 {
		<-time.After(d/2 + rand.N(d))
	}
}

// pass waits until the way is free. It reports false at the proxy's end.
func (p *Proxy) pass(l *link, way Direction) bool {
	p.mu.Lock()
	for !p.closed && (p.blocked&way != 0 || l.forgotten) {
		p.free.Wait()
	}
	closed := p.closed
	p.mu.Unlock()
	return !closed
}

func (p *Proxy) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.change(func() {
		p.closed = true
		for l := range p.links {
			l.cut()
		}
	})
	p.ended.Wait()
}

// cut closes both halves; a client that still has something to say or hear is sent a reset.
func (l *link) cut() {
	for _, conn := range []net.Conn{l.client, l.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
}
