package stdout

import (
	"io/fs"
	"os"
)

// mayBeTorn reports whether the bytes that other processes have written to f may end in the
// middle of a line. Of a file the last byte says that; where the byte cannot be read, the
// answer is yes. The bytes of a pipe cannot be read again: the answer is yes where some of
// them still wait for the reader, or where writes do not block, and so can be cut short.
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

// lastByte reads the last byte of f. Where f is not open for reading, it opens the file
// again.
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
