// Package integration holds the tests that need a real PostgreSQL or the built sweep.
//
// A file is named by what it tests, then by how it does so: rescue_test.go is about
// outbox.rescue, enqueue_race_test.go about enqueue by sessions at once. The table has each
// first word of a file's name, the seconds that its tests take, what they show, and the
// guarantees (docs/guarantees.md) that they cite. The seconds are of one run of each group on
// a machine of 2 cores that did other things as well; - was not measured.
//
//	first word     s  what is shown                                                        INV
//
//	arguments     17  what every call takes and refuses: names, payloads, spans, texts       1 4 15
//	cancel         7  cancel and cancel_namespace, beside claims and settles                 2 9
//	check         10  outbox.check finds each planted violation, and nothing else            2 3 4 5 7 9 10 13 14
//	claim        330  claim_fair: against a model and in long runs (fairness), by sessions   1 2 4 5 6 7 8 9 10 11 14 15 18
//	                  at once (hammer, interleave), with planted faults (mutant), beside
//	                  tenants that do their worst (hostile, import, newcomers)
//	cli          200  the commands of sweep as processes: what they print, their exit codes  2 3 8 10 14
//	clock          3  no instant comes from a node's clock, and a wrong one harms nothing    15
//	config         8  configure: bounds, and shard_count while others write                  2
//	deadlock       8  every call beside every other: no deadlock                             2
//	deploy         -  deploy/: each alert fires once, each query of the dashboard answers
//	docs           8  docs/ says what the catalog, the code and the tests are
//	durability    14  what was confirmed outlives a kill of PostgreSQL                       2 9
//	enqueue       36  enqueue from SQL and Go: races, duplicates, text and bytes, producers  2 3 11 15
//	failed         2  outbox.failed: each filter, in both orders, by pages
//	grants        40  who may do what, and that an upgrade keeps it
//	heartbeat     14  heartbeats: instants, names, isolation; shards that are fixed          15
//	helpers        -  what all files use: run, one, claim, settle, await, scaled
//	hold           -  destinations that are held: what it costs, by sessions, for days       8 14 16
//	image          -  the container image: stop, kill, exit codes; skipped without Docker
//	main           -  the one PostgreSQL of all tests, and how far they are
//	map            0  this table
//	migrate      149  migrations up, down, interrupted, refused, by other tools
//	node           -  the loop of a node, in this process and as several: leases, pauses,    1 2 3 4 8 9 10 11 12 13
//	                  budgets, stops; chaos: what goes wrong with it, soak: all at once
//	pause         12  pause and resume of a tenant, a route, or both
//	plan         255  what a call reads does not grow with the tables                        14
//	prune         33  prune: what goes, what stays, and nobody waits                         2 11 14
//	purge          5  purge of all there is of a namespace, beside whatever moves it         2 9 11 14
//	quota         21  set_quota, changes beside open claims, strict quotas                   4 8 11
//	redrive       15  failed and cancelled messages come back                                2 10
//	rescue        12  expired leases: which come back, and a settle beside it; further:      2 9 10
//	                  scenarios rescue and suspects, cli_attempts, node_once, node_fair
//	restore       20  dumps, data alone, and a database that went back in time               2 3 4 9
//	retry          5  retry_now: what waits is due now; beside claims and cancels              2 8 11
//	scenario      31  the files of testdata/scenarios: claims for people to read
//	schema        42  the installed schema is the functions' and the migrations'; snapshots
//	searchpath    23  objects of others in the search_path are never called
//	session       37  settings of a role, and poolers, change nothing of what is read
//	settle        12  complete, retry, fail, release, extend: fencing, attempts, backoff     2 8 9 10 15
//	shards        20  the database shares shards out to nodes, and moves few                 1 4
//	survey         -  survey_namespaces: pages of namespaces, and what it reads                14
//	ui             -  sweep ui: its pages and actions, in a browser and without one
//	upgrade        -  an upgrade and the way back under traffic                              2
//	vacuum         -  when autovacuum comes by: what a migration sets, and the advice of check
//	views          -  the views messages, namespaces and nodes
//
// FAIRCLAIM_TEST_PATIENCE=3 makes all limits of waits three times as long, for a slow
// machine; pgtest tells which PostgreSQL is used, and how to name another. What runs at
// random runs longer with FAIRCLAIM_SOAK, FAIRCLAIM_HAMMER_TIME, FAIRCLAIM_EDGE_TIME and
// FAIRCLAIM_BAD_TIME, which are times such as 5m; FAIRCLAIM_HOSTILE_ROWS=1000000 makes the
// largest shapes of claim_hostile as large as a claim must stand.
package integration
