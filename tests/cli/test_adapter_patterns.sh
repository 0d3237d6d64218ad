#!/usr/bin/env bash
# test_adapter_patterns.sh - adapters of PEFT whose layers have ranks and alphas of their own: the numbers of W + s B A,
# also after a save, an export and a merge. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1 PYTHONPATH="$root/tests/cli" PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { skip "patterns of adapters" "no python3"; end_of_tests; }
head -c 4000 "$root/README.md" >t.txt
cat >make.py <<'END'
import json, math, os, random, struct, sys
from tensors import write, read_numbers as read
C, F, V = 32, 64, 256
out_of = {"q_proj": C, "v_proj": 16}
# by layer and module, as PEFT finds them: the first key that is the name or its end
cases = {
    "plain": ({}, lambda i, q: (4, 8 / 4)),
    "rank": ({"rank_pattern": {"v_proj": 2}}, lambda i, q: (2, 8 / 2) if q == "v_proj" else (4, 8 / 4)),
    "alpha": ({"alpha_pattern": {"v_proj": 32}}, lambda i, q: (4, 32 / 4) if q == "v_proj" else (4, 8 / 4)),
    "both": ({"rank_pattern": {"model.layers.1.self_attn.q_proj": 6, "q_proj": 3}, "alpha_pattern": {"layers.0.self_attn.q_proj": 1.5, "self_attn.v_proj": 5}},
             lambda i, q: ((3, 1.5 / 3) if i == 0 else (6, 8 / 6)) if q == "q_proj" else (4, 5 / 4)),
    "regex": ({"rank_pattern": {r"layers\.(0|[5-9])\..*": 3, "^q_proj": 9}, "alpha_pattern": {"[qk]_proj": 16, "(q|v)_proj": 5}}, lambda i, q: (3 if i == 0 else 4, (16 if q == "q_proj" else 5) / (3 if i == 0 else 4))),
    "stable": ({"use_rslora": True, "rank_pattern": {"v_proj": 9}}, lambda i, q: (9, 8 / 3) if q == "v_proj" else (4, 8 / 2)),
}
if sys.argv[1] == "make":
    random.seed(3)
    def some(shape, mean=0.0):
        return list(shape), [mean + random.gauss(0, .08) for _ in range(math.prod(shape))]
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V, "max_position_embeddings": 64, "hidden_size": C, "intermediate_size": F,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
    t = {"model.embed_tokens.weight": some((V, C))}
    for i in range(2):
        p = f"model.layers.{i}."
        for q, a, b in (("self_attn.q_proj", C, C), ("self_attn.k_proj", 16, C), ("self_attn.v_proj", 16, C), ("self_attn.o_proj", C, C), ("mlp.gate_proj", F, C), ("mlp.up_proj", F, C), ("mlp.down_proj", C, F)):
            t[p + q + ".weight"] = some((a, b))
        for n in ("input_layernorm", "post_attention_layernorm"): t[p + n + ".weight"] = some((C,), 1.0)
    t["model.norm.weight"], t["lm_head.weight"] = some((C,), 1.0), some((V, C))
    write("base", "model.safetensors", llama, t)
    for name, (extra, numbers) in cases.items():
        a, merged = {}, dict(t)
        for i in range(2):
            for q, o in out_of.items():
                r, s = numbers(i, q)
                n = f"model.layers.{i}.self_attn.{q}"
                A, B = some((r, C)), some((o, r))
                a[f"base_model.model.{n}.lora_A.weight"], a[f"base_model.model.{n}.lora_B.weight"] = A, B
                w = list(t[n + ".weight"][1])
                for x in range(o):
                    for y in range(C):
                        w[x * C + y] += s * sum(B[1][x * r + k] * A[1][k * C + y] for k in range(r))
                merged[n + ".weight"] = ([o, C], w)
        write(name, "adapter_model.safetensors", dict({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none", "fan_in_fan_out": False}, **extra), a)
        write("sum-" + name, "model.safetensors", llama, merged)
else:
    a, b = read(sys.argv[2] + "/model.safetensors"), read(sys.argv[3] + "/model.safetensors")
    assert set(a) == set(b)
    for k in a: assert max(abs(x - y) for x, y in zip(a[k][1], b[k][1])) < 1e-5, k
END
python3 make.py make
train() { # NAME DSC FLAGS...
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0}}, \"dsc\": {\"data\": \"t.txt\", \"seq_length\": 16, \"steps\": 1, \"shuffle\": false, \"threads\": 1, \"tokenizer\": \"none\" $2}}" >c.json
    code=0
    timeout 60 "$bin/train" --config c.json --log "$1.log" "${@:3}" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.]*' "$1.log" | cut -d: -f2 >"$1.loss"
}
near() { [ -s "$1.loss" ] && [ -s "$2.loss" ] && python3 -c 'import sys; assert abs(float(open(sys.argv[1]).read()) - float(open(sys.argv[2]).read())) < 2e-5' "$1.loss" "$2.loss"; }
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
train base "" --model base
for each in plain rank alpha both regex stable; do
    train "sum-$each" "" --model "sum-$each"
    train "$each" ", \"lora\": {\"adapter\": \"$each\"}" --model base --save "run-$each"
    report "$each: the loss of W + s B A" eval 'near "$each" "sum-$each" && ! near "$each" base'
    "$dsc" ckpt export "run-$each/step-1" --out "merged-$each" --merge >out 2>err
    report "$each: so is the merged model" python3 make.py compare "merged-$each" "sum-$each"
    "$dsc" ckpt export "run-$each/step-1" --out "peft-$each" >out 2>err
    train "again-$each" ", \"lora\": {\"adapter\": \"peft-$each\"}" --model base
    report "$each: an exported adapter goes on with its numbers" cmp "$each.loss" "again-$each.loss"
