// Package pgtest gives tests and the demo a real PostgreSQL, 15 or newer.
//
// A [Server] is one PostgreSQL: a throw-away one that is started from the
// machine's server binaries or in a Docker container, or an existing one that
// FAIRCLAIM_TEST_DSN names. A [Cluster] is a server with a template database;
// a [DB] is one test's clone of it:
//
//	var pg pgtest.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(pg.Main(m, migrate)) }
//
//	func TestClaim(t *testing.T) {
//		t.Parallel()
//		db := pg.New(t)
//		...
//	}
//
// find.sh decides what is used, for this package and for make: the first of these
// that is there, or what FAIRCLAIM_PG names:
//
//	dsn     FAIRCLAIM_TEST_DSN: a server whose role may create databases and roles
//	binary  initdb and postgres in $PGBIN, on PATH, below /usr/lib/postgresql or where pg_config says
//	docker  a Docker engine; the image is FAIRCLAIM_PG_IMAGE, else a local
//	        fairclaim-postgres:MAJOR, else postgres:MAJOR
//
// FAIRCLAIM_PG_MAJOR asks for one major version. FAIRCLAIM_TEST_PATIENCE makes the
// limits of all waits longer, see [Scaled]. A throw-away server ends with
// the process that started it, also when that is killed with SIGKILL.
package pgtest
