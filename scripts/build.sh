#!/usr/bin/env bash
# Configures (when needed) and builds one preset, and says where the programs are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/build.sh [PRESET [-DNAME=VALUE...] [TARGET...]]

Builds into build/PRESET; the programs are in build/PRESET/bin. PRESET is release unless given;
the others are dev, asan, tsan, fuzz, gpu and fake-gpu (CMakePresets.json). Without targets all is
built. -D is handed to CMake, which then configures anew.

gpu builds the worker runtime, its examples and its tests on GPUs alone. It needs CMake, Ninja, a
compiler, CUDA's nvcc and a Python with PyTorch, and five header-only libraries: the system's, or
those that scripts/pack_headers.sh has put into build/headers, or -DDDPRUN_HEADERS=FOLDER.

fake-gpu builds the same with the LibTorch of scripts/setup.sh --fake-gpu, and the fake GPU of
tests/fake_gpu for it. -DDDPRUN_PROGRAMS=FOLDER says where ddprun is, for tests that need it.
TEXT
}

case "${1:-}" in
    --help | -h) usage; exit 0 ;;
    -*) printf 'build: unknown option %s; see scripts/build.sh --help\n' "$1" >&2; exit 2 ;;
esac
preset=${1:-release}
[ $# -eq 0 ] || shift
cmake_options=()
while [ $# -gt 0 ] && [ "${1#-D}" != "$1" ]; do
    cmake_options+=("$1")
    shift
done
if ! grep -q "\"name\": \"$preset\"" CMakePresets.json || [ "$preset" = base ]; then
    printf 'build: no preset %s; choose one of release, dev, asan, tsan, fuzz, gpu, fake-gpu\n' \
        "$preset" >&2
    exit 2
fi
command -v cmake >/dev/null && command -v ninja >/dev/null || {
    printf 'build: cmake or ninja is missing; run scripts/setup.sh first\n' >&2
    exit 1
}

if [ "$preset" = gpu ] && [ -d build/headers ] && [ "${#cmake_options[@]}" -eq 0 ]; then
    cmake_options=("-DDDPRUN_HEADERS=$PWD/build/headers")
fi
# A .venv that came after the last configuring may switch parts on.
directory=build/$preset
if [ ! -f "$directory/build.ninja" ] || [ .venv/pyvenv.cfg -nt "$directory/build.ninja" ] ||
    [ "${#cmake_options[@]}" -gt 0 ]; then
    printf 'build: configuring %s\n' "$preset"
    cmake --preset "$preset" "${cmake_options[@]}"
fi
printf 'build: building %s\n' "$preset"
if [ $# -gt 0 ]; then
    cmake --build "$directory" --target "$@"
else
    cmake --build "$directory"
fi
printf 'build: programs are in %s/bin:' "$directory"
find "$directory/bin" -maxdepth 1 -type f -executable -printf ' %f' 2>/dev/null | sort || true
printf '\n'