done
train other ", \"lora\": {\"adapter\": \"plain\"}" --model base --load run-alpha --steps 2
report "a checkpoint with another alpha of a layer is refused" refused "a pattern of layers"
for pattern in '"alpha_pattern": {"v_proj": 0}' '"rank_pattern": {"v_proj": 1.5}' '"rank_pattern": [2]'; do
    sed "s/\"peft_type\"/$pattern, \"peft_type\"/" plain/adapter_config.json >p.json && mkdir -p bad && cp p.json bad/adapter_config.json && cp plain/adapter_model.safetensors bad/
    train bad ', "lora": {"adapter": "bad"}' --model base
    report "refused with its place: $pattern" refused "bad/adapter_config.json:1:"
done
sed 's/"peft_type"/"rank_pattern": {"v_proj(": 2}, "peft_type"/' plain/adapter_config.json >bad/adapter_config.json
train bad ', "lora": {"adapter": "bad"}' --model base
report "a regular expression that is none is refused" refused '"(.*\.)?(v_proj()$" has a group without its )'

# ---- from the config ----
ranks() { # NAME: of the layers with adapters, in order
    "$bin/dsc" ckpt export "run-$1/step-1" --out "ranks-$1" >out 2>err
    python3 -c '
import json, struct, sys
data = open(sys.argv[1], "rb").read()
head = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
print(" ".join(sorted(k.split("layers.")[1].split(".lora_A")[0] + "=" + str(v["shape"][0]) for k, v in head.items() if ".lora_A" in k)))' "ranks-$1/adapter_model.safetensors"
}
fresh() { # NAME LORA RANKS
    train "$1" ", \"lora\": {\"r\": 2, $2}" --model base --save "run-$1"
    [ "$code" -eq 0 ] && [ "$(ranks "$1")" = "$3" ] || fail "$(ranks "$1")"
}
report "a text is a regular expression" fresh a '"target_modules": ".*\\.1\\..*(q|v)_proj"' "1.self_attn.q_proj=2 1.self_attn.v_proj=2"
report "layers without, blocks, ranks of single layers" fresh b '"target_modules": "all-linear", "exclude_modules": ".*(self_attn|gate).*", "rank_pattern": {"down_proj": 5, "layers\\.0\\..*": 3}' \
    "0.mlp.down_proj=5 0.mlp.up_proj=3 1.mlp.down_proj=5 1.mlp.up_proj=2"
report "blocks by their numbers" fresh c '"target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers", "alpha_pattern": {"q_proj": 7}' "1.self_attn.q_proj=2"
report "their alphas are exported" grep -qF '"alpha_pattern": {"q_proj": 7}' ranks-c/adapter_config.json
try() { train bad ", \"lora\": $1" --model base; refused "$2"; } # LORA WORDS
report "a text that is a name" try '{"target_modules": "q_proj"}' 'a text is a regular expression for whole names'
report "blocks beside a regular expression" try '{"target_modules": ".*q_proj", "layers_to_transform": [1]}' 'dsc.lora.layers_to_transform'
for value in '-1' '1.5' '["a"]' '{}' '[true]'; do
    report "no number of a block: $value" try "{\"target_modules\": [\"q_proj\"], \"layers_to_transform\": $value}" 'expected the number of a block'
done
for value in '[]' '{"a": "b"}' '{"a": {}}' '3'; do
    report "no patterns: $value" try "{\"rank_pattern\": $value}" 'expected an object of at most 64 regular expressions'
done
end_of_tests
