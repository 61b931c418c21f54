package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
)

const (
	stdinName = "-"

	// The largest max_payload_bytes that an outbox can be set to.
	payloadCeiling = 256 << 20

	// Most bytes of a line beside its payload.
	lineOverhead = 1 << 20
)

// inputLine is a line of input, parsed.
type inputLine struct {
	file    string
	number  int // 1 is the first
	message driver.Message
	err     error // why the line is bad
	fatal   bool  // err is about the file, and no line follows
}

// at names the line: messages.ndjson:17.
func (l inputLine) at() string {
	name := l.file
	if name == stdinName {
		name = "stdin"
	}
	return name + ":" + strconv.Itoa(l.number)
}

// lineLimit is the length in bytes of the longest line that can be enqueued: the largest
// payload in base64. For a role that may only enqueue, and so cannot read the setting
// max_payload_bytes, it is the largest that the setting can have.
func lineLimit(ctx context.Context, conn *pgx.Conn) int {
	limit := payloadCeiling
	err := inReadTx(ctx, conn, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select (outbox.settings()).max_payload_bytes`).Scan(&limit)
	})
	if err != nil {
		limit = payloadCeiling
	}
	return (limit+2)/3*4 + lineOverhead
}

// readLines parses files in a goroutine of its own, until ctx ends. A read from standard
// input cannot be interrupted: the goroutine may stay in it until the process ends.
func readLines(ctx context.Context, stdin io.Reader, files []string, limit int) <-chan inputLine {
	lines := make(chan inputLine, 16)
	send := func(l inputLine) bool {
		select {
		case lines <- l:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(lines)
		for _, name := range files {
			if !readFile(name, stdin, limit, send) {
				return
			}
		}
	}()
	return lines
}

// readFile sends the lines of one file. It returns false when no more lines may be sent.
func readFile(name string, stdin io.Reader, limit int, send func(inputLine) bool) bool {
	in := stdin
	if name != stdinName {
		file, err := os.Open(name)
		if err != nil {
			send(inputLine{file: name, err: err, fatal: true})
			return false
		}
		defer file.Close()
		in = file
	}
	r := &lineReader{in: bufio.NewReaderSize(in, 256<<10), limit: limit}
	for {
		text, err := r.next()
		line := inputLine{file: name, number: r.number}
		switch {
		case errors.Is(err, io.EOF):
			return true
		case errors.Is(err, errLongLine):
			line.err = err
		case err != nil:
			line.err = fmt.Errorf("read %s after line %d: %w", name, r.number, err)
			line.fatal = true
			send(line)
			return false
		default:
			if text = bytes.TrimSpace(text); len(text) == 0 {
				continue
			}
			line.message, line.err = parseLine(text)
		}
		if !send(line) {
			return false
		}
	}
}

var errLongLine = errors.New("line too long")

// lineReader splits a stream into lines of at most limit bytes. It skips a longer line
// without holding it in memory.
type lineReader struct {
	in     *bufio.Reader
	limit  int
	number int // of the line that next has returned; the first is 1
	buf    []byte
}

// next returns the next line, with its line feed if it has one; the bytes are valid until
// the next call. After the last line it returns io.EOF, for a line that is too long
// errLongLine.
func (r *lineReader) next() ([]byte, error) {
	r.buf = r.buf[:0]
	size := 0
	for {
		part, err := r.in.ReadSlice('\n')
		size += len(part)
		if size <= r.limit {
			r.buf = append(r.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (!errors.Is(err, io.EOF) || size == 0):
			return nil, err
		}
		r.number++
		if size > r.limit {
			return nil, fmt.Errorf("%w: %d bytes, where the largest payload that the outbox takes makes %d at most", errLongLine, size, r.limit)
		}
		if r.number == 1 {
			return bytes.TrimPrefix(r.buf, []byte("\ufeff")), nil
		}
		return r.buf, nil
	}
}
