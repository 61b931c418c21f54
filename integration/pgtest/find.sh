#!/bin/sh
# Says in one line which PostgreSQL the tests and the demo will use, or what to
# install, before anything is compiled; pgtest runs it too, so that both agree.
#
#	find.sh         for people: PostgreSQL: 17 in /usr/lib/postgresql/17/bin
#	find.sh plain   for programs: binary /usr/lib/postgresql/17/bin
#
# The first of these that is there:
#
#	dsn      the server that FAIRCLAIM_TEST_DSN names
#	binary   initdb and postgres in $PGBIN; else on PATH, below
#	         /usr/lib/postgresql, or where pg_config says
#	docker   a Docker engine
#
# FAIRCLAIM_PG names one of the three, FAIRCLAIM_PG_MAJOR one major version. Exit code 1:
# nothing was found, and installing it helps; 2: what a variable asks for is wrong or not there.
oldest=15
major=${FAIRCLAIM_PG_MAJOR:-}
kind=${FAIRCLAIM_PG:-}
wanted=${major:-$oldest or newer}
PATH=${PATH:+$PATH:}/usr/bin:/bin

found() { # KIND DIRECTORY SENTENCE
	if [ "$plain" ]; then echo "$1${2:+ $2}"; else echo "PostgreSQL: $3"; fi
	exit 0
}

wrong() {
	echo "$1" >&2
	exit 2
}

nothing() { # WHAT OTHERWISE
	echo "$1 $wanted found: apt-get install postgresql${major:+-$major} (or $2)" >&2
	exit 1
}

# fits tells whether directory $1 holds a server of a version that will do.
fits() {
	[ -x "$1/initdb" ] && [ -x "$1/postgres" ] || return 1
	have=$("$1/postgres" --version | sed -n 's/.*) \([0-9][0-9]*\).*/\1/p')
	[ "${have:-0}" -ge $oldest ] && [ "${major:-$have}" = "$have" ]
}

try_dsn() {
	[ "${FAIRCLAIM_TEST_DSN:-}" ] && found dsn '' 'the server that FAIRCLAIM_TEST_DSN names'
}

# What PGBIN points to counts as there, so that a wrong one is an error and not passed over.
try_binary() {
	if [ "${PGBIN:-}" ]; then
		fits "$PGBIN" && found binary "$PGBIN" "$have in $PGBIN"
		wrong "PGBIN=$PGBIN: no initdb and postgres of version $wanted there"
	fi
	path=$(command -v postgres) && path=$(dirname "$(readlink -f "$path")")
	for dir in "$path" $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -rV) "$(pg_config --bindir 2>/dev/null)"; do
		[ -n "$dir" ] && fits "$dir" && found binary "$dir" "$have in $dir"
	done
}

# Where there is no docker command, the engine's socket is taken at its word.
try_docker() {
	if command -v docker >/dev/null; then
		$(command -v timeout >/dev/null && echo timeout 10) docker version >/dev/null 2>&1
	else
		case ${DOCKER_HOST:-unix:///var/run/docker.sock} in
		unix://*) socket=${DOCKER_HOST:-/var/run/docker.sock}; [ -S "${socket#unix://}" ] ;;
		*) true ;;
		esac
	fi && found docker '' "${major:+$major }in a container of the Docker engine"
}

case ${1:-} in
plain) plain=yes ;;
'') plain= ;;
*) wrong "usage: find.sh [plain]" ;;
esac
case $major in
*[!0-9]*) wrong "FAIRCLAIM_PG_MAJOR=\"$major\": want a number from $oldest on" ;;
?*) [ "$major" -ge $oldest ] || wrong "FAIRCLAIM_PG_MAJOR=\"$major\": want a number from $oldest on" ;;
esac
case $kind in
dsn)
	try_dsn
	wrong "FAIRCLAIM_PG=dsn: FAIRCLAIM_TEST_DSN is not set"
	;;
binary)
	try_binary
	nothing "no server binaries of PostgreSQL" "set PGBIN"
	;;
docker)
	try_docker
	wrong "FAIRCLAIM_PG=docker: no Docker engine answers"
	;;
'')
	try_dsn
	try_binary
	try_docker
	nothing "no PostgreSQL" "set PGBIN or FAIRCLAIM_TEST_DSN, or start a Docker engine"
	;;
*)
	wrong "FAIRCLAIM_PG=\"$kind\": want dsn, binary or docker, or nothing for the first of these that is there"
	;;
esac
