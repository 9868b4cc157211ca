#!/usr/bin/env bash
# Builds release and measures ddprun side by side with its peers. Asserts nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/bench.sh [launch] [--runs N] [--only start|idle|crash-1|crash-2|lose-node]...
       scripts/bench.sh runtime [--runs N] [--epochs N] [--only start|speed-1|speed-2|crash]...

launch   starting 8 workers, memory and wake-ups beside them, restart after a crash on one node and
         on two, loss of a node: ddprun and the torchrun of .venv in turn. Prints a table and
         writes build/bench/launch.json.
runtime  command to first step, images a second with 1 and 2 workers, crash to first step after
         resume: the training in C++ (examples/train_digits) and the one in Python
         (examples/python_ddp) in turn, both under ddprun. Writes build/bench/runtime.json.
TEXT
}

bench=launch
case "${1:-launch}" in
    --help | -h) usage; exit 0 ;;
    launch | runtime) [ $# -eq 0 ] || { bench=$1; shift; } ;;
    -*) ;;
    *) printf 'bench: no benchmark %s; there are: launch, runtime\n' "$1" >&2; exit 2 ;;
esac
programs=(ddprun ddprun-keeper ddprun-rendezvous)
case "$bench" in
    launch)
        programs+=(stamp_worker)
        [ -x .venv/bin/torchrun ] ||
            printf 'bench: no .venv/bin/torchrun: run scripts/setup.sh to compare with it\n' >&2
        ;;
    runtime)
        programs+=(train_digits)
        [ -x .venv/bin/python ] || {
            printf 'bench: no .venv/bin/python: run scripts/setup.sh, which installs PyTorch\n' >&2
            exit 1
        }
        ;;
esac
scripts/build.sh release "${programs[@]}" >&2
exec python3 "tests/bench/$bench.py" "$@"
