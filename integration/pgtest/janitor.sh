# The parent of a throw-away PostgreSQL: sh janitor.sh DIRECTORY BINARIES
#
# Does what the lines on stdin say and answers each with its exit status. At end
# of input, however the writer came to its end, it kills the server and removes
# the directory: a pipe closes even when its owner is killed with SIGKILL.

dir=$1 bin=$2 server='' keep=''

# A signal ends the wait for input instead of this process, and so cleans up.
trap : HUP INT TERM PIPE

init() {
	rm -rf "$dir/data"
	"$bin/initdb" -D "$dir/data" --username=postgres --pwfile="$dir/password" --no-sync \
		--encoding=UTF8 --locale="$1" --auth-local=trust --auth-host=scram-sha-256
}

# Files tell the writer how the server fares: pid while it runs, exit after that.
start() {
	rm -f "$dir/pid" "$dir/exit"
	{
		"$bin/postgres" -D "$dir/data" &
		echo $! >"$dir/pid"
		wait $!
		echo $? >"$dir/exit"
	} &
	server=$!
	until [ -s "$dir/pid" ]; do sleep 0.01; done
}

while read -r command; do
	case $command in
	init) init C.UTF-8 || init C ;; # not every system knows C.UTF-8
	start) start ;;
	keep) keep=yes ;; # at end of input, leave everything as it is
	clean) keep='' ;;
	*) false ;;
	esac </dev/null >>"$dir/log" 2>&1
	echo $?
done

[ "$keep" ] && exit
if [ "$server" ] && ! [ -e "$dir/exit" ]; then
	kill -QUIT "$(cat "$dir/pid")"
	kill -CONT "$(cat "$dir/pid")" # it may have been stopped
	wait "$server"
fi 2>/dev/null
cd / && rm -rf "$dir"
