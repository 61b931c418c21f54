//go:build !linux

package stdout

import (
	"errors"
	"os"
)

func reopen(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

func pipeMayBeTorn(*os.File) bool { return false }
