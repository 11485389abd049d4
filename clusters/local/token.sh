# Sourced by the scripts beside it with the name of their folder: a folder of this cluster's own, and a token that its Ray
# asks for, because all that `ray start` starts listens on all addresses and runs what it is sent.
: "${PORT:=6379}" "${RAY:=ray}"
folder=$(mktemp -d "/tmp/$1-XXXXXX")       # this user's alone; short: socket paths below it are limited to 107 bytes
tr -dc a-f0-9 < /dev/urandom | head -c 64 > "$folder/token" || true    # who can read this may use the cluster
unset RAY_AUTH_TOKEN                       # it would count instead of the file
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token RAY_TMPDIR=$folder RAY_worker_niceness=0
say_token() { echo "unset RAY_AUTH_TOKEN; export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token"; }
answers() { (: < "/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
