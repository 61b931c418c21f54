// Package driver calls the functions of an outbox: the schema outbox in PostgreSQL, as the
// package sql/migrations installs it. It keeps no state and needs nothing but pgx. An application imports it
// to enqueue messages; a consumer imports it to claim and settle them. To deliver messages to a
// destination, use the loop of the package driver/node, which does all but the delivery.
//
// Each call is one SQL function, and has its name but for Obstacles, which is claim_obstacles,
// SurveyNamed, which is survey_namespaces, and ReadHorizon:
//
//	for producers   Enqueue, EnqueueBatch, and EnqueueSQL, EnqueueBatchSQL for database/sql
//	for workers     Claim, Payloads, BeginDelivery, Complete, Retry, Fail, Release, Extend,
//	                Rescue, Prune, Heartbeat, Leave, NodeProcesses, Obstacles, Settings,
//	                Survey, SurveyNamespaces, SurveyNamed, ReadHorizon, Check
//	for operators   Cancel, Redrive
//
// What one enqueues is a [Message]. What a claim brings is a [Delivery]: the message, and the
// claim token that says which claim of the message this is.
//
// # Enqueueing
//
// [Enqueue] takes a pool, a connection or a transaction. With the transaction that makes a message true,
// the message exists if and when that commits. The message's identity is its
// dispatch key: enqueueing the key again is no error and writes nothing, so a call that may or
// may not have come through can be made again. [FillHeaders] has what a context knows, a trace say, go along.
//
// # Claiming and settling
//
// [Claim] commits by itself, in a transaction of its own; the messages are then the claimer's until their leases
// expire. Each is settled by one of [Complete], [Retry], [Fail] and [Release], with its [Ref].
// The settles take a transaction too: a consumer that works in the same database completes a
// message in the transaction of its work, and the effects of that work happen exactly once.
//
// A claim can be lost: its lease has expired and another claimer has the message, or an operator has
// cancelled it. A settle of such a claim changes nothing (INV-9). So the settles, and [Extend], return
// the claims that were lost, as a list of refs; it is empty where all went well.
//
// # Sessions
//
// The calls work under every setting of a session and in every query mode of pgx, and change no setting.
// Texts must be UTF-8: see [ErrEncoding]. A pooler in transaction mode needs a query mode that prepares
// no statements: see [ErrPooler]. [CheckSession] finds both out before they do harm.
//
// # Errors
//
// An error says which call failed. It matches [ErrBadArgument], [ErrKeyTaken] or
// [ErrPayloadTooLarge] under errors.Is where the outbox has refused the call for that reason, and holds the
// database's own error for errors.As. [TryAgain] says whether the same call may work if it is made again.
//
// # Concurrency
//
// Every function may be called from many goroutines at once, as far as the pool, connection or
// transaction that it is given can be used so.
package driver
