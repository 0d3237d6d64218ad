#!/usr/bin/env bash
# format.sh - rules for source files: no tabs, no trailing blanks, at most 120 columns, one newline at the end, a
# licence line, no TODO without an issue number. No tracked file has more than 1 MB or is a package or program.
# SPDX-License-Identifier: Apache-2.0
set -u
bad=0
say() { echo "format: $1"; bad=1; }
mapfile -t files < <(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cc' '*.cuh')
# One process for all lines of all files: each finding once a file.
awk '
    function once(what) { if (!((FILENAME, what) in told)) { told[FILENAME, what] = 1; found = 1; print "format: " FILENAME ": " what } }
    FNR == 1 && NR > 1 && !licensed { found = 1; print "format: " last ": no SPDX line in the first 45" }
    FNR == 1 { licensed = 0; last = FILENAME }
    FNR <= 45 && /SPDX-License-Identifier: Apache-2.0/ { licensed = 1 }
    /\t/ { once("tab at line " FNR) }
    / +$/ { once("blanks at the end of line " FNR) }
    length($0) > 120 { once("line " FNR " has more than 120 columns") }
    /(^|[^A-Za-z0-9_])(TODO|FIXME)([^A-Za-z0-9_]|$)/ && !/#[0-9]+/ { once("TODO without an issue number at line " FNR) }
    END {
        if (NR > 0 && !licensed) { found = 1; print "format: " last ": no SPDX line in the first 45" }
        exit found
    }' "${files[@]}" || bad=1
for file in "${files[@]}"; do
    [ -n "$(tail -c 1 "$file")" ] && say "$file: no newline at the end"
done
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' '*.py' tests/run .ci/run)
for file in "${scripts[@]}"; do
    head -n 12 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || say "$file: no SPDX line in the first 12"
    bash -n "$file" 2>/dev/null || [[ "$file" == *.py ]] || say "$file: does not parse"
done
while IFS= read -r file; do
    say "$file: is a package or a program, not a source"
done < <(git ls-files '*.deb' '*.rpm' '*.whl' '*.o' '*.a' '*.so' '*.so.*')
while read -r size file; do
    [ "$size" -gt 1000000 ] && say "$file: $size bytes; a tracked file has at most 1000000"
done < <(git ls-files -z | xargs -0 stat -c '%s %n' 2>/dev/null)
exit $bad
