package stdout

import (
	"io/fs"
	"os"
)

// mayBeTorn reports whether what other processes have written to f may end in the middle of a
// line. A file tells by its last byte, if it can be read, and may be otherwise. What went
// through a pipe is gone: it is suspected where some of it still waits for the
// reader, or writes to it do not block, and so can be cut short.
func mayBeTorn(f *os.File) bool {
	info, err := f.Stat()
	switch {
	case err != nil:
		return false
	case info.Mode()&fs.ModeNamedPipe != 0:
		return pipeMayBeTorn(f)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return false
	}
	last, err := lastByte(f, info)
	return err != nil || last != '\n'
}

// lastByte reads it where the file was opened for reading too, and else by another name that
// the system has for it.
func lastByte(f *os.File, info fs.FileInfo) (byte, error) {
	var last [1]byte
	_, err := f.ReadAt(last[:], info.Size()-1)
	if err == nil {
		return last[0], nil
	}
	again, err := reopen(f)
	if err != nil {
		return 0, err
	}
	defer again.Close()
	_, err = again.ReadAt(last[:], info.Size()-1)
	return last[0], err
}
