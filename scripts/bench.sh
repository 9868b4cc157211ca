#!/usr/bin/env bash
# Builds release and measures ddprun side by side with its peers. Asserts nothing, except that
# nobody is declared dead who is not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/bench.sh [launch] [--runs N] [--only start|idle|crash-1|crash-2|lose-node]...
       scripts/bench.sh runtime [--runs N] [--epochs N] [--only start|speed-1|speed-2|crash]...
       scripts/bench.sh control-plane [--runs N] [--minutes M] [--full] [--only torchrun|agents-128|
                        agents-1000|agents-4000|signal|silence|false-alarms]...

launch   starting 8 workers, memory and wake-ups beside them, restart after a crash on one node and
         on two, loss of a node: ddprun and the torchrun of .venv in turn. Prints a table and
         writes build/bench/launch.json.
runtime  command to first step, images a second with 1 and 2 workers, crash to first step after
         resume: the training in C++ (examples/train_digits) and the one in Python
         (examples/python_ddp) in turn, both under ddprun. Writes build/bench/runtime.json.
control-plane
         128, 1,000 and 4,000 agents in one process against one daemon: the launcher's share of a
         restart, memory and CPU of the daemon; torchrun's protocol alone with 128 nodes beside it;
         an agent killed and a cable pulled out to when the others know; false alarms in M minutes
         (2; with --full 30) on a busy machine whose network loses packets and stands still: exit
         code 1 if there is one. What needs network namespaces is left out, aloud, where there are
         none. Writes build/bench/control-plane.json.
TEXT
}

bench=launch
case "${1:-launch}" in
    --help | -h) usage; exit 0 ;;
    launch | runtime | control-plane) [ $# -eq 0 ] || { bench=$1; shift; } ;;
    -*) ;;
    *)
        printf 'bench: no benchmark %s; there are: launch, runtime, control-plane\n' "$1" >&2
        exit 2
        ;;
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
    control-plane)
        programs+=(stamp_worker agent_crowd ddprun_network_proxy)
        [ -x .venv/bin/python ] ||
            printf 'bench: no .venv/bin/python: run scripts/setup.sh to compare with torchrun\n' >&2
        ;;
esac
scripts/build.sh release "${programs[@]}" >&2
exec python3 "tests/bench/${bench//-/_}.py" "$@"
