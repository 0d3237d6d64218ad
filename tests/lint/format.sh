#!/usr/bin/env bash
# format.sh - what every source file keeps: no tabs, no trailing blanks, at most 120 columns, one newline at the end, a licence
# line, and no TODO without an issue number. SPDX-License-Identifier: Apache-2.0
set -u
bad=0
say() { echo "format: $1"; bad=1; }
mapfile -t files < <(git ls-files '*.c' '*.h' '*.cu' '*.cc' '*.cuh')
for file in "${files[@]}"; do
    grep -nP '\t' "$file" | head -1 | grep -q . && say "$file: tab at line $(grep -nP '\t' "$file" | head -1 | cut -d: -f1)"
    grep -nE ' +$' "$file" | head -1 | grep -q . && say "$file: blanks at the end of line $(grep -nE ' +$' "$file" | head -1 | cut -d: -f1)"
    line=$(awk 'length($0) > 120 {print FNR; exit}' "$file"); [ -n "$line" ] && say "$file: line $line has more than 120 columns"
    [ -n "$(tail -c 1 "$file")" ] && say "$file: no newline at the end"
    head -n 45 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || say "$file: no SPDX line in the first 45"
    grep -nE '\b(TODO|FIXME)\b' "$file" | grep -vE '#[0-9]+' | head -1 | grep -q . && say "$file: TODO without an issue number"
done
mapfile -t scripts < <(git ls-files '*.sh' '*.py' tests/run .ci/run)
for file in "${scripts[@]}"; do
    head -n 12 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || say "$file: no SPDX line in the first 12"
    bash -n "$file" 2>/dev/null || [[ "$file" == *.py ]] || say "$file: does not parse"
done
exit $bad
