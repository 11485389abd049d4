#!/usr/bin/env bash
# A Ray cluster on this machine that grows and shrinks, until Ctrl-C: Ray's own autoscaler with nodes that are processes here.
#   clusters/local/autoscaling.sh &      then:  orchestrator run sweep.yaml --results sweeps --address 127.0.0.1:6379
#   It asks for a token: what it prints first has to be run where it is used.
#   PORT (6379), RAY (ray): set them to change them. What grows: autoscaling.yaml beside this file.
set -euo pipefail
source "$(dirname "$0")/token.sh" rayas
mkdir "$folder/ray"
sed "s/127.0.0.1:6379/127.0.0.1:$PORT/" "$(dirname "$0")/autoscaling.yaml" > "$folder/cluster.yaml"
head_id=$(printf 'f%.0s' {1..51})00000     # what the fake provider takes for the head's
export RAY_FAKE_CLUSTER=1 RAY_enable_autoscaler_v2=1 AUTOSCALER_UPDATE_INTERVAL_S=1 RAY_NODE_TYPE_NAME=ray.head.default
export RAY_OVERRIDE_NODE_ID_FOR_TESTING=$head_id RAY_CLOUD_INSTANCE_ID=$head_id
ours() { grep -lsF "$folder" /proc/[0-9]*/cmdline | cut -d/ -f3; }      # a fake node's log monitor outlives its cluster
trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null || true; wait || true; kill -9 $(ours) 2>/dev/null || true; rm -rf "$folder"; exit 0' EXIT INT TERM

"$RAY" start --head --block --disable-usage-stats --port="$PORT" --ray-client-server-port=$((PORT + 1)) \
  --dashboard-agent-listen-port=$((PORT + 2)) --include-dashboard=false --num-cpus=2 --num-gpus=0 \
  --object-store-memory=80000000 --node-ip-address=127.0.0.1 --temp-dir="$folder" \
  --autoscaling-config="$folder/cluster.yaml" > "$folder/log" 2>&1 &
until answers "$PORT"; do
  kill -0 $! 2>/dev/null || { cat "$folder/log"; exit 1; }
  sleep 1
done
say_token
echo "it grows: --address 127.0.0.1:$PORT"
wait -n || true
cat "$folder/log"
