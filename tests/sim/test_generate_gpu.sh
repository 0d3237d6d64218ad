#!/usr/bin/env bash
# test_generate_gpu.sh - `dsc generate` on a simulated GPU says what it says on the CPU, over the borders of its parts: a model of each
# kind of block. SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-build/gcc-release/tests/sim} bin=${DSC_BIN:-bin}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
report() { # report NAME CONDITION...
    local name=$1
    shift
    n=$((n + 1))
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; tail -n 5 "$dir"/*.out | sed 's/^/# /'; fi
}
head -c 4000 /dev/zero | tr '\0' 'a' >"$dir/t.txt"
like='"vocab_size": 256, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 100, "initializer_range": 0.3'
prompt=$(seq -s, 3 72)
says() { # says NAME CONFIG
    echo "$2" >"$dir/m.json"
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, \"dsc\": {\"model\": \"$dir/m.json\", \"seq_length\": 16, \"steps\": 1, \"seed\": 5}}" >"$dir/c.json"
    rm -rf "$dir/s"
    timeout 60 "$bin/train" --config "$dir/c.json" --data "$dir/t.txt" --save "$dir/s" >"$dir/train.out" 2>&1 </dev/null
    timeout 60 "$bin/dsc" generate --model "$dir/s/step-1" --prompt-ids "$prompt" --max-new-tokens 12 --ignore-eos --device cpu >"$dir/cpu.out" 2>&1
    for dtype in fp32 bf16; do
        timeout 100 "$sim/bin/dsc" generate --model "$dir/s/step-1" --prompt-ids "$prompt" --max-new-tokens 12 --ignore-eos --device cuda --dtype $dtype >"$dir/$dtype.out" 2>&1
    done
    report "$1: the CPU's tokens" [ "$(wc -w <"$dir/cpu.out"):$(cat "$dir/fp32.out")" = "12:$(cat "$dir/cpu.out")" ]
    report "$1: as many in bf16" [ "$(tr -d '0-9\n' <"$dir/bf16.out" | wc -c):$(wc -w <"$dir/bf16.out")" = 11:12 ]
}
says gpt2 '{"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 100, "initializer_range": 0.3}'
says opt '{"model_type": "opt", "vocab_size": 256, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 48, "max_position_embeddings": 100, "word_embed_proj_dim": 32, "init_std": 0.3}'
says qwen3 "{\"model_type\": \"qwen3\", \"head_dim\": 16, $like}"
says mistral "{\"model_type\": \"mistral\", \"sliding_window\": 20, $like}"
echo "1..$n"
