package ui

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// Users are the people who may come in, from a file that "htpasswd -B" writes: a line "name:hash" each, with a
// hash by bcrypt. A file that has changed is read again; one that cannot be used any more lets nobody in.
// Users may be used by several goroutines.
type Users struct {
	path string
	ask  chan struct{} // whoever compares a password or waits for it: whoever would be one too many is turned away
	turn chan struct{} // who compares a password: bcrypt is meant to cost much

	mu      sync.Mutex
	changed time.Time
	size    int64
	looked  time.Time
	hashes  map[string][]byte
	cost    int               // the highest of the hashes
	good    map[string][]byte // of each name a digest of the password that was right, until the file changes
	key     [32]byte          // of the digests
}

const (
	maxUsersBytes = 1 << 20
	lookEvery     = time.Second // at the file
	maxCost       = 14          // of bcrypt: some seconds
	maxCompared   = 2           // passwords at a time, so that guessing takes no more than some cores
	maxAsked      = 16          // passwords that are compared or wait for it
	maxAskTime    = 5 * time.Second
)

// errBusy says that more passwords are to be compared than there is time for.
var errBusy = errors.New("too many passwords are compared at a time")

// ReadUsers reads the file.
func ReadUsers(path string) (*Users, error) {
	u := &Users{path: path, ask: make(chan struct{}, maxAsked), turn: make(chan struct{}, maxCompared)}
	_, _ = rand.Read(u.key[:]) // never fails
	if err := u.refresh(); err != nil {
		return nil, err
	}
	return u, nil
}

// refresh reads the file if it has changed. While it cannot be used nobody is known.
func (u *Users) refresh() error {
	err := u.read()
	if err != nil {
		u.hashes, u.good = nil, nil
	}
	return err
}

// read is refresh without that. Errors name lines, and repeat nothing of them.
func (u *Users) read() error {
	info, err := os.Stat(u.path)
	if err != nil {
		return err
	}
	if u.hashes != nil && info.ModTime().Equal(u.changed) && info.Size() == u.size {
		return nil
	}
	u.hashes, u.good = nil, nil
	if info.Size() > maxUsersBytes {
		return fmt.Errorf("%s has more than %d bytes", u.path, maxUsersBytes)
	}
	file, err := os.Open(u.path)
	if err != nil {
		return err
	}
	defer file.Close()
	hashes := map[string][]byte{}
	cost := bcrypt.MinCost
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		is, err := bcrypt.Cost([]byte(hash))
		switch {
		case !ok || name == "":
			return fmt.Errorf("%s, line %d: not NAME:HASH", u.path, n)
		case err != nil:
			return fmt.Errorf("%s, line %d: the hash is not one of bcrypt; make it with: htpasswd -nB NAME", u.path, n)
		case is > maxCost:
			return fmt.Errorf("%s, line %d: the cost of the hash is %d, more than %d", u.path, n, is, maxCost)
		case hashes[name] != nil:
			return fmt.Errorf("%s, line %d: the name of an earlier line", u.path, n)
		}
		hashes[name] = []byte(hash)
		cost = max(cost, is)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", u.path, err)
	}
	if len(hashes) == 0 {
		return fmt.Errorf("%s names nobody", u.path)
	}
	u.hashes, u.cost, u.good = hashes, cost, map[string][]byte{}
	u.changed, u.size = info.ModTime(), info.Size()
	return nil
}

// allow says whether the password is that of the user. A password that was right before is not compared
// again: it waits for nobody, however many others are guessed. errBusy: this one was not compared.
func (u *Users) allow(ctx context.Context, name, password string) (bool, error) {
	mac := hmac.New(sha256.New, u.key[:])
	mac.Write([]byte(password))
	digest := mac.Sum(nil)
	u.mu.Lock()
	if time.Since(u.looked) >= lookEvery {
		u.looked = time.Now()
		if err := u.refresh(); err != nil {
			u.mu.Unlock()
			return false, err
		}
	}
	good, hash, cost, of := u.good[name], u.hashes[name], u.cost, u.changed
	u.mu.Unlock()
	if hmac.Equal(good, digest) {
		return true, nil
	}
	leave, err := u.queue(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	if !matches(hash, []byte(password), cost) {
		return false, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.good != nil && u.changed.Equal(of) {
		u.good[name] = digest
	}
	return true, nil
}

// queue waits for the turn to compare a password, which ends with leave.
func (u *Users) queue(ctx context.Context) (leave func(), err error) {
	select {
	case u.ask <- struct{}{}:
	default:
		return nil, errBusy
	}
	wait := time.NewTimer(maxAskTime)
	defer wait.Stop()
	select {
	case u.turn <- struct{}{}:
		return func() { <-u.turn; <-u.ask }, nil
	case <-wait.C:
	case <-ctx.Done():
	}
	<-u.ask
	return nil, errBusy
}

// matches compares a password with a hash, nil for a stranger's. A wrong one takes as long as the highest cost of
// all hashes wants, so that the time does not tell which names there are.
func matches(hash, password []byte, cost int) bool {
	if hash == nil {
		_ = bcrypt.CompareHashAndPassword(nobody(cost), password)
		return false
	}
	if bcrypt.CompareHashAndPassword(hash, password) == nil {
		return true
	}
	is, _ := bcrypt.Cost(hash) // read checked it
	for ; is < cost; is++ {    // each cost takes twice as long as the one before: together they make up the difference
		_ = bcrypt.CompareHashAndPassword(nobody(is), password)
	}
	return false
}

// nobody is a hash of that cost, of no known password.
func nobody(cost int) []byte {
	return fmt.Appendf(nil, "$2a$%02d$%s", cost, strings.Repeat(".", 22+31)) // the salt and the digest
}
