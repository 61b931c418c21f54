package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// soakEnv holds the soakConfig of a process that is to be a node of the soak.
const soakEnv = "FAIRCLAIM_SOAK_NODE"

// soakConfig is what a node of the soak is told.
type soakConfig struct {
	DSN    string
	Node   string // its name, unlike that of any process before it
	Shards []int32
	Dir    string // where it writes what it delivers, and its stats at the end
}

// soakLease is how long a lease lasts in the soak, unless it is extended.
const soakLease = time.Minute

// soakDelivery is one line of a node's deliveries, on disk before the sink says done.
type soakDelivery struct {
	Key        string
	Token      int64
	Attempt    int32
	Suspect    int32     // expired leases that were not charged
	LeaseUntil time.Time // as the claim set it
	node       string
}

// soakNode is the life of a node's process: it sweeps until SIGTERM. It returns the code
// to exit with, false where this process is not to be a node.
func soakNode() (code int, ok bool) {
	text, ok := os.LookupEnv(soakEnv)
	if !ok {
		return 0, false
	}
	if err := soakRun(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func soakRun(text string) error {
	var c soakConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM) // before there is a log file: see soak.play
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, c.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	file, err := os.OpenFile(filepath.Join(c.Dir, c.Node+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	s, err := node.New(pool, node.Config{
		Node: c.Node, Shards: c.Shards, Sink: soakSink(file), Batch: 20, Tick: 20 * time.Millisecond,
		Budget: 4000, MinPause: 10 * time.Millisecond, Slots: 8, Queue: 20,
		RescueEvery: 100 * time.Millisecond, HeartbeatEvery: 200 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	go func() {
		<-term
		s.Drain()
	}()
	if err := s.Run(ctx); err != nil {
		return err
	}
	stats, err := json.Marshal(s.Stats())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Dir, c.Node+".stats"), stats, 0o600)
}

// soakSink takes a while, fails some first attempts, and writes the others' lines.
func soakSink(file *os.File) node.SinkFunc {
	return func(ctx context.Context, m driver.Delivery) error {
		hash := fnv.New32a()
		fmt.Fprint(hash, m.DispatchKey)
		h := hash.Sum32()
		select {
		case <-time.After(time.Duration(h%20) * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if m.Attempt == 1 && h%30 == 0 {
			return node.RetryAfter(errors.New("try again"), 0)
		}
		line, err := json.Marshal(soakDelivery{Key: m.DispatchKey, Token: m.ClaimToken, Attempt: m.Attempt, Suspect: m.Suspect, LeaseUntil: m.LeaseUntil})
		if err != nil {
			return node.Permanent(err)
		}
		if _, err := file.Write(append(line, '\n')); err != nil {
			return err
		}
		return file.Sync()
	}
}

// soakDeliveries reads what all nodes have delivered, by key, in the order of the claims'
// tokens within a file.
func soakDeliveries(t testing.TB, dir string) map[string][]soakDelivery {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]soakDelivery{}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			d := soakDelivery{node: filepath.Base(name[:len(name)-len(".log")])}
			if json.Unmarshal(lines.Bytes(), &d) != nil {
				continue // cut off by a kill: the sink had not said done
			}
			all[d.Key] = append(all[d.Key], d)
		}
		if err := errors.Join(lines.Err(), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}
