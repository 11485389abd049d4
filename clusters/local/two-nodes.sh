#!/usr/bin/env bash
# A Ray cluster of two nodes on this machine until Ctrl-C, for trying sweeps; no other Ray of this machine is touched.
#   It asks for a token: what it prints first has to be run where it is used.
#   clusters/local/two-nodes.sh &      then:  ray job submit --address http://127.0.0.1:8265 --working-dir . -- \
#                                             python -m orchestrator run experiments/quickstart-emulated.yaml --results "$PWD/sweeps"
#   GPUs of this machine are the first node's: both would be given the same.
#   CPUS (of each node, 4), PORT (6379), DASHBOARD_PORT (8265), RAY (ray): set them to change them.
set -euo pipefail
: "${CPUS:=4}" "${DASHBOARD_PORT:=8265}"
source "$(dirname "$0")/token.sh" ray2
for taken in PORT DASHBOARD_PORT; do
  if answers "${!taken}"; then
    echo "port ${!taken} is taken, maybe by another Ray: set $taken to a free one (CPUS, PORT, DASHBOARD_PORT: see the top of $0)" >&2
    rm -rf "$folder"
    exit 1
  fi
done
mkdir "$folder/1" "$folder/2"              # one each: nodes that share one unpack a job's files over each other
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
node=("$RAY" start --block --disable-usage-stats --num-cpus="$CPUS" --object-store-memory=80000000 --node-ip-address=127.0.0.1)
trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null || true; wait || true; rm -rf "$folder"; exit 0' EXIT INT TERM

"${node[@]}" --head --port="$PORT" --dashboard-host=127.0.0.1 --dashboard-port="$DASHBOARD_PORT" \
  --dashboard-agent-listen-port=$((DASHBOARD_PORT + 1)) --ray-client-server-port=$((DASHBOARD_PORT + 2)) \
  --temp-dir="$folder/1" > "$folder/1/log" 2>&1 &
until answers "$PORT"; do
  kill -0 $! 2>/dev/null || { cat "$folder/1/log"; exit 1; }
  sleep 1
done
"${node[@]}" --address="127.0.0.1:$PORT" --num-gpus=0 --dashboard-agent-listen-port=$((DASHBOARD_PORT + 3)) \
  --temp-dir="$folder/2" > "$folder/2/log" 2>&1 &
until answers "$DASHBOARD_PORT"; do sleep 1; done
echo "in the terminal from which you run or submit, first:"
say_token
echo "two nodes: --address 127.0.0.1:$PORT, jobs to http://127.0.0.1:$DASHBOARD_PORT"
wait -n || true                            # a node that ends ends both
cat "$folder"/?/log
