package main

// size is how much a run does.
type size struct {
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
}

func full() size {
	return size{
		rounds: 100, latencyRows: 100_000, manyRows: 200_000,
		backlogs: []int{10_000, 1_000_000, 10_000_000}, namespaces: []int{10, 100, 1000, 10_000, 100_000},
		base: 100_000, crowd: 1_000_000, calls: 1000,
		messages: 40_000, passes: 3,
	}
}

// small is for a look: under three minutes.
func small() size {
	return size{
		rounds: 10, latencyRows: 15_000, manyRows: 30_000,
		backlogs: []int{10_000, 50_000, 250_000}, namespaces: []int{10, 100, 1000, 10_000},
		base: 30_000, crowd: 50_000, calls: 60,
		messages: 5000, passes: 1,
	}
}

// tiny is for the bench's own test.
func tiny() size {
	return size{
		rounds: 2, latencyRows: 6000, manyRows: 20_000,
		backlogs: []int{8000, 10_000}, namespaces: []int{10, 1000},
		base: 10_000, crowd: 20_000, calls: 4,
		messages: 1000, passes: 1,
	}
}
