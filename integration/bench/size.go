package main

import "time"

// size is how much a run does.
type size struct {
	warmUp int // claims before those that count, as a session plans at first
	rounds int // timed claims of each size, a contender, a case

	latencyRows int // messages that each case of the latency experiment adds
	manyRows    int // and those of the case with the most namespaces

	backlogs   []int // messages, growing
	namespaces []int // active ones, growing
	base       int   // messages that are due, beside hostile shapes
	crowd      int   // messages in the way
	calls      int   // on one connection

	messages int // through each queue, in a pass
	passes   int

	flood int // messages of one tenant
	quiet int // messages of another, one a second

	cycles    int // claims and settles of a message, beside an open transaction
	cycleStep int // between two measurements

	large int // messages of 256 KiB

	skews       []skew // backlogs that rivals read from
	settles     []int  // messages that a settle call takes
	settleCalls int    // messages for each of those, in all calls

	rampFrom      float64       // messages a second
	rampStep      time.Duration // at each rate
	passTime      time.Duration // with and without prune
	steadyTime    time.Duration
	steadyBacklog int // messages of a paused tenant beside

	reads    int           // of each rival from each of them
	readTime time.Duration // or fewer, as many as this is enough for
}

func full() size {
	return size{
		warmUp: 6, rounds: 100, latencyRows: 100_000, manyRows: 200_000,
		backlogs: []int{10_000, 1_000_000, 10_000_000}, namespaces: []int{10, 100, 1000, 10_000, 100_000},
		base: 100_000, crowd: 1_000_000, calls: 1000,
		messages: 40_000, passes: 3,
		flood: 1_000_000, quiet: 30, cycles: 200_000, cycleStep: 10_000,
		large: 3000,
		skews: []skew{
			{rows: 10_000, heavy: 5000, others: 1000},
			{rows: 100_000, heavy: 50_000, others: 1000},
			{rows: 1_000_000, heavy: 500_000, others: 1000},
			{rows: 10_000, heavy: 9900, others: 100, goal: 20},
			{rows: 100_000, heavy: 99_000, others: 100, goal: 50},
			{rows: 1_000_000, heavy: 990_000, others: 100, goal: 200},
			{rows: 1_000_000, heavy: 500_000, others: 100_000},
		},
		reads: 50, readTime: 30 * time.Second,
		settles: []int{1, 10, 100, 1000, 10_000}, settleCalls: 60_000,
		rampFrom: 2000, rampStep: 10 * time.Second, passTime: 25 * time.Second, steadyTime: 10 * time.Minute, steadyBacklog: 1_000_000,
	}
}

// small is for a look: under three minutes.
func small() size {
	return size{
		warmUp: 3, rounds: 10, latencyRows: 15_000, manyRows: 30_000,
		backlogs: []int{10_000, 50_000, 250_000}, namespaces: []int{10, 100, 1000, 10_000},
		base: 30_000, crowd: 50_000, calls: 60,
		messages: 5000, passes: 1,
		flood: 100_000, quiet: 4, cycles: 10_000, cycleStep: 2500,
		large: 1000,
		skews: []skew{{rows: 10_000, heavy: 5000, others: 1000}, {rows: 100_000, heavy: 50_000, others: 1000}},
		reads: 15, readTime: 10 * time.Second,
		settles: []int{1, 10, 100, 1000, 10_000}, settleCalls: 10_000,
		rampFrom: 4000, rampStep: 2 * time.Second, passTime: 6 * time.Second, steadyTime: 45 * time.Second, steadyBacklog: 100_000,
	}
}

// tiny is for the bench's own test.
func tiny() size {
	return size{
		warmUp: 1, rounds: 2, latencyRows: 6000, manyRows: 20_000,
		backlogs: []int{8000, 10_000}, namespaces: []int{10, 1000},
		base: 10_000, crowd: 20_000, calls: 4,
		messages: 1000, passes: 1,
		flood: 20_000, quiet: 1, cycles: 400, cycleStep: 200,
		large: 300,
		skews: []skew{{rows: 2000, heavy: 1000, others: 150}}, reads: 20, readTime: time.Minute,
		settles: []int{1, 10}, settleCalls: 100,
		rampFrom: 200, rampStep: 400 * time.Millisecond, passTime: time.Second, steadyTime: 3 * time.Second, steadyBacklog: 2000,
	}
}
