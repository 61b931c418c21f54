package main

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
}

func full() size {
	return size{
		warmUp: 6, rounds: 100, latencyRows: 100_000, manyRows: 200_000,
		backlogs: []int{10_000, 1_000_000, 10_000_000}, namespaces: []int{10, 100, 1000, 10_000, 100_000},
		base: 100_000, crowd: 1_000_000, calls: 1000,
		messages: 40_000, passes: 3,
		flood: 1_000_000, quiet: 30, cycles: 200_000, cycleStep: 10_000,
		large: 3000,
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
	}
}
