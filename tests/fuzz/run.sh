#!/usr/bin/env bash
# Replays a fuzz target's corpus, then lets it look for new inputs. ctest runs this.
set -euo pipefail

if [ $# -ne 4 ]; then
    cat >&2 <<'TEXT'
usage: tests/fuzz/run.sh PROGRAM CORPUS FOLDER MAX_LEN

Runs PROGRAM on every file of CORPUS, then searches for DDPRUN_FUZZ_SECONDS (10) seconds from there
with inputs of up to MAX_LEN bytes. Inputs that reach new code are kept in FOLDER/corpus for the
next search, inputs that fail in FOLDER/found. CORPUS is only read.
TEXT
    exit 2
fi
program=$1 corpus=$2 folder=$3 max_len=$4

mkdir -p "$folder/corpus" "$folder/found"
limits=(-rss_limit_mb=1024 -timeout=10 "-artifact_prefix=$folder/found/")
echo "replay of $corpus"
"$program" "${limits[@]}" "$corpus"/*
echo "search for ${DDPRUN_FUZZ_SECONDS:-10} s"
exec "$program" "${limits[@]}" "-max_len=$max_len" "-max_total_time=${DDPRUN_FUZZ_SECONDS:-10}" \
    -print_final_stats=1 "$folder/corpus" "$corpus"
