#!/usr/bin/env bash
# test_benches.sh - every `make bench-X` of bench/bench.mk in its short form: it ends well and prints its rows with numbers. A bench
# may skip, with a reason, only if it needs a GPU or other programs. A short form over 10 s is left to DSC_TEST_NIGHT=1.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
if [ -n "${DSC_SAN:-}" ]; then echo "benches measure the plain build"; exit 77; fi
cd "$root" || exit 1

n='[0-9]+\.?[0-9]*' # a number; neither nan nor inf
# A row that each bench prints, and how many of it at least.
declare -A row=(
    [kern]="^# bench .* [0-9]+ ns +$n GB/s" [adam]="^adamw_f32_(and_bf16_)?N[0-9]+ $n ns/param min $n max $n"
    [comm]="^2 ranks  (all_gather|reduce_scatter|all_reduce) +[0-9]+ KiB  dsc (shared|plain) +$n GB/s +$n \.\. +$n"
    [builds]="_(this|other) $n (ms/step|us) |_ratio $n times"
    [train]="_speed $n times" [io]="^(read|write) +dsc .* $n GB/s +$n \.\. +$n +cpu $n"
    [quota]="^quota_speed $n times" [elastic]="^(death|step|mirrors) $n \($n \.\. $n\)"
    [watch]="^watch_(none|all) $n ms/step|^watch_adds -?$n us/step .* share -?$n %"
    [recompute]="^  (kept|none|selective|full) +activations +$n MB .* step +$n \($n \.\. $n\) s, x +$n"
    [simulate]="^small +2 +1 +[124] +$n +$n +$n +$n +$n \($n\) +$n +$n %"
    [offload]="^  (step in memory|link|both at once|step in files) +$n \($n \.\. $n\) s"
    [ckpt]="^(save|load|load, idle memory): +$n |^beside: .* adds +-?$n |^restart: .* step +$n "
    [generate]="^(gpt2|llama) .* dsc $n \($n \.\. $n\) tokens/s;" [startup]="^dsc-launch, .* here.* $n s  middle half $n \.\. $n"
    [sft-data]="^(blocks|plain) +[0-9]+ cores? +dsc $n \($n \.\. $n\) MiB/s; trl $n .* x $n"
    [images]="^(dsc|dsc with dct_scaling) +$n pictures/s +$n \.\. $n"
    [pipeline]="^m [0-9]+: dsc +step $n .* idle $n .* of .* $n"
    [moe]="^  (dsc|transformers) +step $n \($n\.\.$n\) ms|^  transformers' step is $n"
    [vision]="^  (dsc|eager) +step $n \($n\.\.$n\) ms, CPU $n"
    [accuracy]="^(dsc|pytorch) +$n % right, deviation $n, of [0-9]+ seeds:"
    [fp8-loss]="^(fp32|fp8) .* [+-]$n %  95 % interval [+-]$n to [+-]$n"
    [gpu-kern]="^# bench .* [0-9]+ ns" [gpu]="^nano (dsc|graphs|late) +$n ms  min $n max $n +$n tokens/s"
)
declare -A rows=([quota]=1 [elastic]=3 [kern]=4 [adam]=2 [comm]=12 [builds]=21 [train]=1 [io]=6 [watch]=3 [recompute]=4 [simulate]=3 [offload]=4 [ckpt]=5 [generate]=2 [startup]=3 [sft-data]=2
    [images]=2 [pipeline]=1 [moe]=3 [vision]=2 [accuracy]=2 [fp8-loss]=3 [gpu-kern]=4 [gpu]=2)
may_skip=" train generate sft-data images moe vision accuracy gpu-kern gpu "
only_by_night=" "

ends_well() { # BENCH: rc 0, and its rows with numbers
    local found
    [ "$code" -eq 0 ] || fail "make ended with $code" || return 1
    ! grep -q '^Traceback' "$tmp/err" || fail "a traceback" || return 1
    found=$(grep -cE "${row[$1]}" "$tmp/out")
    [ "$found" -ge "${rows[$1]}" ] || fail "$found rows with numbers, at least ${rows[$1]} expected: ${row[$1]}"
}
is_known() { [ -n "${row[$1]:-}" ] || fail "no row is known of bench-$1; add one to $0"; }

benches=$(sed -n 's/^\.PHONY: bench-//p' bench/bench.mk)
report "bench.mk has benches" [ "$(wc -w <<<"$benches")" -ge "${#row[@]}" ]
for bench in $benches; do
    name="make bench-$bench SHORT=1"
    if ! is_known "$bench" 2>/dev/null; then report "$name" false; continue; fi
    if [[ $only_by_night == *" $bench "* ]] && [ "${DSC_TEST_NIGHT:-0}" != 1 ]; then skip "$name" "DSC_TEST_NIGHT=1 runs it"; continue; fi
    code=0
    timeout 120 env -u ROUNDS -u DSC_BIN -u DSC_LIB make -s SHORT=1 ROUNDS= PEERS= PYTHON= CASES= PARTS= DIR="$tmp" "bench-$bench" \
        >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    why=$(sed -n "s/^bench-$bench: skipped: //p" "$tmp/out")
    if [ "$code" -eq 0 ] && [ -n "$why" ] && [[ $may_skip == *" $bench "* ]]; then skip "$name" "$why"; continue; fi
    report "$name" ends_well "$bench"
done
end_of_tests
