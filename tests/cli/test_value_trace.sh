#!/usr/bin/env bash
# test_value_trace.sh - DSC_TRACE_VALUES: a line for each value of a module, the first value that is not finite by name, and the
# same training with and without it. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1
for i in $(seq 300); do echo "line $i of a text that is long enough"; done >text.txt
config() { # MODEL
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, \"gradient_clipping\": 1.0,
           \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},
           \"dsc\": {\"model\": \"$1\", \"data\": \"text.txt\", \"seq_length\": 16, \"threads\": 1, \"steps\": 2}}" >config.json
}
train() { # NAME FLAGS...
    code=0
    timeout 60 "$bin/dsc-launch" --num_gpus "${ranks:-1}" train --config config.json --log "$1.jsonl" "${@:2}" >out 2>err </dev/null || code=$?
}
losses() { grep -o '"loss":[0-9.]*' "$1.jsonl"; }
refused() { [ $code -ne 0 ] && grep -qF -- "$1" err; }
first_bad() { grep -ho 'values: .*' out err | grep -v 'not finite 0$' | head -n 1; }

config gpt2-nano
train plain --save plain.save
report "without the variable no value is shown" [ $code -eq 0 -a "$(grep -c 'values: ' out)" = 0 ]
DSC_TRACE_VALUES=1 train traced --save traced.save
report "a traced run ends as one without" [ $code -eq 0 ]
report "and has the same losses" [ "$(losses plain)" = "$(losses traced)" ]
hash_of() { "$dsc" ckpt hash "$1.save/step-2"; }
hash_of plain >hash
report "and the same checkpoint" eval '[ -s hash ] && hash_of traced | cmp -s - hash'
shows() { # TEXT...: each is in a line of the trace
    local text
    for text; do grep -F 'values: rank 0, step 2, micro-step 2, ' out | grep -qF -- "$text" || fail "no line: $text" || return 1; done
}
report "values of forward and backward have their names" shows "embedding forward: embed.0 [16,128]: norm " "h.0 forward: ln_1.1 [16,128]: norm " \
    "h.0 forward: mlp.c_fc.13 [16,512]: norm " "head forward: losses [1,16]: norm " "h.3 backward: gradient of mlp.c_fc." \
    "h.0 backward: gradient of transformer.h.0.mlp.c_fc.weight [1,65536]: norm "
report "no value is reported as not finite" [ -z "$(first_bad)" ]
DSC_TRACE_VALUES='h.[12],head' train some
report "names and patterns restrict the modules" [ "$(grep -o 'micro-step 1, [a-z0-9.]* forward' out | sort -u | tr '\n' ' ')" = \
    "micro-step 1, h.1 forward micro-step 1, h.2 forward micro-step 1, head forward " ]
DSC_TRACE_VALUES=h.3,h.9 train none
report "a name that fits no module is refused" refused 'DSC_TRACE_VALUES: "h.9" fits no module of the model'

# A weight that is finite itself and whose products are not: in one block of two.
mkdir base
echo '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 32}' >base/config.json
python3 - <<'PY'
import json, struct
def shapes():
    c = 16
    yield "transformer.wte.weight", (700, c)
    yield "transformer.wpe.weight", (32, c)
    for i in (0, 1):
        for name, shape in (("ln_1.weight", (c,)), ("ln_1.bias", (c,)), ("attn.c_attn.weight", (c, 3 * c)), ("attn.c_attn.bias", (3 * c,)),
                            ("attn.c_proj.weight", (c, c)), ("attn.c_proj.bias", (c,)), ("ln_2.weight", (c,)), ("ln_2.bias", (c,)),
                            ("mlp.c_fc.weight", (c, 4 * c)), ("mlp.c_fc.bias", (4 * c,)), ("mlp.c_proj.weight", (4 * c, c)), ("mlp.c_proj.bias", (c,))):
            yield f"transformer.h.{i}.{name}", shape
    yield "transformer.ln_f.weight", (c,)
    yield "transformer.ln_f.bias", (c,)
header, data = {}, b""
for name, shape in shapes():
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    huge = name == "transformer.h.1.mlp.c_fc.weight"
    values = [3e38 if huge else 0.01 * (i * 37 % 41 - 20) for i in range(count)]
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + 4 * count]}
    data += struct.pack(f"<{count}f", *values)
text = json.dumps(header).encode()
with open("base/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
PY
config base
DSC_TRACE_VALUES=1 train huge
report "the first value that is not finite is the one of the weight" \
    [ "$(first_bad | sed 's/:* norm.*//')" = "values: rank 0, step 1, micro-step 1, h.1 forward: mlp.c_fc.13 [16,64]" ]
ranks=2 DSC_TRACE_VALUES=h.1 train huge2
report "the other rank reports its own, as a warning" grep -q 'warning: values: rank 1, step 1, micro-step 1, h.1 forward: mlp.c_fc.13 .*not finite [1-9]' err
report "and nothing else" [ "$(grep -c 'values: rank 1.*not finite 0$' out err | cut -d: -f2 | tr '\n' ' ')" = "0 0 " ]
end_of_tests
