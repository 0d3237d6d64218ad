#!/usr/bin/env bash
# test_io_bench.sh - `dsc io bench DIR`: every engine that is here, a section that `dsc config check` takes, nothing left.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
mkdir "$tmp/swap"

"$dsc" io bench "$tmp/swap" --mib 4 --rounds 1 >"$tmp/out" 2>"$tmp/err"
report "it ends well" [ $? -eq 0 ]
report "nothing on stderr" [ ! -s "$tmp/err" ]
report "threads are measured" grep -qE 'threads +1024 KiB +depth +8 +read +[0-9.]+ GB/s' "$tmp/out"
report "no file is left" [ -z "$(ls -A "$tmp/swap")" ]
{ echo '{ "train_batch_size": 8,'; grep '"dsc"' "$tmp/out" | sed 's/$/,/'; grep '"aio": { "block' "$tmp/out"; echo '}'; } >"$tmp/config.json"
"$dsc" config check "$tmp/config.json" >"$tmp/checked" 2>&1
report "its aio section is a config's" [ "$?/$(grep -c block_size "$tmp/config.json")" = 0/1 ]
"$dsc" io bench "$tmp/swap" --mib 1 --rounds 1 --engine threads --json >"$tmp/json"
report "one JSON line a setting" [ "$(grep -c '"engine":"threads"' "$tmp/json")" -eq 4 ]
for bad in "io" "io bench" "io bench $tmp/none" "io bench $tmp/swap --mib 0" "io bench $tmp/swap --engine nvme"; do
    # shellcheck disable=SC2086
    "$dsc" $bad >"$tmp/out" 2>"$tmp/err"
    report "refused: ${bad//$tmp/}" [ "$?/$(grep -c '^dsc: error: ' "$tmp/err")" = 2/1 ]
done
end_of_tests
