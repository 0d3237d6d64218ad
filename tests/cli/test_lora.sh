#!/usr/bin/env bash
# test_lora.sh - a run with adapters, from the config on: its checkpoint, and the PEFT folder and merged model of
# `dsc ckpt export`. Python checks the files alone, and runs continue from each. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export OMP_NUM_THREADS=1

run() { code=0; timeout 60 "$dsc" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
fails() { # fails WORDS: exit 2, nothing on stdout, one error line with the words
    [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q '^dsc: error: ' "$tmp/err" &&
        grep -qF -- "$1" "$tmp/err"
}
train() { # train BF16 MEMBERS ARGS...: of "dsc", each with a comma in front
    printf '{"train_micro_batch_size_per_gpu":2,"bf16":{"enabled":%s},"optimizer":{"type":"AdamW","params":{"lr":0.05}},
        "dsc":{"model":"gpt2-nano","seq_length":16,"shuffle":false%s}}\n' "$1" "$2" >"$tmp/c.json"
    shift 2
    code=0
    timeout 60 "$bin/train" --config "$tmp/c.json" --data "$tmp/text.txt" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
first_loss() { sed -n 's/^step 1\/.* loss \([0-9.]*\) .*/\1/p' "$tmp/err" "$tmp/out" | head -n 1; }
seq 1 2000 >"$tmp/text.txt"

lora=',"lora":{"r":3,"alpha":6,"target_modules":["attn.c_proj","c_fc"]}'
for bf16 in true false; do train $bf16 "$lora" --steps 3 --save "$tmp/$bf16"; done
report "a run with adapters saves" [ $code -eq 0 ]
run ckpt verify "$tmp/true/step-3"; report "a checkpoint like any other" [ $code -eq 0 ]
run ckpt export "$tmp/true/step-3" --out "$tmp/peft"
report "export says what it wrote" grep -q "/peft: adapters of " "$tmp/out"
for bf16 in true false; do run ckpt export "$tmp/$bf16/step-3" --out "$tmp/merged-$bf16" --merge --dtype fp32; done
report "and of the merged one" grep -q "/merged-false: weights of " "$tmp/out"
run ckpt export "$tmp/true/step-3" --out "$tmp/shards" --merge --shard-size 300KB

cat >"$tmp/check.py" <<'END'
import json, os, struct, sys
def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__")
    return {k: (v["dtype"], v["shape"], data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]]) for k, v in head.items()}
def numbers(tensor):
    dtype, _, data = tensor
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    return struct.unpack("<%df" % (len(data) // 4), data)
def adapters():
    folder, step = sys.argv[2:4]
    assert sorted(os.listdir(folder)) == ["adapter_config.json", "adapter_model.safetensors"]
    config, out = json.load(open(folder + "/adapter_config.json")), read(folder + "/adapter_model.safetensors")
    assert config["peft_type"] == "LORA" and config["r"] == 3 and config["lora_alpha"] == 6 and config["fan_in_fan_out"]
    assert sorted(config["target_modules"]) == ["attn.c_proj", "mlp.c_fc"] and config["base_model_name_or_path"] is None
    state = read(step + "/optimizer.safetensors")
    masters = {k: v for k, v in state.items() if k.startswith("master.")}
    assert {"base_model.model." + k[7:]: v for k, v in masters.items()} == out and len(out) == 16 # 4 blocks, 2 layers, A and B
    assert any(numbers(v)[0] != 0 for k, v in out.items() if "lora_B" in k)
def merged():
    folder, step = sys.argv[2:4]
    out, model, state = {}, read(step + "/model.safetensors"), read(step + "/optimizer.safetensors")
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            out.update(read(folder + "/" + name))
    assert set(out) == {k for k in model if ".lora_" not in k} and os.path.exists(folder + "/config.json")
    changed = 0
    for name, tensor in out.items():
        layer, want, got = name[:-7], numbers(model[name]), numbers(tensor)
        a = state.get("master." + layer + ".lora_A.weight", model.get(layer + ".lora_A.weight"))
        if a is None:
            assert got == want, name
            continue
        b = state.get("master." + layer + ".lora_B.weight", model.get(layer + ".lora_B.weight"))
        (ins, outs), a, b = tensor[1], numbers(a), numbers(b)
        for i in range(0, ins, 7): # s = 6 / 3; GPT-2's weights are [in,out]
            for o in range(0, outs, 5):
                x = want[i * outs + o] + 2 * sum(b[o * 3 + r] * a[r * ins + i] for r in range(3))
                assert abs(got[i * outs + o] - x) <= (abs(x) / 200 if tensor[0] == "BF16" else 1e-7), (name, i, o)
                changed += x != want[i * outs + o]
    assert changed > 1000
{"adapters": adapters, "merged": merged}[sys.argv[1]]()
END
if command -v python3 >/dev/null; then
    report "PEFT's folder: the masters under PEFT's names" python3 "$tmp/check.py" adapters "$tmp/peft" "$tmp/true/step-3"
    report "merged: weights plus s B A, of a bf16 run" python3 "$tmp/check.py" merged "$tmp/merged-true" "$tmp/true/step-3"
    report "of an fp32 run" python3 "$tmp/check.py" merged "$tmp/merged-false" "$tmp/false/step-3"
    report "in bf16 and in shards" python3 "$tmp/check.py" merged "$tmp/shards" "$tmp/true/step-3"
else
    skip "the exports' numbers" "no python3"
fi

# ---- going on ----
run ckpt export "$tmp/false/step-3" --out "$tmp/go-on"
train false ',"lora":{"adapter":"'"$tmp/go-on"'"}' --steps 1; with_adapter=$(first_loss)
train false "" --steps 1 --model "$tmp/merged-false"; of_merged=$(first_loss)
train false "" --steps 1; plain=$(first_loss)
close() { awk -v a="$with_adapter" -v b="$of_merged" -v c="$plain" 'BEGIN { d = a - b; e = a - c; exit !(a > 0 && d * d < 1e-10 && e * e > 1e-4) }'; }
echo "# loss with the adapter $with_adapter, merged $of_merged, without $plain"
report "the adapter on its base and the merged model have one loss" close
train false "$lora" --steps 4 --load "$tmp/false" --save "$tmp/false"
report "a resume" [ $code -eq 0 ]
train false "${lora/6/7}" --steps 4 --load "$tmp/false"
other_scale() { [ $code -eq 2 ] && grep -qF "its adapters have the scale 2, the run's have 2.33333" "$tmp/err"; }
report "not with another alpha" other_scale
train false "" --steps 4 --load "$tmp/false"; report "not without the adapters" [ $code -eq 2 ]
train false "" --steps 1 --model "$tmp/false/step-3"
says_merge() { [ $code -eq 2 ] && grep -qF -- "--merge" "$tmp/err"; }
report "a checkpoint with adapters is no plain model: the way is named" says_merge
train false "" --steps 1 --save "$tmp/plain"
run ckpt export "$tmp/plain" --out "$tmp/x" --merge; report "nothing to merge" fails "has no adapters"
report "and nothing made" [ ! -e "$tmp/x" ]
end_of_tests
