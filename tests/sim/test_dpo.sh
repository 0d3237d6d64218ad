#!/usr/bin/env bash
# test_dpo.sh - preference pairs on a simulated GPU: the numbers of a CPU, and equal bits for stages, graphs and offload.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/../cli/tap.sh"
sim=${DSC_SIM:-$root/build/gcc-release/tests/sim}
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache
mkdir model
cp "$root/tests/golden/tokenizer_gpt2.json" model/tokenizer.json
echo '{"model_type": "llama", "vocab_size": 700, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
       "intermediate_size": 48, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "initializer_range": 0.2}' >model/config.json
for i in 1 2 3 4 5 6; do
    echo "{\"prompt\": \"question $i:\", \"chosen\": \" yes, $i it is\", \"rejected\": \" no, not $((i * 7))\"}"
done >pairs.jsonl
# run NAME PROGRAM DEVICE TOP OWN: numbers of the steps in NAME.numbers
run() {
    echo "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},
           \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}}, $4
           \"dsc\": {\"model\": \"model\", \"data\": \"pairs.jsonl\", \"seq_length\": 40, \"steps\": 3, \"threads\": 1, \"device\": \"$3\",
           \"dpo\": {\"beta\": 0.2} $5}}" >"$1.json"
    code=0
    timeout 200 "$2/train" --config "$1.json" --log "$1.log" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.]*\|"reward_[a-z]*":[-0-9.e]*' "$1.log" >"$1.numbers" 2>/dev/null
    [ -s "$1.numbers" ]
}
zero() { echo "\"zero_optimization\": {\"stage\": $1 ${2:-}},"; }

run cpu "$bin" cpu "$(zero 0)" ''
report "one GPU trains on pairs" run first "$sim/bin" cuda "$(zero 0)" ''
report "from log 2 on, near the CPU's numbers" python3 - <<'END'
import json, math, sys
a, b = ([json.loads(line) for line in open(name + ".log")] for name in ("first", "cpu"))
near = all(abs(x[k] - y[k]) < 0.02 for x, y in zip(a, b) for k in ("loss", "reward_chosen", "reward_rejected"))
sys.exit(not (near and len(a) == len(b) == 3 and a[0]["loss"] == math.log(2) and a[2]["loss"] < 0.6))
END
run third "$sim/bin" cuda "$(zero 3 ', "offload_optimizer": {"device": "cpu"}')" ''
report "stage 3 with states in host memory: the same bits" cmp first.numbers third.numbers
run graphs "$sim/bin" cuda "$(zero 1)" ', "cuda_graphs": true'
report "graphs: the same bits" cmp first.numbers graphs.numbers
run together "$sim/bin" cuda "$(zero 2)" ', "micro_batches_together": 2'
report "micro-batches together: the same bits" cmp first.numbers together.numbers
run chunks "$sim/bin" cuda "$(zero 2)" ', "head_chunk_bytes": 90000'
report "logits in chunks: losses of the first step" eval '[ $code -eq 0 ] && cmp <(head -5 first.numbers) <(head -5 chunks.numbers)'
end_of_tests
