#!/usr/bin/env bash
# Shows that two builds of ddprun behave the same: writes down what a build says and does, and
# compares two of these.
set -euo pipefail
golden=$(dirname "${BASH_SOURCE[0]}")/../tests/golden

usage() {
    cat <<'TEXT'
usage: scripts/golden.sh take [--only PART]... [--seeds N] BUILD_DIR OUT_DIR
       scripts/golden.sh compare OUT_DIR OUT_DIR

take     writes a folder of text files about a build (build/release) in less than two minutes. The
         parts are

           texts     --help of every program and verb, man pages, completions
           commands  exit code, stdout and stderr of each line of tests/golden/command_lines.txt;
                     ddprun runs with --dry-run
           jobs      real jobs on this machine (a success, a restart and a failure, a hang, a
                     drain): console, events, report, /status, /events, names of /metrics
           traces    the hash of the trace of each of N seeds of the simulator (1000)

         Masks replace paths, times, pids, ports, random names, the version and the machine's name.
         OUT_DIR must be missing or empty.
compare  shows the differences, each under the command that it belongs to. The exit code is 1 if
         there are any.

Two snapshots are comparable if one machine and one version of this script took both.
TEXT
}

case "${1:-}" in
    --help | -h) usage ;;
    take) exec python3 -B "$golden/take.py" "${@:2}" ;;
    compare)
        [ $# -eq 3 ] || { printf 'golden: compare needs two folders; see --help\n' >&2; exit 2; }
        exec python3 -B "$golden/compare.py" "${@:2}"
        ;;
    *) printf 'golden: give take or compare; see scripts/golden.sh --help\n' >&2; exit 2 ;;
esac
