#!/usr/bin/env bash
# test_dora.sh - adapters with magnitudes (DoRA). Training begins as the model without them, and the bits are the same at
# every stage, placement and level of recomputation, for one rank and several, and after a resume. The exported adapter
# and the merged model have the loss of the run. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1
seq 1 4000 >text.txt

train() { # NAME RANKS MEMBERS LORA DSC FLAGS...: a log NAME.log; LORA and DSC with a comma in front
    printf '{"train_batch_size":6,"optimizer":{"type":"AdamW","params":{"lr":0.02}}%s,
        "dsc":{"model":"gpt2-nano","data":"text.txt","seq_length":16,"shuffle":false%s%s}}\n' "$3" "$4" "$5" >"$1.json"
    code=0
    timeout 120 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --log "$1.log" "${@:6}" >"$1.out" 2>"$1.err" </dev/null || code=$?
}
loss() { sed -n "$2s/.*\"loss\":\([0-9.]*\),.*/\1/p" "$1.log"; }
lora=',"lora":{"r":3,"alpha":6,"use_dora":true,"target_modules":["attn.c_proj","c_fc","c_attn"]}'
micro='"train_micro_batch_size_per_gpu"'

# ---- the beginning ----
# A magnitude begins as its norm, so that factors are 1. In bf16 a product that is scaled before its bias rounds once
# more; with dropout the scaled part is 0.
lora_alone=${lora/\"use_dora\":true,/} drop=${lora/\"r\"/\"dropout\":0.2,\"r\"}
train base 1 ",$micro:6" "" "" --steps 1 --save base
begins() { [ -n "$(loss "$1" 1)" ] && [ "$(loss "$1" 1)" = "$(loss "$2" 1)" ]; }
for bf16 in true false; do
    for adapters in "$lora" "$drop"; do
        train with 1 ",\"bf16\":{\"enabled\":$bf16},$micro:6" "$adapters" "" --steps 1 --model base/step-1
        train alone 1 ",\"bf16\":{\"enabled\":$bf16},$micro:6" "${adapters/\"use_dora\":true,/}" "" --steps 1 --model base/step-1
        close() { awk -v a="$(loss with 1)" -v b="$(loss alone 1)" 'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-6) }'; }
        if [ "$bf16$adapters" = "true$lora" ]; then
            report "bf16: the first loss is that of LoRA within a rounding" close
        else
            report "bf16 $bf16, dropout $([ "$adapters" = "$drop" ] && echo 0.2 || echo 0): the first loss is that of LoRA in all digits" begins with alone
        fi
    done
done

# ---- fresh weights ----
cat >norms.py <<'END'
import math
from tensors import read_numbers
model, compared = read_numbers("fresh/step-1/model.safetensors"), 0
for name, (shape, values) in model.items():
    if not name.endswith(".lora_magnitude_vector"):
        continue
    (ins, outs), weight = model[name[:-22] + ".weight"] # GPT-2's are [in,out]
    for out in range(outs):
        norm = math.sqrt(sum(weight[i * outs + out] ** 2 for i in range(ins)))
        assert abs(values[out] - norm) <= 1e-6 * norm, (name, out, values[out], norm)
        compared += 1
assert compared > 1000
END
train fresh 2 ",$micro:3,\"zero_optimization\":{\"stage\":3},\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_max_lr\":0}}" "$lora" "" --steps 1 --save fresh
if command -v python3 >/dev/null; then
    report "magnitudes of fresh weights begin as norms" env PYTHONPATH="$root/tests/cli" PYTHONDONTWRITEBYTECODE=1 python3 norms.py
else
    skip "magnitudes of fresh weights" "no python3"
fi

# ---- the same bits ----
hashes() { "$dsc" ckpt hash "$1/step-4" 2>"$1.hash-err"; }
same() { [ -n "$(hashes "$1")" ] && [ "$(hashes "$1")" = "$(hashes "$2")" ]; }
for adapters in "$lora" "$drop"; do
    name=$([ "$adapters" = "$lora" ] && echo plain || echo dropout)
    train "$name" 2 ",$micro:3" "$adapters" "" --steps 4 --save "$name"
    report "$name: a run with magnitudes saves" [ $code -eq 0 ]
    for stage in 1 2 3; do
        train "$name-$stage" 2 ",$micro:3,\"zero_optimization\":{\"stage\":$stage}" "$adapters" "" --steps 4 --save "$name-$stage"
        report "$name: stage $stage has the bits of stage 0" same "$name-$stage" "$name"
    done
    cpu='"offload_optimizer":{"device":"cpu"},"offload_param":{"device":"cpu"}'
    nvme='"offload_optimizer":{"device":"nvme","nvme_path":"'$tmp'"},"offload_param":{"device":"nvme","nvme_path":"'$tmp'"}'
    for place in cpu nvme; do
        train "$name-$place" 2 ",$micro:3,\"zero_optimization\":{\"stage\":3,${!place}}" "$adapters" "" --steps 4 --save "$name-$place"
        report "$name: so has stage 3 with all states on $place" same "$name-$place" "$name"
    done
    for level in full selective none kept; do
        train "$name-$level" 2 ",$micro:3" "$adapters" ",\"recompute\":\"$level\"" --steps 4 --save "$name-$level"
        report "$name: and \"recompute\": \"$level\"" same "$name-$level" "$name"
    done
done
for ranks in 1 2 3; do
    train "world-$ranks" "$ranks" ",$micro:1" "$drop" ',"reproducible":"world_size"' --steps 4 --save "world-$ranks"
done
report "two ranks have the bits of one, with world_size" same world-2 world-1
report "and three" same world-3 world-1

# ---- a resume ----
train half 2 ",$micro:3" "$lora" "" --steps 2 --save half
train again 3 ",$micro:2,\"zero_optimization\":{\"stage\":3}" "$lora" "" --steps 4 --load half --save again
report "a resume on other ranks" [ $code -eq 0 ]
train rest 2 ",$micro:3" "$lora" "" --steps 4 --load half --save rest
report "a resume has the bits of a run in one piece" same rest plain
train other 2 ",$micro:3" "$lora_alone" "" --steps 4 --load half
refused() { [ "$code" -eq 2 ] && grep -qF "$1" "$2"; }
report "a resume without magnitudes is refused" refused "88 tensors; the model has 76" other.err

# ---- exports ----
"$dsc" ckpt export plain/step-4 --out peft >out 2>err
report "the adapter has a magnitude for each layer, under PEFT's name" grep -q 'base_model.model.transformer.h.0.attn.c_attn.lora_magnitude_vector"' peft/adapter_model.safetensors
report "its config says so" grep -q '"use_dora": true' peft/adapter_config.json
"$dsc" ckpt export plain/step-4 --out merged --merge --dtype fp32 >out 2>err
train go 1 ",$micro:6" ',"lora":{"adapter":"peft"}' "" --steps 1
train merged 1 ",$micro:6" "" "" --steps 1 --model merged
train without 1 ",$micro:6" "" "" --steps 1
near() { awk -v a="$(loss go 1)" -v b="$(loss merged 1)" -v c="$(loss without 1)" 'BEGIN { d = a - b; e = a - c; exit !(a > 0 && d * d < 1e-10 && e * e > 1e-4) }'; }
echo "# losses: adapter $(loss go 1), merged $(loss merged 1), without $(loss without 1)"
report "the adapter on its base and the merged model have one loss" near
train both 1 ",$micro:6" ',"lora":{"adapter":"peft","use_dora":true}' "" --steps 1
report "use_dora beside an adapter, which has it, is refused" refused "dsc.lora.use_dora" both.err
end_of_tests
