# The parent of a throw-away PostgreSQL: sh janitor.sh DIRECTORY BINARIES
#
# Does what the lines on stdin say and answers each with its exit status. At end
# of input, however the writer came to its end, it kills the server and removes
# the directory: a pipe closes even when its owner is killed with SIGKILL.

dir=$1 bin=$2 server='' keep=''

# A signal ends the wait for input instead of this process, and so cleans up.
trap : HUP INT TERM PIPE

start() {
	rm -f "$dir/pid" "$dir/exit"
	{
		"$bin/postgres" -D "$dir/data" &
		echo $! >"$dir/pid"
		wait $!
		echo $? >"$dir/exit"
	} </dev/null >>"$dir/log" 2>&1 &
	server=$!
	until [ -s "$dir/pid" ]; do sleep 0.01; done
}

while read -r command; do
	case $command in
	init)
		"$bin/initdb" -D "$dir/data" --username=postgres --pwfile="$dir/password" \
			--encoding=UTF8 --locale=C.UTF-8 --auth-local=trust --auth-host=scram-sha-256 --no-sync ||
			{ rm -rf "$dir/data" && "$bin/initdb" -D "$dir/data" --username=postgres --pwfile="$dir/password" \
				--encoding=UTF8 --locale=C --auth-local=trust --auth-host=scram-sha-256 --no-sync; } ;;
	start) start ;;
	keep) keep=yes ;;
	*) false ;;
	esac </dev/null >>"$dir/log" 2>&1
	echo $?
done

[ "$keep" ] && exit
if [ "$server" ]; then
	kill -QUIT "$(cat "$dir/pid")" && wait "$server"
fi
cd / && rm -rf "$dir"
