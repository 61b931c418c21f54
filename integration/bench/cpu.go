package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTime is what was computed for a pass. It depends less than wall time on what else the machine does.
type cpuTime struct {
	server time.Duration // all processes of PostgreSQL
	own    time.Duration // this process: producers and nodes
	known  bool          // the server's processes are there to be seen
}

func (c cpuTime) since(before cpuTime) cpuTime {
	return cpuTime{c.server - before.server, c.own - before.own, c.known && before.known}
}

// cpuTime reads the times as they stand. What a process of the server has used that has ended meanwhile counts by the clock tick.
func (l *lab) cpuTime(ctx context.Context) (cpuTime, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return cpuTime{}, err
	}
	c := cpuTime{own: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
	backend, err := ask[int](ctx, l.admin, `select pg_backend_pid()`)
	if err != nil {
		return c, err
	}
	postmaster, found := statFields(strconv.Itoa(backend), 1)
	ended, found2 := statFields(strconv.FormatInt(postmaster[0], 10), 13, 14) // the user and the system time of its children that have ended
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster[0], postmaster[0]))
	if !found || !found2 || err != nil {
		return c, nil // in a container, say
	}
	c.known = true
	c.server = time.Duration(ended[0]+ended[1]) * time.Second / clockTicks
	for _, pid := range strings.Fields(string(children)) {
		text, err := os.ReadFile("/proc/" + pid + "/schedstat")
		if fields := strings.Fields(string(text)); err == nil && len(fields) > 0 {
			ran, _ := strconv.ParseInt(fields[0], 10, 64)
			c.server += time.Duration(ran)
		}
	}
	return c, nil
}

const clockTicks = 100 // a second; what Linux counts times in that it tells to programs

// statFields reads numbers out of a process's /proc/PID/stat: their places behind the process's name, which may hold anything; 0 is its state.
func statFields(pid string, places ...int) (values []int64, found bool) {
	values = make([]int64, len(places))
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return values, false
	}
	fields := strings.Fields(string(text)[strings.LastIndexByte(string(text), ')')+1:])
	for i, place := range places {
		if place >= len(fields) {
			return values, false
		}
		if values[i], err = strconv.ParseInt(fields[place], 10, 64); err != nil {
			return values, false
		}
	}
	return values, true
}
