#!/usr/bin/env bash
# Copies the headers that the worker runtime is built with into one folder, for a machine without
# packages of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/pack_headers.sh [FOLDER]

Copies the headers of fmt, nlohmann-json, xxHash, protozero, Boost.CRC, Gloo and CLI11 from this
machine into FOLDER (build/headers unless given; 3 MB). Take the checkout and that folder to a
machine that has CMake, Ninja, a compiler, CUDA's nvcc and a Python with PyTorch, and nothing else
of what scripts/setup.sh installs: there scripts/build.sh gpu builds the worker runtime, its
examples and its tests on GPUs, and scripts/test.sh --gpu runs them.
TEXT
}

case "${1:-}" in
    --help | -h) usage; exit 0 ;;
    -*) printf 'pack: unknown option %s; see scripts/pack_headers.sh --help\n' "$1" >&2; exit 2 ;;
esac
folder=${1:-build/headers}
libraries=(fmt nlohmann gloo CLI protozero xxhash.h)
for header in "${libraries[@]}" boost/crc.hpp; do
    if [ ! -e "/usr/include/$header" ]; then
        printf 'pack: there is no /usr/include/%s; run scripts/setup.sh first\n' "$header" >&2
        exit 1
    fi
done
rm -rf "$folder"
mkdir -p "$folder"
for header in "${libraries[@]}"; do
    cp -rL "/usr/include/$header" "$folder/"
done
# Of Boost only what boost/crc.hpp includes.
printf '#include <boost/crc.hpp>\n' | c++ -x c++ -M - | tr ' ' '\n' |
    sed -n 's|^/usr/include/\(boost/.*\)|\1|p' | while read -r header; do
    install -D -m 644 "/usr/include/$header" "$folder/$header"
done
printf 'pack: %s: %s\n' "$folder" "$(du -sh "$folder" | cut -f1)"
