#!/usr/bin/env bash
# test_grow_vocab.sh - a tokenizer with more tokens than the model has rows. Without dsc.grow_vocab such a token ends the
# run; with it the tables grow, and their new rows begin as the mean of the others. Checkpoints and exports have the new
# size, and adapters bring the grown tables along, as PEFT's do. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1 PYTHONPATH="$root/tests/cli" PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { skip "added tokens" "no python3"; end_of_tests; }
cat >make.py <<'END'
import json, math, random, sys
from tensors import write, read, read_numbers
C, F, V, ADDED = 32, 64, 256, ["<|user|>", "<|assistant|>", "<|endoftext|>"]
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
def tokenizer(folder, added):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, more = {b: chr(b) for b in printable}, 0
    for b in range(256):
        if b not in chars:
            chars[b] = chr(256 + more)
            more += 1
    json.dump({"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
               "added_tokens": [{"id": V + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, t in enumerate(added)],
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
               "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
               "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                         "byte_fallback": False, "vocab": {chars[b]: b for b in range(256)}, "merges": []}}, open(folder + "/tokenizer.json", "w"))
def make():
    random.seed(5)
    def some(shape, mean=0.0):
        return list(shape), [mean + random.gauss(0, .08) for _ in range(math.prod(shape))]
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V, "max_position_embeddings": 64, "hidden_size": C, "intermediate_size": F,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
    t = {TABLE: some((V, C), .03)}
    for i in range(2):
        p = f"model.layers.{i}."
        for q, a, b in (("self_attn.q_proj", C, C), ("self_attn.k_proj", 16, C), ("self_attn.v_proj", 16, C), ("self_attn.o_proj", C, C), ("mlp.gate_proj", F, C), ("mlp.up_proj", F, C), ("mlp.down_proj", C, F)):
            t[p + q + ".weight"] = some((a, b))
        for n in ("input_layernorm", "post_attention_layernorm"): t[p + n + ".weight"] = some((C,), 1.0)
    t["model.norm.weight"], t[HEAD] = some((C,), 1.0), some((V, C), -.02)
    write("base", "model.safetensors", llama, t)
    write("tied", "model.safetensors", dict(llama, tie_word_embeddings=True), {k: v for k, v in t.items() if k != HEAD})
    for folder in ("base", "tied"):
        tokenizer(folder, ADDED)
    write("enough", "model.safetensors", dict(llama, vocab_size=300), dict(t, **{TABLE: some((300, C)), HEAD: some((300, C))}))
    tokenizer("enough", ADDED)
    text = "".join(f"{ADDED[i % 2]}{' '.join(str(random.randrange(99)) for _ in range(5))}{ADDED[2]}" for i in range(400))
    open("chat.txt", "w").write(text)
def grown(step, base, rows, tokens): # before training: old rows as they were, new ones their mean, padding 0
    now, was = read_numbers(step + "/model.safetensors"), read_numbers(base + "/model.safetensors")
    rows, tokens = int(rows), int(tokens)
    assert json.load(open(step + "/config.json"))["vocab_size"] == rows
    assert set(now) == set(was)
    for name, (shape, values) in was.items():
        got_shape, got = now[name]
        if name not in (HEAD, TABLE):
            assert (got_shape, got) == (shape, values), name
            continue
        assert got_shape == [rows, C] and got[:V * C] == values, name
        for r in range(V, rows):
            for c in range(C):
                mean = math.fsum(values[c::C]) / V if r < tokens else 0.0
                assert abs(got[r * C + c] - mean) <= abs(mean) * 2 ** -23, (name, r, c, got[r * C + c], mean)
def adapter(folder, names, rows): # tables beside what is trained, under PEFT's names
    out, config = read(folder + "/adapter_model.safetensors"), json.load(open(folder + "/adapter_config.json"))
    tables = {k[len("base_model.model."):]: v[0] for k, v in out.items() if ".lora_" not in k}
    assert tables == {n: [int(rows), C] for n in names.split(",")}, tables
    assert "save_embedding_layers" not in config and config["r"] == 4, config
def fewer(folder, rows): # PEFT's folder with tables of another height
    out = read_numbers(folder + "/adapter_model.safetensors")
    out = {k: ([int(rows), C], v[:int(rows) * C]) if ".lora_" not in k else (s, v) for k, (s, v) in out.items()}
    write("fewer", "adapter_model.safetensors", json.load(open(folder + "/adapter_config.json")), out)
globals()[sys.argv[1]](*sys.argv[2:])
END
python3 make.py make
train() { # NAME RANKS MODEL LR DSC FLAGS...
    printf '{"train_batch_size":4,"optimizer":{"type":"AdamW","params":{"lr":%s}},"dsc":{"model":"%s","data":"chat.txt","seq_length":16,"steps":1,"shuffle":false%s}}\n' "$4" "$3" "$5" >"$1.json"
    code=0; rm -f "$1.log"
    timeout 60 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --log "$1.log" "${@:6}" >"$1.out" 2>"$1.err" </dev/null || code=$?
}
loss() { sed -n '1s/.*"loss":\([0-9.]*\),.*/\1/p' "$1.log"; }
near() { awk -v a="$(loss "$1")" -v b="$(loss "$2")" 'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d * d < 1e-11) }'; }
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' "$1.err")" -eq 1 ] && grep '^dsc: error: ' "$1.err" | grep -qF -- "$2"; }
grow=',"grow_vocab":true'

# ---- without the key ----
train none 1 base 0 ""
report "a token without a row ends the run, and the line names the key" refused none "add rows with dsc.grow_vocab"
report "a warning before it has the tokens and the key" grep -q 'the tokenizer has 259 tokens and the model 256 rows.*<|user|>.*dsc.grow_vocab adds rows' none.err

# ---- the rows ----
for base in base tied; do
    train "$base-grown" 1 $base 0 "$grow" --save "$base-grown"
    report "$base: new rows are the mean of the others, and config.json has their number" python3 make.py grown "$base-grown/step-1" $base 259 259
    report "$base: a warning has the number of added rows" grep -q 'grows from 256 to 259 rows: 3 were added, which begin as the mean' "$base-grown.err"
    train "$base-padded" 1 $base 0 "$grow,\"vocab_multiple\":64" --save "$base-padded"
    report "$base: rows up to a multiple are 0" python3 make.py grown "$base-padded/step-1" $base 320 259
    report "$base: and do not change the loss" near "$base-grown" "$base-padded"
    train "$base-again" 1 "$base-grown/step-1" 0 ""
    report "$base: the saved model opens as it is" near "$base-again" "$base-grown"
    "$dsc" ckpt export "$base-grown/step-1" --out "$base-export" >out 2>err
    report "$base: so does its export" python3 make.py grown "$base-export" $base 259 259
done
train enough 1 enough 0.01 "$grow" --save enough-grown
train plain 1 enough 0.01 "" --save enough-plain
hashes() { "$dsc" ckpt hash "$1/step-$2" 2>>hash.err; }
same() { [ -n "$(hashes "$1" "$3")" ] && [ "$(hashes "$1" "$3")" = "$(hashes "$2" "$3")" ]; }
report "a model with enough rows stays as it is" same enough-grown enough-plain 1
for stage in 0 1 2 3; do
    printf '{"train_batch_size":4,"optimizer":{"type":"AdamW","params":{"lr":0.01}},"zero_optimization":{"stage":%s},"dsc":{"model":"tied","data":"chat.txt","seq_length":16,"steps":3,"save":"w%s"%s}}\n' $stage $stage "$grow" >w.json
    timeout 60 "$bin/dsc-launch" --num_gpus=2 train --config w.json >out 2>err </dev/null
    [ $stage -eq 0 ] || report "stage $stage has the bits of stage 0" same "w$stage" w0 3
done

# ---- adapters ----
lora=',"lora":{"r":4,"target_modules":["q_proj","v_proj"]}'
for base in base tied; do
    names=model.embed_tokens.weight; [ $base = tied ] || names=lm_head.weight,$names
    train "$base-lora" 1 $base 0.05 "$grow$lora" --steps 3 --save "$base-lora"
    report "$base: adapters beside grown tables are saved" [ $code -eq 0 ]
    "$dsc" ckpt export "$base-lora/step-3" --out "$base-peft" >out 2>err
    report "$base: the exported adapter has the grown tables" python3 make.py adapter "$base-peft" $names 259
    train "$base-from" 1 $base 0 ",\"lora\":{\"adapter\":\"$base-peft\"}" --save "$base-from"
    "$dsc" ckpt export "$base-lora/step-3" --out "$base-merged" --merge --dtype fp32 >out 2>err
    train "$base-merged" 1 "$base-merged" 0 ""
    report "$base: the base grows as the adapter's tables, with the loss of the merged model" near "$base-from" "$base-merged"
    report "$base: which is said" grep -q '3 were added, which the adapter.s file has' "$base-from.err"
    "$dsc" ckpt export "$base-from/step-1" --out "$base-twice" >out 2>err
    report "$base: what is exported of it has the tables again" python3 make.py adapter "$base-twice" $names 259
    train "$base-on" 1 $base 0.05 "$grow$lora" --steps 4 --load "$base-lora"
    report "$base: a resume" [ $code -eq 0 ]
done
train saved 1 base 0.05 "$grow${lora%\}},\"modules_to_save\":[\"embed_tokens\",\"lm_head\"]}" --steps 3 --save saved
"$dsc" ckpt export saved/step-3 --out saved-peft >out 2>err
report "trained tables are among modules_to_save" python3 make.py adapter saved-peft lm_head.weight,model.embed_tokens.weight 259
train saved-from 1 base 0 ',"lora":{"adapter":"saved-peft"}'
"$dsc" ckpt export saved/step-3 --out saved-merged --merge --dtype fp32 >out 2>err
train saved-merged 1 saved-merged 0 ""
report "and go on with the loss of the merged model" near saved-from saved-merged

# ---- refused ----
python3 make.py fewer base-peft 255
train fewer 1 base 0 ',"lora":{"adapter":"fewer"}'
report "an adapter's table with fewer rows than the base" refused fewer 'is [255,32], config.json needs [256,32]'
train nowhere 1 gpt2-nano 0 "$grow"
report "no tokenizer to count" refused nowhere "there is no tokenizer whose tokens could be counted"
end_of_tests
