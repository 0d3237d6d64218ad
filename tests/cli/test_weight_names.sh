#!/usr/bin/env bash
# test_weight_names.sh - weights whose names are not the model's: wrappers, other prefixes, another family, a missing head
# and half an adapter. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1 PYTHONPATH="$root/tests/cli" PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { skip "names of weights" "no python3"; end_of_tests; }
head -c 4000 "$root/README.md" >t.txt
echo '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "dsc": {"data": "t.txt", "seq_length": 16, "steps": 1, "threads": 1, "tokenizer": "none"}}' >c.json
cat >make.py <<'END'
import json, os, random
random.seed(3)
from tensors import write
def some(shape, mean=0.0):
    n = 1
    for s in shape: n *= s
    return list(shape), [mean + random.gauss(0, .08) for _ in range(n)]
C, F, V = 32, 64, 256
llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V, "max_position_embeddings": 64, "hidden_size": C, "intermediate_size": F,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
t = {"model.embed_tokens.weight": some((V, C))}
for i in range(2):
    p = f"model.layers.{i}."
    for q, a, b in (("self_attn.q_proj", C, C), ("self_attn.k_proj", 16, C), ("self_attn.v_proj", 16, C), ("self_attn.o_proj", C, C), ("mlp.gate_proj", F, C), ("mlp.up_proj", F, C), ("mlp.down_proj", C, F)):
        t[p + q + ".weight"] = some((a, b))
    for n in ("input_layernorm", "post_attention_layernorm"): t[p + n + ".weight"] = some((C,), 1.0)
t["model.norm.weight"], t["lm_head.weight"] = some((C,), 1.0), some((V, C))
def variant(folder, change): write(folder, "model.safetensors", llama, dict(change(k, v) for k, v in t.items() if change(k, v)))
variant("good", lambda k, v: (k, v))
variant("orig", lambda k, v: ("_orig_mod." + k, v))
variant("ddp", lambda k, v: ("module." + k, v))
variant("both", lambda k, v: ("module._orig_mod." + k, v))
variant("fsdp", lambda k, v: (k.replace("layers.0.", "layers.0._fsdp_wrapped_module."), v))
variant("ckpt", lambda k, v: (k.replace("layers.1.mlp", "layers.1._checkpoint_wrapped_module.mlp"), v))
variant("extra", lambda k, v: (k.replace("lm_head", "module.lm_head"), v))
variant("backbone", lambda k, v: ("backbone." + k, v))
variant("nohead", lambda k, v: (k, v) if k != "lm_head.weight" else None)
variant("base", lambda k, v: (k[6:], v) if k != "lm_head.weight" else None)
variant("gone", lambda k, v: (k, v) if "layers.1.mlp.up" not in k else None)
write("family", "model.safetensors", dict(llama, model_type="llama"), {"wte.weight": some((V, C)), "h.0.ln_1.weight": some((C,))})
bert = {"model_type": "bert", "vocab_size": V, "hidden_size": C, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": F, "max_position_embeddings": 64,
        "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
b = {"embeddings.word_embeddings.weight": some((V, C)), "embeddings.position_embeddings.weight": some((64, C)), "embeddings.token_type_embeddings.weight": some((2, C))}
def linear(name, out, inside): b[name + ".weight"], b[name + ".bias"] = some((out, inside)), some((out,))
def norm(name): b[name + ".weight"], b[name + ".bias"] = some((C,), 1.0), some((C,))
norm("embeddings.LayerNorm")
p = "encoder.layer.0."
for n in ("query", "key", "value"): linear(p + "attention.self." + n, C, C)
linear(p + "attention.output.dense", C, C); norm(p + "attention.output.LayerNorm")
linear(p + "intermediate.dense", F, C); linear(p + "output.dense", C, F); norm(p + "output.LayerNorm")
write("bert", "model.safetensors", bert, b)
def adapter(folder, change):
    a = {}
    for i in range(2):
        for q, o in (("q_proj", C), ("v_proj", 16)):
            n = f"base_model.model.model.layers.{i}.self_attn.{q}."
            a[n + "lora_A.weight"], a[n + "lora_B.weight"] = some((4, C)), some((o, 4))
    write(folder, "adapter_model.safetensors", {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none", "fan_in_fan_out": False},
          dict(change(k, v) for k, v in a.items() if change(k, v)))
adapter("whole", lambda k, v: (k, v))
adapter("no_a", lambda k, v: (k, v) if k != "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" else None)
adapter("no_b", lambda k, v: (k, v) if k != "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight" else None)
adapter("compiled", lambda k, v: (k.replace("layers.0.", "_orig_mod.layers.0."), v))
END
python3 make.py
train() { code=0; timeout 60 "$bin/train" --config c.json "$@" >out 2>err </dev/null || code=$?; }
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
adapted() { sed "s/\"seq_length\"/\"lora\": {\"adapter\": \"$1\"}, \"seq_length\"/" c.json >a.json; code=0; timeout 60 "$bin/train" --config a.json --model good >out 2>err </dev/null || code=$?; }

train --model good
report "the model's own names" [ $code -eq 0 ]
for each in orig:_orig_mod ddp:module both:module fsdp:_fsdp_wrapped_module ckpt:_checkpoint_wrapped_module extra:module; do
    train --model "${each%:*}"
    report "${each%:*}: the wrapper is named, with the command that takes it off" eval \
        'refused "\"${each#*:}.\" in its name" && grep -qF "k.replace('"'"'${each#*:}.'"'"', " err'
done
train --model backbone
report "another prefix" eval 'refused "names have \"backbone.model.\" before" || refused "names have \"backbone.\" before"'
train --model gone
report "one tensor is missing" refused 'tensor "model.layers.1.mlp.up_proj.weight" is missing from its weights'
train --model family
report "weights of another family" eval 'refused "and so are all others of a llama" && grep -qF "h.0.ln_1.weight" err'
for model in nohead base; do
    train --model $model
    report "$model: a missing head gets fresh values, and a warning names it" eval \
        '[ $code -eq 0 ] && grep -qF "warning: " err && grep -qF "\"lm_head.weight\" is in no file and begins with fresh values" err && grep -qF "tie_word_embeddings" err'
    train --model $model --strict
    report "$model with --strict: refused" eval 'refused "lm_head.weight" && grep -qF "tie_word_embeddings\": true" err'
done
code=0; timeout 60 "$dsc" generate --model nohead --prompt abc --max-new-tokens 4 >out 2>err </dev/null || code=$?
report "generation without a head is refused" refused "lm_head.weight"
sed 's/"steps": 1/"mlm": {"mask_token": 255}, "steps": 1/' c.json >m.json
code=0; timeout 60 "$bin/train" --config m.json --model bert >out 2>err </dev/null || code=$?
report "BERT without its head for masked tokens: each parameter is named" eval \
    '[ $code -eq 0 ] && grep -qF "cls.predictions.transform.dense.weight" err && grep -qF "cls.predictions.bias" err && ! grep -qF "\"bert.encoder" err'
adapted whole
report "an adapter" [ $code -eq 0 ]
adapted no_a
report "an adapter without a lora_A" refused 'layers.0.self_attn.q_proj.lora_A.weight" is missing'
adapted no_b
report "an adapter without a lora_B" refused 'layers.1.self_attn.v_proj.lora_B.weight" is missing'
adapted compiled
report "an adapter of a compiled model" refused '"_orig_mod." in its name'
end_of_tests
