#!/usr/bin/env bash
# From a bare machine to training jobs that lose a machine and finish all the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/quickstart.sh [--prebuilt]

Installs what is missing, builds ddprun, and trains a digit classifier on two nodes of two workers
each (two ddprun processes on this machine):

  1. in C++ (examples/train_digits), undisturbed;
  2. the same, but one node is killed with SIGKILL and started again, as a replaced machine would
     be: it ends with the same parameters, bit for bit, or this script fails;
  3. in Python (examples/python_ddp), PyTorch with ddprun's checkpoints: one node is killed and does
     not come back; the other goes on alone from the newest checkpoint and finishes.

  --prebuilt   install and build nothing, only the third: with DDPRUN, else the ddprun in PATH, and
               PYTHON_EXEC, else .venv, else python3 in PATH; it must have torch and scikit-learn
TEXT
}

is_prebuilt=no
case "${1:-}" in
    "") ;;
    --prebuilt) is_prebuilt=yes ;;
    --help | -h) usage; exit 0 ;;
    *)
        printf 'quickstart: unknown option %s; see scripts/quickstart.sh --help\n' "$1" >&2
        exit 2
        ;;
esac

epochs=12
kill_after=4
readonly folder=build/quickstart
export DDPRUN_TENSORBOARD_DIR=$folder/curves
# DDPRUN may name another program that takes the same flags.
ddprun=${DDPRUN:-build/release/bin/ddprun}
python=$PWD/.venv/bin/python

if [ "$is_prebuilt" = yes ]; then
    ddprun=${DDPRUN:-$(command -v ddprun || true)}
    [ -x "$python" ] || python=python3
    python=${PYTHON_EXEC:-$python}
    if [ -z "$ddprun" ]; then
        printf 'quickstart: no ddprun in PATH: install the wheel, .deb or tarball, or set %s\n' \
            'DDPRUN=/path/to/ddprun' >&2
        exit 1
    fi
    if ! "$python" -c 'import importlib.util as u, sys
sys.exit(any(u.find_spec(name) is None for name in ("torch", "numpy", "sklearn")))'; then
        printf 'quickstart: %s lacks a package: %s -m pip install torch numpy scikit-learn\n' \
            "$python" "$python" >&2
        exit 1
    fi
else
    scripts/setup.sh
    scripts/build.sh release ddprun ddprun-keeper ddprun-readahead ddprun-rendezvous \
        ddprun-checkpoint train_digits
fi
readonly ddprun python

rm -rf "$folder"
mkdir -p "$folder"

started=${EPOCHREALTIME/./}
seconds() { local now=${EPOCHREALTIME/./}; now=$((now - started))
    printf '%d.%d' "$((now / 1000000))" "$((now / 100000 % 10))"; }
say() { printf '%6s s  %s\n' "$(seconds)" "$*"; }
fail() { printf 'quickstart: FAILED: %s; the logs are in %s\n' "$*" "$folder" >&2; exit 1; }
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

nodes=()
# Ends what was started, should this script be stopped early.
clean_up() {
    local pid
    for pid in "${nodes[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
}
trap clean_up EXIT

# start_node NUMBER: a node of the job that run_job describes.
start_node() {
    PYTHON_EXEC=$python "$ddprun" \
        --nnodes "$nnodes" --nproc-per-node 2 --max-restarts 3 --rdzv-id "$name" \
        --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$port" \
        --rdzv-conf last_call_timeout=20 --log-dir "$folder/$name/logs" \
        "${program[@]}" --epochs "$epochs" --checkpoint-dir "$folder/$name/checkpoints" \
        > >(sed -u "s/^/node $1 | /" >"$folder/$name/lines") 2>&1 </dev/null &
    nodes[$1]=$!
}

# kill_node_1: SIGKILL, as when a machine loses its power; started again if its fate is so.
kill_node_1() {
    killed_at=$(seconds)
    say "=====  SIGKILL to node 1 (pid ${nodes[1]})  ====="
    # The shell's own "Killed" is not for the reader.
    { kill -KILL "${nodes[1]}"; wait "${nodes[1]}" || true; } 2>/dev/null
    if [ "$fate" = replaced ]; then
        say '=====  node 1 is started again  ====='
        start_node 1
    fi
}

