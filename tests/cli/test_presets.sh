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
for name in bf16 fp16 zero1 zero2 zero2_offload zero3 zero3_offload zero_infinity_nvme; do
    report "configs/ds_config_$name.json" trains 1 --seq-len 32 --config "$root/configs/ds_config_$name.json"
    report "its stage" grep -q "$(case $name in bf16 | fp16) echo "ZeRO stage 0" ;; *) echo "ZeRO stage $(tr -dc 0-9 <<<"${name/infinity/3}")" ;; esac)" "$tmp/out"
done
report "states of zero_infinity_nvme are in files" grep -q 'nvme' "$tmp/out"
report "configs/training_config.yaml with 2 ranks" trains 2 --config "$root/configs/training_config.yaml" --save "$tmp/yaml"
report "its checkpoint keeps the config as JSON" python3 -c "import json, sys; sys.exit(json.load(open('$tmp/yaml/step-2/ds_config.json'))['zero_optimization']['stage'] != 2)"
printf '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0}}, "dsc": {"model": "gpt2-nano", "seq_length": 32, "steps": 9, "eval_every": 1, "eval_batches": 1, "stop": {"eval_patience": 2}}}' >patience.json
report "a run whose evaluations bring no lower loss" timeout 60 "$bin/train" --config patience.json --data "$root/docs/config.md" --eval-data "$root/README.md" --save patience >"$tmp/out" 2>&1
report "ends with dsc.stop.eval_patience" grep -q '^step 3: 2 evaluations in a row brought no lower loss' "$tmp/out"
report "and is saved" test -d patience/step-3
report "without --config: the preset of ddp" trains 1
report "it says ZeRO stage 1" grep -q 'ZeRO stage 1' "$tmp/out"
end_of_tests
