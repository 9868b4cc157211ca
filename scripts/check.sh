#!/usr/bin/env bash
# The checks that need no build, in well under 20 seconds. Ends with `N passed, N failed`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
    "") ;;
    --help | -h) printf 'usage: scripts/check.sh\n'; exit 0 ;;
    *) printf 'check: unknown option %s; there are none\n' "$1" >&2; exit 2 ;;
esac

readonly file_bytes_max=1048576

# What git tracks or would track, without what was deleted and not yet committed.
project_files() {
    git ls-files -z --cached --others --exclude-standard "$@" |
        while IFS= read -r -d '' file; do
            if [ -f "$file" ]; then printf '%s\0' "$file"; fi
        done
}

formatting() { scripts/format.sh --check; }

house_rules() { python3 scripts/tidy.py; }

rules_of_the_rules() { python3 tests/unit/test_tidy.py; }

table_of_limits() { python3 tests/unit/test_limits_table.py && scripts/limits_table.py --check; }

tables_of_flags() { python3 tests/unit/test_flag_tables.py && scripts/flag_tables.py --check; }

layout_of_the_page() { python3 tests/unit/test_page_layout.py && scripts/page_layout.py --check; }

pictures() { python3 tests/unit/test_pictures.py && scripts/pictures.py --check; }

runs_on_gpus() { python3 tests/unit/test_gpu_runs.py && scripts/gpu_runs.py --check; }

names_of_events() { python3 tests/unit/test_event_names.py; }

no_large_files() {
    local found
    found=$(project_files | xargs -0 -r du -b | awk -v max="$file_bytes_max" '$1 > max')
    [ -z "$found" ] || { printf 'larger than 1 MiB (bytes, file):\n%s\n' "$found"; return 1; }
}

no_private_keys() {
    local found
    found=$(project_files | xargs -0 -r grep -lIE -- '-----BEGIN ([A-Z]+ )?PRIVATE KEY-----')
    [ -z "$found" ] || { printf 'a private key in: %s\n' "$found"; return 1; }
}

shell_syntax() {
    local file failed=0
    while IFS= read -r -d '' file; do
        bash -n "$file" || failed=1
    done < <(project_files 'scripts/*.sh' 'examples/*.sh' 'tests/*.sh' .ci/run)
    return "$failed"
}

python_syntax() {
    project_files '*.py' | xargs -0 -r python3 -c '
import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path, encoding="utf-8").read(), path)'
}

passed=0
failed=0
for check in formatting house_rules rules_of_the_rules table_of_limits tables_of_flags \
    layout_of_the_page pictures runs_on_gpus names_of_events no_large_files no_private_keys \
    shell_syntax python_syntax; do
    if output=$("$check" 2>&1); then
        printf 'check: %s: ok\n' "${check//_/ }"
        passed=$((passed + 1))
    else
        printf '%s\ncheck: %s: FAILED\n' "$output" "${check//_/ }"
        failed=$((failed + 1))
    fi
done
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
