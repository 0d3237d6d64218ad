#!/usr/bin/env bash
# test_short_samples.sh - curriculum learning on a simulated GPU: samples that are cut to 40 tokens give the bits of a run
# of such samples, and growing ones are trained without a race. The text repeats itself every 32 bytes, so that samples
# of 72 begin as those of 40 do. SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-build/gcc-release/tests/sim} bin=${DSC_BIN:-bin}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0 failed=0
report() { # report NAME CONDITION...
    local name=$1
    shift
    n=$((n + 1))
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; tail -n 5 "$dir"/*.out | sed 's/^/# /'; failed=1; fi
}
for _ in $(seq 80); do printf 'And God said, Let there be light'; done >"$dir/t.txt"
echo '{"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 100}' >"$dir/m.json"
trains() { # trains NAME TOKENS MEMBERS DSC: in $dir/NAME
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true}, $3
        \"zero_optimization\": {\"stage\": 3}, \"dsc\": {\"model\": \"$dir/m.json\", \"data\": \"$dir/t.txt\", \"seq_length\": $2,
        \"shuffle\": false, \"steps\": 4, \"device\": \"cuda\", \"save\": \"$dir/$1\"$4}}" >"$dir/$1.json"
    timeout 100 "$sim/bin/train" --config "$dir/$1.json" --log "$dir/$1.jsonl" >"$dir/$1.out" 2>&1 </dev/null
}
curriculum() { # curriculum TYPE SCHEDULE
    echo "\"curriculum_learning\": {\"enabled\": true, \"min_difficulty\": 8, \"max_difficulty\": 72, \"schedule_type\": \"$1\", \"schedule_config\": $2},"
}
same() { [ "$("$bin/dsc" ckpt hash "$dir/$1/step-4")" = "$("$bin/dsc" ckpt hash "$dir/$2/step-4")" ]; }
lengths() { [ "$(grep -o '"seq_length":[0-9]*' "$dir/$1.jsonl" | tr -dc '0-9\n' | tr '\n' ' ')" = "$2" ]; }
report "samples of 40" trains brief 40 "" ""
report "samples of 72, cut to 40" trains cut 72 "$(curriculum fixed_discrete '{"difficulty": [40, 40], "max_step": [2]}')" ""
report "the bits are the same" same brief cut
linear=$(curriculum fixed_linear '{"total_curriculum_step": 3, "difficulty_step": 8}')
report "samples that grow" trains grow 72 "$linear" ""
report "as they should" lengths grow "24 48 72 72 "
report "recomputed" trains again 72 "$linear" ', "recompute": "full"'
report "the bits are the same" same grow again
echo "1..$n"
exit $failed
