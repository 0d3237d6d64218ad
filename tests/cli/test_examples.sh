#!/usr/bin/env bash
# test_examples.sh - the example programs build, run and learn. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
falls() { # first and last number after WORD in the output
    awk -v w="$1" '{for (i = 1; i < NF; i++) if ($i == w) {if (first == "") first = $(i + 1); last = $(i + 1)}} END {exit !(last + 0 < 0.9 * first)}' "$tmp/out"
}
for i in $(seq 200); do echo "the quick brown fox jumps over the lazy dog, line $i of a short text."; done > "$tmp/text.txt"

"$bin/examples/own_kernel" > "$tmp/out" 2>&1; rc=$?
report "own_kernel ends with 0" test $rc -eq 0
report "own_kernel learns" falls error
cp "$tmp/out" "$tmp/alone"
"$bin/dsc-launch" --num_gpus=2 "$bin/examples/own_kernel" 2>/dev/null > "$tmp/out"; rc=$?
report "own_kernel runs on two ranks" test $rc -eq 0
report "own_kernel on two ranks learns" falls error
"$bin/examples/own_model" "$tmp/text.txt" 20 > "$tmp/out" 2>&1; rc=$?
report "own_model ends with 0" test $rc -eq 0
report "own_model learns" falls loss
cp "$tmp/out" "$tmp/alone"
"$bin/dsc-launch" --num_gpus=2 "$bin/examples/own_model" "$tmp/text.txt" 20 2>/dev/null > "$tmp/out"; rc=$?
report "own_model runs on two ranks" test $rc -eq 0
report "own_model on two ranks learns" falls loss
"$bin/examples/own_model" "$tmp/missing.txt" > "$tmp/out" 2>&1; rc=$?
report "own_model without its text is bad input" test $rc -eq 2
"$bin/examples/own_vision" 60 > "$tmp/out" 2>&1; rc=$?
report "own_vision ends with 0" test $rc -eq 0
report "own_vision learns" falls loss
report "own_vision is right about most pictures" awk '{for (i = 1; i < NF; i++) if ($i == "accuracy") a = $(i + 1)} END {exit !(a > 0.8)}' "$tmp/out"
"$bin/dsc-launch" --num_gpus=2 "$bin/examples/own_vision" 60 2>/dev/null > "$tmp/out"; rc=$?
report "own_vision runs on two ranks" test $rc -eq 0
report "own_vision on two ranks learns" falls loss
"$bin/examples/gradient_hooks" "$tmp/text.txt" 12 > "$tmp/out" 2>&1; rc=$?
report "gradient_hooks ends with 0" test $rc -eq 0
report "gradient_hooks learns" falls loss
report "gradient_hooks clips gradients" grep -Eq '[1-9][0-9]* gradients clipped' "$tmp/out"
"$bin/dsc-launch" --num_gpus=2 "$bin/examples/gradient_hooks" "$tmp/text.txt" 12 2>/dev/null > "$tmp/out"; rc=$?
report "gradient_hooks runs on two ranks" test $rc -eq 0
report "gradient_hooks on two ranks learns" falls loss
"$bin/examples/train_gpt" "$tmp/text.txt" 2 8 > "$tmp/out" 2>&1; rc=$?
report "train_gpt ends with 0" test $rc -eq 0
report "train_gpt learns" falls loss
"$bin/examples/train_gpt" "$tmp/missing.txt" 2 3 > "$tmp/out" 2>&1; rc=$?
report "train_gpt without its text is bad input" test $rc -eq 2
report "train_gpt names the missing file" grep -q missing.txt "$tmp/out"
end_of_tests
