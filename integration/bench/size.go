package main

// size is how much a run does.
type size struct {
	rounds int // timed claims of each size, a contender, a case

	latencyRows int // messages that each case of the latency experiment adds
	manyRows    int // and those of the case with the most namespaces
}

func full() size {
	return size{rounds: 100, latencyRows: 100_000, manyRows: 200_000}
}

// small is for a look: under three minutes.
func small() size {
	return size{rounds: 15, latencyRows: 20_000, manyRows: 40_000}
}
