#!/usr/bin/env bash
# test_evaluation.sh - one validation loss over all samples for every micro-batch and number of ranks. The losses of a
# text model, of a masked one and of several files agree. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
head -c 4000 "$root/README.md" >train.txt
head -c $((9 * 32 + 20)) "$root/README.md" >first.txt # 9 samples and a rest, then 4: no micro-batch below divides 13
tail -c $((4 * 32 + 1)) "$root/CONTRIBUTING.md" >second.txt
mkdir bert
echo '{"model_type": "bert", "vocab_size": 259, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48,
       "max_position_embeddings": 64, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.1}' >bert/config.json
# validation RANKS MICRO-BATCH STAGE OWN: prints the validation losses of a run of two steps that learns nothing
validation() {
    echo "{\"train_micro_batch_size_per_gpu\": $2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0}}, \"zero_optimization\": {\"stage\": $3},
           \"dsc\": {\"seq_length\": 32, \"steps\": 2, \"threads\": 1, \"data\": \"train.txt\", \"eval_data\": [\"first.txt\", \"second.txt\"] $4}}" >c.json
    timeout 100 "$bin/dsc-launch" --num_gpus="$1" train --config c.json 2>&1 </dev/null | grep -aoE 'validation loss [0-9.]+|error: .*'
}
# agrees OWN: the number of different outputs of all worlds is 1
agrees() {
    for world in "1 1 0" "1 2 0" "1 5 1" "2 1 2" "2 3 3" "3 8 3"; do validation $world "$1"; done >losses
    sort -u losses
    [ "$(sort -u losses | wc -l)" = 1 ] && [ "$(grep -c 'validation loss' losses)" = "$2" ]
}
report "a text model, two files" agrees ', "model": "gpt2-nano"' 6
report "at every step" agrees ', "model": "gpt2-nano", "eval_every": 1' 12
report "a masked model" agrees ', "model": "bert", "mlm": {"mask_token": 256, "special_tokens": [10]}' 6
numbers() { for world in "1 4 0" "2 4 3" "3 4 1"; do validation $world ", \"model\": \"gpt2-nano\", \"eval_batches\": $1"; done | sort -u; }
report "two batches: the first eight samples on every world" eval '[ "$(numbers 2 | wc -l)" = 1 ] && [ "$(numbers 2)" != "$(numbers 9)" ]'
report "more batches than there are: all samples" [ "$(numbers 9)" = "$(validation 1 4 0 ', "model": "gpt2-nano"')" ]
end_of_tests
