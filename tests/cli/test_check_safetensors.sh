#!/usr/bin/env bash
# test_check_safetensors.sh - `dsc check --kind safetensors FILE`: exit 0 and silence, or exit 2 and one line.
# SPDX-License-Identifier: Apache-2.0
set -u
dsc=${DSC_BIN:-bin}/dsc
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0

expect() { # expect NAME EXIT_CODE TEXT FILE
    local out rc ok=ok
    n=$((n + 1))
    out=$("$dsc" check --kind safetensors "$4" 2>&1); rc=$?
    [ $rc -eq "$2" ] || ok="not ok"
    if [ "$2" -eq 0 ]; then [ -z "$out" ] || ok="not ok"
    else
        [ "$(printf '%s\n' "$out" | wc -l)" -eq 1 ] || ok="not ok"
        case $out in "dsc: error: $4"*"$3"*) ;; *) ok="not ok" ;; esac
    fi
    echo "$ok $n - $1"
    [ "$ok" = ok ] || printf '# exit %s: %s\n' $rc "$out"
}

header='{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' # 54 bytes
printf '\x36\0\0\0\0\0\0\0%s\1\2\3\4' "$header" >"$dir/good"
printf '\x36\0\0\0\0\0\0\0%s\1\2\3' "$header" >"$dir/cut"
printf '\x36\0\0\0\0\0\0\0%s\1\2\3\4\5' "$header" >"$dir/longer"
printf '\xff\xff\xff\xff\xff\xff\xff\x7f{}' >"$dir/huge"
expect "a good file" 0 "" "$dir/good"
expect "the golden folder's file" 0 "" tests/golden/gpt2_folder/model.safetensors
expect "a truncated file" 2 'tensor "t"' "$dir/cut"
expect "bytes that belong to nobody" 2 "1 bytes at the end" "$dir/longer"
expect "a header longer than any" 2 "at most" "$dir/huge"
expect "no file" 2 "No such file" "$dir/none"
expect "a folder" 2 "folder" "$dir"
expect "a device" 2 "device" /dev/zero
echo "1..$n"
