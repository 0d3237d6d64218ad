#!/usr/bin/env bash
# test_narrowing.sh - a weight that a narrower dtype does not hold is named before it becomes infinite: by export, by
# the first values of a run and by a resume. A run without one update does not end as success.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive

seq 1 900 | tr '\n' ' ' >text.txt
config() { # FILE PRECISION MODEL
    cat >"$1" <<END
{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, $2
 "dsc": {"model": "$3", "data": "$tmp/text.txt", "seq_length": 16, "threads": 1, "steps": 3}}
END
}
run() { # WANTED COMMAND...
    local wanted=$1
    shift
    timeout 60 "$@" >out 2>err </dev/null
    code=$?
    [ $code -eq "$wanted" ] || fail "ended with $code, not $wanted: $*"
}
# One value of a tensor in a file of fp32.
plant() { # FILE TENSOR ELEMENT VALUE
    python3 - "$@" <<'PY'
import json, struct, sys
path, name, element, value = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
data = bytearray(open(path, "rb").read())
size = struct.unpack("<Q", data[:8])[0]
at = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0] + 4 * element
data[at:at + 4] = struct.pack("<f", value)
open(path, "wb").write(data)
PY
}
named() { grep -q "\"transformer.h.1.mlp.c_proj.weight\" has the value 100000 at element 7, which is infinite in fp16" err; }

config base.json "" gpt2-nano
report "a model in fp32" run 0 "$bin/train" --config base.json --steps 1 --save base
report "its folder" run 0 "$dsc" ckpt export base --out model --dtype fp32
plant model/model.safetensors transformer.h.1.mlp.c_proj.weight 7 1e5

fp16='"fp16": {"enabled": true},'
bf16='"bf16": {"enabled": true},'
config fp32.json "" "$tmp/model"
config fp16.json "$fp16" "$tmp/model"
config bf16.json "$bf16" "$tmp/model"
report "a run in fp16 refuses a weight of 1e5" run 2 "$bin/train" --config fp16.json
report "and names it" named
report "ranks agree on that" run 2 "$bin/dsc-launch" --num_gpus=2 train --config fp16.json
report "and name it" named
for name in fp32 bf16; do
    report "a run in $name takes it" run 0 "$bin/train" --config $name.json --steps 1 --save $name
    report "export of it to fp16 is refused" run 2 "$dsc" ckpt export $name --out $name-fp16 --dtype fp16
    report "and names it" grep -q '"transformer.h.1.mlp.c_proj.weight" has the value [0-9.]* at element 7, which is infinite in fp16' err
    report "and leaves no folder" test ! -e $name-fp16 -a ! -e $name-fp16.tmp
    report "export to bf16 is not" run 0 "$dsc" ckpt export $name --out $name-bf16 --dtype bf16
    report "a resume in fp16 is refused" run 2 "$bin/train" --config fp16.json --load $name
    report "and names the master" grep -q 'mlp.c_proj.weight" has the value [0-9.]* at element 7, which is infinite in fp16' err
done

cp -r model near
plant near/model.safetensors transformer.h.1.mlp.c_proj.weight 7 60000
plant near/model.safetensors transformer.h.1.mlp.c_proj.bias 7 60000
config near.json "$fp16" "$tmp/near"
report "a run whose steps are all skipped fails" run 1 "$bin/train" --config near.json --save near-run
report "it says so" grep -q 'all 3 steps were skipped' err
report "and saves nothing at its end" test ! -e near-run/step-3
report "a run in bf16 with one update is a success" run 0 "$bin/train" --config bf16.json --steps 1 --save again
end_of_tests
