#!/usr/bin/env bash
# test_moe_bits.sh - a mixture of experts with losses of its routers. Losses, norms, loads and `dsc ckpt hash` do not
# depend on stage, offload, overlap, recomputation, threads or grouped micro-batches. With "world_size" they do not
# depend on the number of ranks. SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more threads than cores here: spinning would only take the others' time
seed=${DSC_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "# seed $seed; rerun: DSC_TEST_SEED=$seed $0"
RANDOM=$((seed % 32768))
pick() { local values=("$@"); echo "${values[RANDOM % $#]}"; }

awk 'BEGIN { x = 7; for (i = 0; i < 4000; i++) { x = (x * 1103515245 + 12345) % 2147483648
    printf "%s%s", substr("abcdefghijklmnopqrstuvwxyz", int(x / 65536) % 26 + 1, 1 + i % 3), i % 5 ? "" : " " } }' >text.txt
model() { # EXPERTS TOP_K: a layer without experts between two with them
    cat >model.json <<EOF
{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 256, "hidden_size": 32,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3, "intermediate_size": 40,
 "moe_intermediate_size": 16, "num_experts": $1, "num_experts_per_tok": $2, "norm_topk_prob": true,
 "mlp_only_layers": [1], "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
 "output_router_logits": true, "router_aux_loss_coef": 0.1}
EOF
}
length=16
# config NAME STAGE BF16 MICRO ACCUMULATION OVERLAP RECOMPUTE THREADS REPRODUCIBLE [ZERO [DSC]]: further keys of both
config() {
    cat >"$1.json" <<EOF
{"train_micro_batch_size_per_gpu": $4, "gradient_accumulation_steps": $5, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.1}}, "bf16": {"enabled": $3},
 "zero_optimization": {"stage": $2, "overlap_comm": $6${10:+, ${10}}},
 "dsc": {"model": "$tmp/model.json", "data": "$tmp/text.txt", "seq_length": $length, "steps": 3, "recompute": "$7",
         "threads": $8, "reproducible": "$9", "moe": {"z_loss_coef": 0.01, "log_load": true}${11:+, ${11}}}}
EOF
}
trains() { # NAME RANKS: NAME.result
    rm -rf "$1.save" "$1.log"
    timeout 120 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --save "$1.save" --log "$1.log" \
        >"$1.out" 2>&1 </dev/null || { cp "$1.out" why; return 1; }
    { grep -oE '"(loss|grad_norm|aux_loss|z_loss|expert_load_ratio)":[^,]*|"expert_load":[^a-z]*' "$1.log" &&
        "$bin/dsc" ckpt hash "$1.save/step-3"; } >"$1.result" 2>why || return 1
    rm -rf "$1.save"
    [ "$(wc -l <"$1.result")" -eq 19 ] && return
    { echo "$(wc -l <"$1.result") lines of results"; cat "$1.result"; } >why
    return 1
}
same() { # NAME RANKS
    trains "$1" "$2" || return 1
    cmp -s reference.result "$1.result" || { cat "$1.json"; diff reference.result "$1.result"; } >why 2>&1
    cmp -s reference.result "$1.result"
}
tier() { # cpu or nvme, as a device of offload_optimizer or offload_param
    local path=""
    [ "$1" = nvme ] && path=", \"nvme_path\": \"$tmp\""
    echo "{\"device\": \"$1\"$path}"
}

stages() { # RANKS BF16
    local stage
    config reference 0 "$2" 2 2 false none 1 plan
    trains reference "$1" || return 1
    for stage in 0 1 2 3; do
        config variant $stage "$2" 2 2 "$(pick true false)" "$(pick kept none selective full)" "$(pick 1 2 3)" plan
        same variant "$1" || return 1
    done
}
offloads() { # RANKS BF16
    local place
    config reference 0 "$2" 2 2 false none 1 plan
    trains reference "$1" || return 1
    for place in cpu nvme; do
        config variant "$(pick 1 2)" "$2" 2 2 true none 1 plan "\"offload_optimizer\": $(tier $place)"
        same variant "$1" || return 1
        config variant 3 "$2" 2 2 true full 1 plan "\"offload_optimizer\": $(tier $place), \"offload_param\": $(tier $place)"
        same variant "$1" || return 1
    done
}
any_world() { # BF16
    local ranks
    config reference 1 "$1" 2 4 false none 2 world_size
    trains reference 1 || return 1
    for ranks in 2 4; do
        config variant "$(pick 0 1 2 3)" "$1" 2 $((4 / ranks)) "$(pick true false)" "$(pick kept none selective full)" 1 world_size
        same variant $ranks || return 1
    done
}
together() { # BF16
    config reference 2 "$1" 2 4 false none 2 plan
    trains reference 1 || return 1
    config variant 3 "$1" 2 4 true "$(pick kept none selective full)" 1 plan "" '"micro_batches_together": 2'
    same variant 1
}
losses_count() { # the losses of routers are in the loss, with their factors
    awk -F'[:,]' '/"loss"/ { l = $2 } /aux_loss/ { a = $2 } /z_loss/ { z = $2; n++; if (l <= 0.1 * a + 0.01 * z || a < 1.9) bad = 1 }
        END { exit bad || n != 3 }' reference.result || { cp reference.result why; return 1; }
}
# Experts without a token in a micro-batch, or experts that each token goes to.
edge() { # EXPERTS TOP_K IDLE
    model "$1" "$2"
    length=4
    config reference 1 false 1 1 false none 1 plan
    trains reference 1 || return 1
    awk -F'"experts_idle":' '{ split($2, n, ","); if ((n[1] > 0) != '"$3"') bad = 1 } END { exit bad }' reference.log ||
        { cp reference.log why; return 1; }
    config variant 3 false 1 1 true full 2 plan
    same variant 1
}
not_for_dense() { # the message
    config dense 0 false 1 1 false none 1 plan
    sed -i "s#$tmp/model.json#gpt2-nano#" dense.json
    "$bin/train" --config dense.json >why 2>&1 </dev/null
    [ $? -eq 2 ] && grep -q "the model has no experts" why
}

model 6 2
for ranks in 1 2 3; do
    bf16=$(pick true false)
    report "stages 0-3: $ranks ranks, bf16 $bf16" stages $ranks "$bf16"
done
report "losses of routers are parts of the loss" losses_count
for bf16 in true false; do report "states in memory of the host and in files, bf16 $bf16" offloads "$(pick 1 2)" $bf16; done
for bf16 in true false; do report "world_size: 1, 2 and 4 ranks agree, bf16 $bf16" any_world $bf16; done
report "micro-batches together or one after another" together "$(pick true false)"
report "experts without a token" edge 24 2 1
report "every token to every expert" edge 3 3 0
report "a loss of routers is refused for a model without experts" not_for_dense
end_of_tests
