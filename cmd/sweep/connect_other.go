//go:build !linux

package main

import "syscall"

// setUserTimeout does nothing where the option is not known.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
