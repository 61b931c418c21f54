// Package node is the loop that delivers an outbox's messages: it claims them, hands them to a
// [Sink], and settles them by what the sink says. [New] makes a [Node]. [Node.Run] works until it is told
// to end, [Node.Once] until nothing is left to do, [Node.Drain] ends both in good order, and [Node.Stats] says
// what has been done. The command sweep is this package with sinks of its own.
//
// # A message's way
//
//	claim.go     asks outbox.claim_fair for as much as there is room for
//	ledger.go    enters each message: what is in flight, and whose bytes (INV-13)
//	read.go      reads the payloads, in portions
//	queue.go     keeps it for its sink: whose turn it is, who has had its share, and who hangs
//	gate.go      keeps it from a destination that has just failed, until the outbox knows
//	dispatch.go  hands it to its sink, in a goroutine; never waits (INV-11)
//	sink.go      Sink, what it may return, and judge, which reads that
//	settle.go    tells the outbox: complete, retry, fail, release, or that a destination failed; beside the claims
//	ledger.go    lets the message leave
//
// run.go has the order of the loop's steps. Beside them it has duties (duties.go): it extends
// leases, sends heartbeats, takes expired messages back, prunes (prune.go, beside the steps), and reads the settings again.
// When it claims is the business of pace.go, what it does while the database fails that of
// backoff.go.
// observe.go tells an [Observer] all of it, for metrics.
//
// # Fairness inside a node
//
// The database decides who is claimed. Inside a node, each sink has a queue and a number of
// slots (Config.Slots), and namespaces take turns. A namespace holds at most a share of the slots and of the
// bytes (Config.Share), so that a destination that hangs keeps none of the others waiting. Where several hang, slow
// deliveries open spare slots (Config.Spare) for namespaces that have none under way, and once their deliveries have
// timed out, all that hang have the share of one. Messages for a full queue are stashed: claimed, without their payloads.
//
// # Backpressure
//
// Payloads in flight count against Config.Budget. At its high watermark the node claims no more,
// and goes on at the low one. Messages that are not claimed stay as they are: pending, uncharged,
// unwritten.
//
// # Delivery is at least once
//
// A process that dies between a delivery and its settle leaves a message that another node delivers
// again, with the same dispatch key. A sink that settles in the transaction of its own work, and
// returns [ErrSettled], has effects that happen exactly once.
//
// # Errors
//
// A sink says by its error what becomes of a message: see [Sink]. Errors of the database are logged and
// tried again by Run; they end Once, unless [driver.TryAgain] says that the call may work when made again. The log's levels: Info for the course of things, Warn for what an operator may
// want to look into, Error for what he must, Debug for single messages.
package node