# run_job NAME NNODES undisturbed|replaced|lost PROGRAM...: trains on two nodes of two workers each
# and shows what they print; after epoch $kill_after node 1 meets its fate. Leaves the accuracy in
# $result, what the parameters are in $parameters, and when it happened in $killed_at, $resumed_at
# and $ended_at. Fails unless the job does what its fate allows.
run_job() {
    name=$1 nnodes=$2 fate=$3
    shift 3
    program=("$@")
    local line number code=0
    result='' parameters='' killed_at='' resumed_at=''
    mkdir -p "$folder/$name"
    mkfifo "$folder/$name/lines"
    port=$(free_port)
    for number in 0 1; do start_node "$number"; done
    while IFS= read -r line; do
        say "$line"
        case "$line" in
            *"epoch $kill_after/"*)
                if [ "$fate" != undisturbed ] && [ -z "$killed_at" ]; then kill_node_1; fi
                ;;
            *"resumed from "*)
                if [ -n "$killed_at" ] && [ -z "$resumed_at" ]; then resumed_at=$(seconds); fi
                ;;
            *"finished $epochs epochs: accuracy "*) result=${line##*accuracy } ;;
            *"| parameters "*) parameters=${line##*parameters } ;;
        esac
    done <"$folder/$name/lines"
    for number in 0 1; do
        if [ "$number" = 0 ] || [ "$fate" != lost ]; then
            wait "${nodes[$number]}" || code=$?
        fi
    done
    nodes=()
    ended_at=$(seconds)
    [ "$code" -eq 0 ] || fail "the job $name ended with exit code $code"
    [ -n "$result" ] || fail "the job $name did not finish its training"
    [ "$fate" = undisturbed ] || [ -n "$resumed_at" ] || fail "the job $name did not resume"
}

readonly in_cpp=(build/release/bin/train_digits --min-epoch-seconds 0.25)
# The library of the checkpoints: of this checkout, of an installed wheel, or beside the program.
# Where it is missing, the same training writes its own ones.
python_program=examples/python_ddp/train.py
beside=$(dirname "$(readlink -f "$ddprun")")/ddprun-checkpoint.so
if DDPRUN_CHECKPOINT_LIBRARY=$("$python" -c \
    'from ddprun import _library; print(_library.find_library())' 2>/dev/null); then
    export DDPRUN_CHECKPOINT_LIBRARY
elif [ -e "$beside" ]; then
    export DDPRUN_CHECKPOINT_LIBRARY=$beside
else
    unset DDPRUN_CHECKPOINT_LIBRARY
fi
if [ -n "${DDPRUN_CHECKPOINT_LIBRARY:-}" ]; then
    python_program=examples/python_ddp/train_with_ddprun.py
fi
readonly in_python=("$python_program" --min-epoch-seconds 0.8)

run_in_cpp() {
    say '1. in C++: two nodes on this machine, two workers each, undisturbed'
    run_job undisturbed 2 undisturbed "${in_cpp[@]}"
    local wanted_result=$result wanted_parameters=$parameters
    summary="  C++, undisturbed    finished   $ended_at s: accuracy $result, parameters $parameters"

    say "2. the same; node 1 is killed after epoch $kill_after and replaced"
    run_job replaced 2 replaced "${in_cpp[@]}"
    summary+="
  C++, node replaced  killed     $killed_at s: SIGKILL to node 1, then started again
                      resumed    $resumed_at s: 2 nodes, 4 workers, from the newest checkpoint
                      finished   $ended_at s: accuracy $result, parameters $parameters"
    [ -n "$parameters" ] || fail 'the training in C++ did not say what its parameters are'
    if [ "$parameters" != "$wanted_parameters" ] || [ "$result" != "$wanted_result" ]; then
        fail "undisturbed the training ended with parameters $wanted_parameters and accuracy \
$wanted_result, after the loss of a node with parameters $parameters and accuracy $result"
    fi
    summary+="
                      compared   identical to the undisturbed training, bit for bit"
}

summary=''
[ "$is_prebuilt" = yes ] || run_in_cpp

# Long enough for the standbys (docs/warm.md): they import the training's modules while it trains.
kill_after=60 epochs=66
say "3. in Python: node 1 is killed after epoch $kill_after and does not come back"
run_job lost 1:2 lost "${in_python[@]}"
summary+="
  Python, node lost   killed     $killed_at s: SIGKILL to node 1
                      resumed    $resumed_at s: 1 node, 2 workers, from the newest checkpoint
                      finished   $ended_at s: accuracy $result"

printf '\nquickstart: what happened\n%s\n' "$summary"
printf 'quickstart: the training survived the loss of a machine\n'
