#!/usr/bin/env bash
# test_modules_to_save.sh - modules that are trained whole beside adapters, as in PEFT. The weights that a folder of PEFT
# has for them are used, trained, saved, exported and merged. A table that head and embedding share becomes two.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1 PYTHONPATH="$root/tests/cli" PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { skip "modules to save" "no python3"; end_of_tests; }
head -c 4000 "$root/README.md" >t.txt
cat >make.py <<'END'
import json, math, os, random, struct, sys
C, F, V = 32, 64, 256
HEAD, TABLE, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
from tensors import write, read
def make():
    random.seed(3)
    def some(shape, mean=0.0):
        return list(shape), [mean + random.gauss(0, .08) for _ in range(math.prod(shape))]
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V, "max_position_embeddings": 64, "hidden_size": C, "intermediate_size": F,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
    t = {TABLE: some((V, C))}
    for i in range(2):
        p = f"model.layers.{i}."
        for q, a, b in (("self_attn.q_proj", C, C), ("self_attn.k_proj", 16, C), ("self_attn.v_proj", 16, C), ("self_attn.o_proj", C, C), ("mlp.gate_proj", F, C), ("mlp.up_proj", F, C), ("mlp.down_proj", C, F)):
            t[p + q + ".weight"] = some((a, b))
        for n in ("input_layernorm", "post_attention_layernorm"): t[p + n + ".weight"] = some((C,), 1.0)
    t[NORM], t[HEAD] = some((C,), 1.0), some((V, C))
    write("base", "model.safetensors", llama, t)
    tied = {k: v for k, v in t.items() if k != HEAD}
    write("tied", "model.safetensors", dict(llama, tie_word_embeddings=True), tied)
    adapter, head, table = {}, some((V, C)), some((V, C))
    for i in range(2): # B is 0: the model is the base but for what was saved whole
        adapter[f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_A.weight"] = some((4, C))
        adapter[f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_B.weight"] = [C, 4], [0.0] * (4 * C)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", "fan_in_fan_out": False, "lora_dropout": 0.0}
    one, both = dict(config, modules_to_save=["lm_head"]), dict(config, modules_to_save=["embed_tokens", "lm_head", "score"])
    with_head = dict(adapter, **{"base_model.model." + HEAD: head})
    with_both = dict(with_head, **{"base_model.model." + TABLE: table})
    write("head", "adapter_model.safetensors", one, with_head)
    write("both", "adapter_model.safetensors", both, with_both)
    write("lost", "adapter_model.safetensors", both, with_head)
    write("beside", "adapter_model.safetensors", config, dict(adapter, **{"base_model.model." + NORM: some((C,))}))
    write("frozen", "adapter_model.safetensors", config, with_head)
    write("shape", "adapter_model.safetensors", one, dict(adapter, **{"base_model.model." + HEAD: some((V - 1, C))}))
    write("tying", "adapter_model.safetensors", dict(one, ensure_weight_tying=True), with_head)
    for name, base in (("base", t), ("tied", tied)):
        write(f"{name}-head", "model.safetensors", llama, dict(base, **{HEAD: head}))
        write(f"{name}-both", "model.safetensors", llama, dict(base, **{HEAD: head, TABLE: table}))
def merged(folder, want): # but for what is computed, W + s B A with B = 0, bytes are equal
    a, b = read(folder + "/model.safetensors"), read(want + "/model.safetensors")
    assert a == b, [k for k in set(a) | set(b) if a.get(k) != b.get(k)]
    assert json.load(open(folder + "/config.json"))["tie_word_embeddings"] is False
def exported(folder, names, changed):
    out, was = read(folder + "/adapter_model.safetensors"), read(changed + "/adapter_model.safetensors")
    saved = {k[len("base_model.model."):] for k in out if ".lora_" not in k}
    assert saved == set(names.split(",")), saved
    assert set(out) == set(was) and all(out[k][0] == was[k][0] for k in out)
    assert all(out[k] != was[k] for k in out if ".lora_" not in k)
    assert json.load(open(folder + "/adapter_config.json"))["modules_to_save"] == json.load(open(changed + "/adapter_config.json"))["modules_to_save"]
def trained(step, base, names): # what is not trained has the base's bytes
    now, was = read(step + "/model.safetensors"), read(base + "/model.safetensors")
    changed = {k for k in was if now[k] != was[k]}
    assert changed == set(names.split(",")), changed
globals()[sys.argv[1]](*sys.argv[2:])
END
python3 make.py make
train() { # NAME LR DSC FLAGS...
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": $2}}, \"dsc\": {\"data\": \"t.txt\", \"seq_length\": 16, \"steps\": 1, \"shuffle\": false, \"threads\": 1, \"tokenizer\": \"none\" $3}}" >c.json
    code=0
    timeout 60 "$bin/train" --config c.json --log "$1.log" "${@:4}" >out 2>err </dev/null || code=$?
    [ ! -e "$1.log" ] || grep -o '"loss":[0-9.]*' "$1.log" >"$1.loss"
}
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
same_loss() { [ -s "$1.loss" ] && cmp "$1.loss" "$2.loss"; }
for base in base tied; do
    for what in head both; do
        names=lm_head.weight; [ $what = head ] || names=$names,model.embed_tokens.weight
        train plain 0 "" --model $base-$what
        train with 0 ", \"lora\": {\"adapter\": \"$what\"}" --model $base --save run-$base-$what
        report "$base, $what: the loss of the model with these weights" same_loss plain with
        "$dsc" ckpt export run-$base-$what/step-1 --out merged-$base-$what --merge >out 2>err
        report "$base, $what: and its bytes when merged" python3 make.py merged merged-$base-$what $base-$what
        train go 0.01 ", \"lora\": {\"adapter\": \"$what\"}" --model $base --steps 2 --save go-$base-$what
        "$dsc" ckpt export go-$base-$what/step-2 --out peft-$base-$what >out 2>err
        report "$base, $what: exported are the trained modules, under PEFT's names" python3 make.py exported peft-$base-$what $names $what
        train three 0.01 ", \"lora\": {\"adapter\": \"$what\"}" --model $base --steps 3 --load go-$base-$what
        train again 0.01 ", \"lora\": {\"adapter\": \"peft-$base-$what\"}" --model $base --steps 1
        "$dsc" ckpt export go-$base-$what/step-2 --out whole-$base-$what --merge >out 2>err
        train whole 0 "" --model whole-$base-$what
        near() { python3 -c 'import sys; a, b = [float(open(f).read().split(":")[1].strip()) for f in sys.argv[1:]]; assert abs(a - b) < 1e-5' "$1.loss" "$2.loss"; }
        report "$base, $what: the exported adapter and the merged model have one loss" near again whole
    done
done
train plain 0 "" --model base-head
train with 0.01 ', "lora": {"adapter": "frozen"}' --model base --save run-frozen
report "a head without modules_to_save, as save_embedding_layers gives it: the loss of the model with it" same_loss plain with
"$dsc" ckpt export run-frozen/step-1 --out peft-frozen >out 2>err
report "it is exported again, as it was" python3 -c 'from tensors import read; k = "base_model.model.lm_head.weight"; assert read("peft-frozen/adapter_model.safetensors")[k] == read("frozen/adapter_model.safetensors")[k]'
report "a tied table that becomes two is told" grep -q 'head and embedding are one table in config.json' <(train x 0 ', "lora": {"adapter": "head"}' --model tied; cat out err)

# ---- from the config ----
train ours 0.01 ', "lora": {"r": 2, "modules_to_save": ["lm_head", "model.norm", "layers.1.mlp"], "target_modules": ["q_proj", "mlp.up_proj"]}' --model base --save ours --steps 2
changed=lm_head.weight,model.norm.weight,model.layers.1.mlp.gate_proj.weight,model.layers.1.mlp.up_proj.weight,model.layers.1.mlp.down_proj.weight
report "modules by the ends of their names are trained, and nothing else" python3 make.py trained ours/step-2 base $changed
report "a linear layer among them has no adapter" eval '! grep -q "layers.1.mlp.up_proj.lora_A" ours/step-2/model.safetensors && grep -q "layers.0.mlp.up_proj.lora_A" ours/step-2/model.safetensors'
train other 0.01 ', "lora": {"r": 2, "modules_to_save": ["lm_head"], "target_modules": ["q_proj", "mlp.up_proj"]}' --model base --load ours --steps 3
report "a resume with other modules is refused" refused "error: "
for stage in 0 1 2 3; do
    rm -rf "w$stage"; code=0
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": $stage}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"dsc\": {\"data\": \"t.txt\", \"seq_length\": 16, \"steps\": 3, \"threads\": 1, \"tokenizer\": \"none\", \"model\": \"tied\", \"save\": \"w$stage\", \"lora\": {\"adapter\": \"both\"}}}" >c.json
    timeout 60 "$bin/dsc-launch" --num_gpus=2 train --config c.json >out 2>err </dev/null || code=$?
    "$dsc" ckpt hash "w$stage/step-3" >"w$stage.hash" 2>>err
done
same_bits() { [ -s w0.hash ] && [ "$(cat w[0123].hash | sort -u | wc -l)" -eq 1 ]; }
report "the bits are those of stage 0 at every stage" same_bits

# ---- refused ----
try() { train bad 0 ", \"lora\": $1" --model "$2"; refused "$3"; } # LORA MODEL WORDS
report "a module that the model has not" try '{"modules_to_save": ["score"]}' base '"score" is the end of no module'
report "a part of a linear layer's name" try '{"modules_to_save": ["proj"]}' base "\"proj\" is a part of a linear layer's name"
report "a common table without a folder of weights" try '{"modules_to_save": ["lm_head"]}' gpt2-nano 'that needs a folder with weights'
report "names beside an adapter, which has them" try '{"adapter": "head", "modules_to_save": ["lm_head"]}' base dsc.lora.modules_to_save
report "a tensor that is missing" try '{"adapter": "lost"}' base '"base_model.model.model.embed_tokens.weight" is missing from the adapter, whose modules_to_save has its module'
report "a tensor of no module to save" try '{"adapter": "beside"}' base '"base_model.model.model.norm.weight" is not an adapter of a linear layer, or of modules_to_save'
report "a tensor of another shape" try '{"adapter": "shape"}' base 'is [255,32], config.json needs [256,32]'
report "tied copies" try '{"adapter": "tying"}' tied '"ensure_weight_tying" of this kind is not built'
for value in '"lm_head"' '[3]' '{}' '[""]'; do
    rm -rf odd; cp -r head odd; sed -i "s/\[\"lm_head\"\]/$value/" odd/adapter_config.json
    report "no list of names: $value" try '{"adapter": "odd"}' base '"modules_to_save": expected a list of names of modules'
done
end_of_tests
