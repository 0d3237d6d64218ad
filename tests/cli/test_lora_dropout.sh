#!/usr/bin/env bash
# test_lora_dropout.sh - dropout of the inputs of adapters: off in evaluation, and the same bits at every stage, with
# recomputation, after a resume and for any number of ranks. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1
head -c 9000 "$root/README.md" >t.txt
train() { # NAME RANKS DROPOUT TOP-LEVEL DSC FLAGS...
    local top=$4 own=$5 start=()
    [ "$2" -eq 1 ] || start=("$bin/dsc-launch" --num_gpus="$2")
    echo "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}$top,
        \"dsc\": {\"model\": \"gpt2-nano\", \"data\": \"t.txt\", \"seq_length\": 16, \"threads\": 1, \"reproducible\": \"world_size\",
        \"lora\": {\"r\": 3, \"target_modules\": \"all-linear\", \"dropout\": $3}$own}}" >c.json
    code=0
    timeout 100 "${start[@]}" $([ "$2" -eq 1 ] && echo "$bin/train" || echo train) --config c.json --log "$1.jsonl" "${@:6}" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.e+-]*' "$1.jsonl" >"$1.loss" 2>/dev/null
    [ "$code" -eq 0 ]
}
equal() { [ -s "$1" ] && cmp "$1" "$2"; }
hash_of() { "$dsc" ckpt hash "$1" 2>&1 | tail -n 1; }
same() { equal whole.loss "$1.loss" && [ "$(hash_of whole/step-4)" = "$(hash_of "$1/step-4")" ]; }
train plain 1 0 "" "" --steps 4
train whole 1 0.4 "" "" --steps 4 --save whole
report "a run with dropout" [ $code -eq 0 ]
report "the first loss, where B is 0, is that without" [ "$(head -n 1 whole.loss)" = "$(head -n 1 plain.loss)" ]
report "later ones are not" eval '! cmp -s whole.loss plain.loss'
for stage in 1 2 3; do
    train "s$stage" 2 0.4 ", \"zero_optimization\": {\"stage\": $stage}" "" --steps 4 --save "s$stage"
    report "2 ranks at stage $stage: the same losses and bits" same "s$stage"
done
train ranks 4 0.4 ', "zero_optimization": {"stage": 2}' "" --steps 4 --save ranks
report "4 ranks likewise" same ranks
for recompute in full selective; do
    train "$recompute" 1 0.4 "" ", \"recompute\": \"$recompute\"" --steps 4 --save "$recompute"
    report "recomputation ($recompute) drops the same" same "$recompute"
done
train two 1 0.4 "" "" --steps 2 --save two
train four 1 0.4 "" "" --steps 4 --load two --save four
report "so does a resumed run" [ "$(hash_of whole/step-4)" = "$(hash_of four/step-4)" ]
train other 1 0.3 "" "" --steps 4 --load two
report "a resume with another probability says so" grep -q 'dsc.lora.dropout' err out
"$dsc" ckpt export whole/step-4 --out peft >out 2>err
report "exported for peft" grep -q '"lora_dropout": 0.4,' peft/adapter_config.json

# ---- evaluation ----
evaluate() { # NAME DROPOUT: an adapter that does something, evaluated before anything is learned
    sed "s/\"lora_dropout\": 0.4/\"lora_dropout\": $2/" peft/adapter_config.json >config.new && mkdir -p "a-$1" && cp peft/adapter_model.safetensors "a-$1" && mv config.new "a-$1/adapter_config.json"
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0}}, \"dsc\": {\"model\": \"gpt2-nano\", \"data\": \"t.txt\", \"eval_data\": \"t.txt\",
        \"eval_every\": 1, \"eval_batches\": 3, \"seq_length\": 16, \"threads\": 1, \"lora\": {\"adapter\": \"a-$1\"}}}" >c.json
    code=0
    timeout 60 "$bin/train" --config c.json --steps 1 --log "$1.jsonl" >out 2>err </dev/null || code=$?
    cat out err | grep -o 'validation loss [0-9.]*' >"$1.eval"
    grep -o '"loss":[0-9.]*' "$1.jsonl" >"$1.loss"
}
evaluate off 0
evaluate on 0.5
report "the adapter's own probability drops in training" eval '[ -s on.loss ] && ! cmp -s on.loss off.loss'
report "evaluation drops nothing" equal on.eval off.eval
sed 's/"lora_dropout": 0.4/"lora_dropout": 1/' peft/adapter_config.json >a-on/adapter_config.json
code=0; timeout 60 "$bin/train" --config c.json --steps 1 >out 2>err </dev/null || code=$?
refused() { [ "$code" -eq 2 ] && grep -qF '"lora_dropout" must be' err; }
report "a probability of 1 is refused" refused
end_of_tests
