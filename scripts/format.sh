#!/usr/bin/env bash
# Formats all C++ files that git tracks or would track.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
    "") ;;
    --help | -h) printf 'usage: scripts/format.sh [--check]\n'; exit 0 ;;
    --check) ;;
    *) printf 'format: unknown option %s; --check is the only one\n' "$1" >&2; exit 2 ;;
esac
formatter=$(command -v clang-format-14 || command -v clang-format) || {
    printf 'format: clang-format is missing; run scripts/setup.sh first\n' >&2
    exit 1
}

mapfile -d '' -t files < <(
    git ls-files -z --cached --others --exclude-standard '*.cpp' '*.hpp' |
        while IFS= read -r -d '' file; do
            if [ -f "$file" ]; then printf '%s\0' "$file"; fi
        done
)
[ "${#files[@]}" -gt 0 ] || exit 0
if [ "${1:-}" = --check ]; then
    printf '%s\0' "${files[@]}" | xargs -0 -n 8 -P "$(nproc)" bash -c '
        for file in "${@:2}"; do
            "$1" "$file" | cmp -s - "$file" || { echo "$file: run scripts/format.sh"; bad=1; }
        done
        exit "${bad:-0}"' bash "$formatter"
    printf 'format: %s files are formatted\n' "${#files[@]}"
else
    printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" "$formatter" -i
    printf 'format: %s files\n' "${#files[@]}"
fi
