#!/usr/bin/env bash
# From a bare machine to a training job that loses a machine and finishes all the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/quickstart.sh

Installs what is missing, builds ddprun, and trains a digit classifier with an ordinary PyTorch
script on two nodes of two workers each (two ddprun processes on this machine). In the middle one
whole node is killed with SIGKILL; the other goes on from the newest checkpoint and finishes.
TEXT
}

case "${1:-}" in
    "") ;;
    --help | -h) usage; exit 0 ;;
    *) printf 'quickstart: unknown option %s; there are none\n' "$1" >&2; exit 2 ;;
esac

readonly epochs=12
readonly kill_after=4
readonly folder=build/quickstart

scripts/setup.sh
scripts/build.sh release ddprun ddprun-keeper ddprun-rendezvous

rm -rf "$folder"
mkdir -p "$folder"
mkfifo "$folder/lines"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')

started=${EPOCHREALTIME/./}
seconds() { local now=${EPOCHREALTIME/./}; now=$((now - started))
    printf '%d.%d' "$((now / 1000000))" "$((now / 100000 % 10))"; }
say() { printf '%6s s  %s\n' "$(seconds)" "$*"; }

nodes=()
# DDPRUN may name another program that takes the same flags.
start_node() {
    PYTHON_EXEC=$PWD/.venv/bin/python "${DDPRUN:-build/release/bin/ddprun}" \
        --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-id quickstart \
        --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$port" \
        --rdzv-conf last_call_timeout=20 --log-dir "$folder/logs" \
        examples/python_ddp/train.py --epochs "$epochs" --min-epoch-seconds 0.5 \
        --checkpoint-dir "$folder/checkpoints" \
        > >(sed -u "s/^/node $1 | /" >"$folder/lines") 2>&1 </dev/null &
    nodes[$1]=$!
}

# Ends what was started, should this script be stopped early.
clean_up() {
    local pid
    for pid in "${nodes[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
}
trap clean_up EXIT

say "two nodes on this machine, two workers each; node 1 is killed after epoch $kill_after"
start_node 0
start_node 1

lost=0
killed_at=
resumed_at=
result=
while IFS= read -r line; do
    say "$line"
    case "$line" in
        *"epoch $kill_after/"*)
            if [ -z "$killed_at" ]; then
                killed_at=$(seconds)
                say "=====  SIGKILL to node 1 (pid ${nodes[1]})  ====="
                # The shell's own "Killed" is not for the reader.
                { kill -KILL "${nodes[1]}"; wait "${nodes[1]}" || lost=$?; } 2>/dev/null
            fi
            ;;
        *"resumed from "*)
            if [ -n "$killed_at" ] && [ -z "$resumed_at" ]; then resumed_at=$(seconds); fi
            ;;
        *"finished $epochs epochs: "*) result=${line##*finished } ;;
    esac
done <"$folder/lines"

code=0
wait "${nodes[0]}" || code=$?
nodes=()

printf '\nquickstart: what happened\n'
printf '  started        0.0 s: 2 nodes, 4 workers\n'
if [ -n "$killed_at" ]; then
    printf '  node 1 killed  %s s (exit code %s: 128 + SIGKILL)\n' "$killed_at" "$lost"
fi
if [ -n "$resumed_at" ]; then
    printf '  training again %s s: 1 node, 2 workers, from the newest checkpoint\n' "$resumed_at"
fi
printf '  finished       %s s: %s\n' "$(seconds)" "${result:-NOT finished}"
printf '  exit code      %s\n' "$code"
if [ "$code" -ne 0 ] || [ -z "$result" ] || [ -z "$resumed_at" ]; then
    printf 'quickstart: FAILED: the job did not survive its node; the logs are in %s/logs\n' \
        "$folder" >&2
    exit 1
fi
printf 'quickstart: the training survived the loss of a machine\n'
