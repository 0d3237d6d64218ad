#!/usr/bin/env bash
# test_check_safetensors.sh - `dsc check --kind safetensors FILE`: exit 0 and silence, or exit 2 and one line.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"

as_expected() { # EXIT_CODE TEXT FILE
    code=0
    "$dsc" check --kind safetensors "$3" >"$tmp/out" 2>&1 || code=$?
    [ $code -eq "$1" ] || return 1
    if [ "$1" -eq 0 ]; then [ ! -s "$tmp/out" ]; return; fi
    [ "$(wc -l <"$tmp/out")" -eq 1 ] || return 1
    case $(cat "$tmp/out") in "dsc: error: $3"*"$2"*) ;; *) return 1 ;; esac
}
expect() { report "$1" as_expected "${@:2}"; } # NAME EXIT_CODE TEXT FILE

header='{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' # 54 bytes
printf '\x36\0\0\0\0\0\0\0%s\1\2\3\4' "$header" >"$tmp/good"
printf '\x36\0\0\0\0\0\0\0%s\1\2\3' "$header" >"$tmp/cut"
printf '\x36\0\0\0\0\0\0\0%s\1\2\3\4\5' "$header" >"$tmp/longer"
printf '\xff\xff\xff\xff\xff\xff\xff\x7f{}' >"$tmp/huge"
expect "a good file" 0 "" "$tmp/good"
expect "the golden folder's file" 0 "" tests/golden/gpt2_folder/model.safetensors
expect "a truncated file" 2 'tensor "t"' "$tmp/cut"
expect "bytes that belong to nobody" 2 "1 bytes at the end" "$tmp/longer"
expect "a header longer than any" 2 "at most" "$tmp/huge"
expect "no file" 2 "No such file" "$tmp/none"
expect "a folder" 2 "folder" "$tmp"
expect "a device" 2 "device" /dev/zero
end_of_tests
