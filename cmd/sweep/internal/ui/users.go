package ui

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
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
	turn chan struct{} // who compares a password: bcrypt is meant to cost much

	mu      sync.Mutex
	changed time.Time
	size    int64
	looked  time.Time
	hashes  map[string][]byte
	good    map[[32]byte]bool // digests of names and passwords that were right, until the file changes
	key     [32]byte          // of the digests
	nobody  []byte            // the hash that the password of a stranger is compared with, so that it takes as long
}

const (
	maxUsersBytes = 1 << 20
	lookEvery     = time.Second // at the file
	maxGood       = 1000
	maxCost       = 14 // of bcrypt: some seconds
)

// ReadUsers reads the file.
func ReadUsers(path string) (*Users, error) {
	u := &Users{path: path, turn: make(chan struct{}, 2)}
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
	if u.nobody, err = bcrypt.GenerateFromPassword([]byte(rand.Text()), cost); err != nil {
		return err
	}
	u.hashes, u.good = hashes, map[[32]byte]bool{}
	u.changed, u.size = info.ModTime(), info.Size()
	return nil
}

// allow says whether the password is that of the user. wait ends when whoever asks has gone.
func (u *Users) allow(name, password string, wait <-chan struct{}) (bool, error) {
	digest := sha256.Sum256([]byte(string(u.key[:]) + fmt.Sprint(len(name), ":", name, password)))
	u.mu.Lock()
	if time.Since(u.looked) >= lookEvery {
		u.looked = time.Now()
		if err := u.refresh(); err != nil {
			u.mu.Unlock()
			return false, err
		}
	}
	good, hash, of := u.good[digest], u.hashes[name], u.changed
	nobody := u.nobody
	u.mu.Unlock()
	if good {
		return true, nil
	}
	select { // few at a time, so that guessing takes no more than some cores
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-wait:
		return false, nil
	}
	known := hash != nil
	if !known {
		hash = nobody
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !known {
		return false, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.good != nil && u.changed.Equal(of) && len(u.good) < maxGood {
		u.good[digest] = true
	}
	return true, nil
}
