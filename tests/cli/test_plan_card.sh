#!/usr/bin/env bash
# test_plan_card.sh - `dsc plan --time --gpu CARD`: predictions against the measured runs that each card's file lists,
# memory taken beside the plan's, what exchanges and copies add, and cards without rates. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export CUDA_VISIBLE_DEVICES=-1
cards=$(dirname "${BASH_SOURCE[0]}")/../../bench/cards

plan() { code=0; timeout 60 "$dsc" plan --time "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
refused() { [ $code -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$1" "$tmp/err"; }
ms() { sed -nE 's/.*"step_s":([0-9.e+-]+).*/\1/p' "$tmp/out" | awk '{printf "%.1f", $1 * 1000}'; }
within() { awk -v a="$1" -v b="$2" -v share="$3" 'BEGIN { exit !(a > 0 && a / b < 1 + share && b / a < 1 + share) }'; }

config() { echo "{\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": true}, \"zero_optimization\": {$1},
    \"dsc\": {\"model\": \"llama-2-7b\", \"seq_length\": 2048, \"recompute\": \"full\"}}" >"$tmp/c.json"; }
config '"stage": 3'

# ---- against the runs on cards ----
for file in "$cards"/*.json; do
    card=$(basename "$file" .json)
    count=$(python3 - "$file" "$tmp" <<'PY'
import json, sys
runs = json.load(open(sys.argv[1]))["runs"]
for i, run in enumerate(runs):
    json.dump(run["config"], open(f"{sys.argv[2]}/run{i}.json", "w"))
    open(f"{sys.argv[2]}/run{i}.ms", "w").write(f"{run['ms']} {run['what']}")
print(len(runs))
PY
    )
    for ((i = 0; i < count; i++)); do
        read -r measured what <"$tmp/run$i.ms"
        plan --gpu "$card" --world-size 1 --config "$tmp/run$i.json" --json
        report "$card: $what within 15 % of $measured ms ($(ms))" within "$(ms)" "$measured" 0.15
    done
    plan --gpu "$card" --world-size 8 --config "$tmp/c.json"
    report "$card has rates" grep -qE "^predicted step on 8 x $card: +[0-9.]+ ms" "$tmp/out"
done

# ---- memory: what the engine takes of a virtual card in whole steps of a 7B, beside the plan ----
bytes_of() { sed -nE "s/.*\"device_$1_bytes\":([0-9]+).*/\1/p" "$tmp/out"; }
exact() { # not above the plan, and below it by no more than small tables, counted as they are opened
    local planned taken
    planned=$(bytes_of planned) taken=$(bytes_of peak)
    [ $code -eq 0 ] && [ "${planned:-0}" -gt $((1 << 30)) ] && [ "$taken" -le "$planned" ] && [ $((planned - taken)) -le 4096 ]
}
mib() { echo "$(bytes_of "$1")" | awk '{printf "%.2f", $1 / 1048576}'; }
lora='"lora": {"r": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}'
while read -r what ranks stage own; do
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\"},
        \"zero_optimization\": {\"stage\": $stage}, \"dsc\": {\"model\": \"llama-2-7b\", \"seq_length\": 1024$own}}" >"$tmp/c.json"
    plan --gpu H100 --world-size "$ranks" --config "$tmp/c.json" --json
    report "7B $what on $ranks: $(mib planned) MiB planned, $(mib peak) MiB taken" exact
done <<END
QLoRA 1 2 , $lora, "quantize_base": {}
LoRA 1 2 , $lora
QLoRA 4 3 , $lora, "quantize_base": {}
LoRA 4 3 , $lora
AdamW 8 3
END

# ---- ranks, links, hosts ----
config '"stage": 3'
plan --gpu H200 --world-size 8 --config "$tmp/c.json" --json; eight=$(ms)
plan --gpu H200 --world-size 64 --config "$tmp/c.json" --json; many=$(ms)
report "a network between hosts makes a step longer" awk "BEGIN { exit !($many > $eight) }"
report "the parts name the exchange" grep -qE '"exchange":[0-9.]*[1-9]' "$tmp/out"
config '"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}'
plan --gpu H200 --world-size 1 --config "$tmp/c.json" --json; behind=$(ms)
report "an update by the host bounds the step" grep -q '"bound":"update by the host"' "$tmp/out"
sed -i 's/"dsc": {/"dsc": {"gradients": "bf16", /' "$tmp/c.json"
plan --gpu H200 --world-size 1 --config "$tmp/c.json" --json; narrow=$(ms)
report "sums in bf16 make it shorter" awk "BEGIN { exit !($narrow < 0.98 * $behind) }"
sed -i 's/"dsc": {/"dsc": {"early_update": true, /' "$tmp/c.json"
plan --gpu H200 --world-size 1 --config "$tmp/c.json" --json; early=$(ms)
report "updates under the backward pass make it shorter" awk "BEGIN { exit !($early < 0.9 * $narrow) }"
config '"stage": 2, "overlap_comm": false, "offload_optimizer": {"device": "cpu", "pin_memory": true}'
plan --gpu H200 --world-size 1 --config "$tmp/c.json" --json; inside=$(ms)
report "it takes longer within the step than behind the next pass" awk "BEGIN { exit !($inside > 1.1 * $behind) }"
plan --gpu "NVIDIA H100 80GB HBM3" --world-size 1 --config "$tmp/c.json"
report "a card as nvidia-smi writes it" grep -q '^predicted step on 1 x ' "$tmp/out"
report "rates of data sheets are told" grep -q 'the rates come from data sheets' "$tmp/out"

# ---- refused ----
plan --gpu RTX-3090 --world-size 1 --config "$tmp/c.json"
report "a card without rates names those with" refused 'no rates of "RTX-3090" were measured, which --time needs; there are those of'
plan --gpu-memory 80GiB --world-size 1 --config "$tmp/c.json"
report "a size has no rates" refused 'name the card with --gpu'
end_of_tests
