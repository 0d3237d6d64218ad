#!/usr/bin/env bash
# test_presets.sh - every preset trains as it is, twice from one folder, at other numbers of ranks.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1

# trains RANKS ARGS...: exit code 0 within a minute
trains() {
    local ranks=$1
    shift
    timeout 60 "$bin/dsc-launch" --num_gpus="$ranks" train --steps 2 --batch-size 2 "$@" >"$tmp/out" 2>&1 </dev/null
}
saved() { [ "$(find checkpoints -name manifest.json | wc -l)" -eq "$1" ]; }

runs=0
for strategy in ddp fsdp_stage2 fsdp_stage3; do
    for ranks in 2 1; do
        report "--strategy $strategy with $ranks ranks" trains $ranks --strategy $strategy
        runs=$((runs + 1))
        report "its checkpoint is in a folder of its own" saved $runs
    done
done
report "the offload that moves nothing is said" grep -q 'offload_param.device (line [0-9]*): "cpu" moves nothing' "$tmp/out"
report "overrides are said" grep -q -- '--batch-size 2 overrides train_micro_batch_size_per_gpu 8' "$tmp/out"
report "logs/training.log has the plain lines" grep -q '^step 2/2' logs/training.log
report "configs/ds_config.json with 2 ranks" trains 2 --config "$root/configs/ds_config.json"
report "without --config: the preset of ddp" trains 1
report "it says ZeRO stage 1" grep -q 'ZeRO stage 1' "$tmp/out"
end_of_tests
