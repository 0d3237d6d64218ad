#!/usr/bin/env bash
# test_model_show.sh - `dsc model show`: modules, and the ops of each family's block. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
run() { code=0; timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
refused() { [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && grep '^dsc: error: ' "$tmp/err" | grep -qF -- "$1"; }
has() { # LINE...: whole lines, blanks squeezed
    local line
    for line; do
        tr -s ' ' <"$tmp/out" | grep -qxF -- "$line" || fail "no line: $line" || return 1
    done
}

run "$dsc" model show gpt2-nano --batch 2 --seq 64
report "gpt2-nano is shown" [ $code -eq 0 ]
report "equal blocks are shown once" has "h.0 to h.3"
report "bytes of a block" has "h.0 198272 165888 131072 198656 399360 1052672 0.052 0.105"
report "a fused product names its epilogue" has " linear ln_2.11 -> activation.14, mlp.c_fc.13 + bias, gelu 16.78 MFLOP 0.426 MB" \
    " linear attention.7, in.0 -> add.10 + bias + residual 4.194 MFLOP 0.1311 MB"
report "a norm is marked as made again by backward" has " norm add.10 -> ln_2.11, ln_2.12 0.06656 MB (unless kept)"
report "each value has its store and bytes" has " mlp.c_fc [128,512] compute, 131072 bytes, rebuilt" \
    " add [128,128] compute, 32768 bytes, saved" " activation [128,512] compute, 131072 bytes, repeated"
run "$dsc" model show llama-nano --batch 2 --seq 64
report "layers of one input are one product" has " linear input_layernorm.1 -> self_attn.q_proj.21 of 3 layers 8.389 MFLOP 0.1638 MB" \
    " linear post_attention_layernorm.14 -> mlp.gate_proj.22 of 2 layers 23.07 MFLOP 0.3932 MB"
run "$dsc" model show qwen2.5-0.5b --batch 1 --seq 64
report "so they are with biases" has " linear input_layernorm.1 -> self_attn.q_proj.21 + bias of 3 layers 132.1 MFLOP 2.327 MB"
run "$dsc" model show "$root/tests/golden/hf_opt.json" --batch 2 --dtype fp32
report "an epilogue names its activation" has " linear final_layer_norm.10 -> activation.13, fc1.12 + bias, relu 0.887 MFLOP 0.1007 MB" \
    " linear_dx d_out.17, fc1.12 -> fc1.18 * slope of relu 0.887 MFLOP 0.1007 MB"
for name in hf_neox hf_opt hf_opt_post hf_bert llama_qwen3 hf_windows; do
    run "$dsc" model show "$root/tests/golden/$name.json" --dtype fp32
    report "$name is shown" grep -q '^backward: [0-9]* ops' "$tmp/out"
done
began=$(date +%s%N)
run "$dsc" model show llama-3.1-8b --batch 1 --seq 8192
took=$((($(date +%s%N) - began) / 1000000))
report "a model of 8 billion parameters is opened and planned in a second" [ $code -eq 0 -a $took -lt 1000 ]
run "$dsc" model show no-such-model
report "an unknown model" refused '"no-such-model" is not a built-in model'
run "$dsc" model list
report "dsc model list has all built-in models with their parameters" grep -q '^gemma-2-2b  *2614341888  *256000  *2048$' "$tmp/out"
printf '{"train_batch_size": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}' >"$tmp/plan.json"
slow=
for name in $(awk 'NR > 1 { print $1 }' "$tmp/out"); do
    began=$(date +%s%N)
    "$dsc" plan --config "$tmp/plan.json" --model "$name" >"$tmp/plan" 2>&1
    code=$?
    [ $code -eq 0 ] || { [ $code -eq 3 ] && grep -q 'error: memory' "$tmp/plan"; } || slow="$slow $name"
    [ $((($(date +%s%N) - began) / 1000000)) -lt 5000 ] || slow="$slow $name"
done
report "each built-in model is planned at once" [ -z "$slow" ]
run "$dsc" model show gpt2-nano --seq 100000
report "too many tokens" refused "positions: give at most that many"
run "$dsc" model show gpt2-nano --dtype fp8
report "an unknown dtype" refused "--dtype"
end_of_tests
