#!/usr/bin/env bash
# Builds release and measures ddprun side by side with torchrun. Asserts nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/bench.sh [launch] [--runs N] [--only start|idle|crash-1|crash-2|lose-node]...

launch   starting 8 workers, memory and wake-ups beside them, restart after a crash on one node and
         on two, loss of a node: ddprun and the torchrun of .venv in turn. Prints a table and
         writes build/bench/launch.json.
TEXT
}

case "${1:-launch}" in
    --help | -h) usage; exit 0 ;;
    launch) [ $# -eq 0 ] || shift ;;
    -*) ;;
    *) printf 'bench: no benchmark %s; there is: launch\n' "$1" >&2; exit 2 ;;
esac
[ -x .venv/bin/torchrun ] ||
    printf 'bench: no .venv/bin/torchrun: run scripts/setup.sh to compare with it\n' >&2
scripts/build.sh release ddprun ddprun-keeper ddprun-rendezvous stamp_worker >&2
exec python3 tests/bench/launch.py "$@"
