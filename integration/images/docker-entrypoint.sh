#!/bin/sh
# Starts PostgreSQL as the official image does, as far as the tests need it:
# initialises $PGDATA at the first start from POSTGRES_PASSWORD, POSTGRES_USER and
# POSTGRES_DB, then runs `postgres` with the arguments given, as the user postgres.
set -eu

[ "${1-}" ] || set -- postgres
[ "${1#-}" = "$1" ] || set -- postgres "$@"
[ "$1" = postgres ] || exec "$@"

if [ "$(id -u)" = 0 ]; then
	install -d -m 700 -o postgres -g postgres "$PGDATA"
	install -d -m 775 -o postgres -g postgres /var/run/postgresql
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

if ! [ -s "$PGDATA/PG_VERSION" ]; then
	: "${POSTGRES_PASSWORD:?is not set: the superuser needs a password}"
	user=${POSTGRES_USER:-postgres}
	database=${POSTGRES_DB:-$user}
	password=$(mktemp)
	printf '%s\n' "$POSTGRES_PASSWORD" >"$password"
	initdb --username="$user" --pwfile="$password" --encoding=UTF8 --auth-local=trust --auth-host=scram-sha-256 --no-sync
	rm "$password"
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	if [ "$database" != postgres ]; then
		printf 'create database "%s"\n' "$(printf %s "$database" | sed 's/"/""/g')" | postgres --single -j postgres
	fi
fi
unset POSTGRES_PASSWORD
exec "$@"
