#!/usr/bin/env bash
# test_pipeline_tasks.sh - tasks beside stages of a pipeline, as processes: preference pairs, vectors of texts, short
# samples, pictures with batch norm, experts, adapters beside weights in 4 bits. Losses, norms, evaluations and checkpoints
# are those of one stage. SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive XDG_CACHE_HOME=$tmp/cache # more ranks than cores
mkdir model vit net
cp "$root/tests/golden/tokenizer_gpt2.json" model/tokenizer.json
sizes='"vocab_size": 700, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
       "intermediate_size": 48, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "initializer_range": 0.2'
echo "{\"model_type\": \"llama\", $sizes}" >model/config.json
echo "{\"model_type\": \"qwen3_moe\", $sizes, \"head_dim\": 8, \"moe_intermediate_size\": 16, \"num_experts\": 4, \"num_experts_per_tok\": 2,
       \"norm_topk_prob\": true, \"output_router_logits\": true, \"router_aux_loss_coef\": 0.1}" >moe.json
echo '{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32, "initializer_range": 0.1,
       "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 12, "patch_size": 4,
       "id2label": {"0": "left", "1": "middle", "2": "right"}}' >vit/config.json
echo '{"architectures": ["ResNetForImageClassification"], "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16],
       "depths": [1, 1], "layer_type": "basic", "id2label": {"0": "left", "1": "middle", "2": "right"}}' >net/config.json
python3 - <<'PY' || exit 1
import json, random, struct
r = random.Random(1)
def pictures(path, count, side):
    pixels, labels = bytearray(), []
    for _ in range(count):
        kind = r.randrange(3)
        labels.append(kind)
        pixels += bytes(r.randrange(60) + (150 if x * 3 // side == kind else 0) for y in range(side) for x in range(side) for c in range(3))
    open(path, "wb").write(b"DSCPIX01" + struct.pack("<q4i32x", count, side, side, 3, 3) + struct.pack(f"<{count}i", *labels) + pixels)
pictures("small.pictures", 101, 12)
pictures("large.pictures", 29, 224)
rows = lambda path, of: open(path, "w").writelines(json.dumps(of(i)) + "\n" for i in range(9))
rows("pairs.jsonl", lambda i: {"prompt": f"question {i}:", "chosen": f" yes, {i} it is", "rejected": f" no, not {i * 7}"})
rows("texts.jsonl", lambda i: {"anchor": f"a question of {i}", "positive": f"the answer is {i * 3}", "negative": f"nothing of {i}"})
open("text.txt", "w").write(" ".join("".join(r.choice("abcdefg") for _ in range(r.randrange(1, 6))) for _ in range(4000)))
PY

# life NAME RANKS STAGES: of the config NAME.json
life() {
    rm -rf "$1.$3.save" "$1.$3.log"
    timeout 200 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --pipeline-ranks "$3" --steps 3 --save "$1.$3.save" \
        --log "$1.$3.log" >"$1.$3.out" 2>&1 </dev/null || { tail -3 "$1.$3.out" >why; return 1; }
    { grep -oE '"(loss|grad_norm|aux_loss|z_loss|reward_[a-z]*|expert_load_ratio)":[^,}]*' "$1.$3.log"
        grep -oE '(loss|accuracy|spearman) [0-9.]+[^;]* of [0-9]+ samples' "$1.$3.out"
        "$bin/dsc" ckpt hash "$1.$3.save/step-3"; } >"$1.$3.result" 2>>why
    [ -s "$1.$3.result" ]
}
# task NAME MODEL DATA OWN TOP: two and four stages have the result of one, each of two data ranks
task() {
    echo "{\"train_micro_batch_size_per_gpu\": 6, \"gradient_accumulation_steps\": 3, \"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": true},
           \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002, \"weight_decay\": 0.1}}, \"zero_optimization\": {\"stage\": 2}$5,
           \"dsc\": {\"model\": \"$2\", \"data\": \"$3\", \"threads\": 1, \"comm_timeout_s\": 60 $4}}" >"$1.json"
    life "$1" 2 1 && life "$1" 4 2 && cmp "$1.1.result" "$1.2.result" >>why && life "$1" 8 4 && cmp "$1.1.result" "$1.4.result" >>why
}
text=', "seq_length": 40'
report "preference pairs, whose reference makes a pass first" task pairs model pairs.jsonl "$text"', "dpo": {"beta": 0.2}, "eval_data": "pairs.jsonl", "eval_every": 3' ''
report "vectors of texts" task vectors model texts.jsonl "$text"', "embedding": {"loss": "multiple_negatives"}, "eval_data": "texts.jsonl", "eval_every": 3' ''
report "short samples" task short model text.txt "$text" \
    ', "curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 40,
       "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 3, "difficulty_step": 8}}'
report "a mixture of experts" task experts moe.json text.txt "$text"', "tokenizer": "model", "moe": {"z_loss_coef": 0.01}' ''
report "adapters beside weights in 4 bits" task adapters model text.txt "$text"', "lora": {"r": 4, "target_modules": "all-linear"}, "quantize_base": {"format": "nf4"}' ''
report "pictures" task pictures vit small.pictures ', "eval_data": "small.pictures", "eval_every": 3' ''
report "pictures with batch norm" task norm net large.pictures ', "eval_data": "large.pictures", "eval_every": 3' ''
end_of_tests
