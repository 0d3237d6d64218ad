#!/usr/bin/env bash
# test_norm_group.sh - batch norms over four micro-batches have equal bits for each way to share these over ranks and steps: losses, weights
# and running statistics, for any stage, offload and recomputation. Values beside PyTorch's are in test_convnets.sh.
# SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more threads than cores here: spinning would only take the others' time
python3 - <<'PY' || exit 1
import random, struct
r, pixels = random.Random(3), bytearray()
labels = [n % 3 for n in range(29)]
for kind in labels:
    pixels += bytes(r.randrange(60) + (150 if x // 4 == kind else 0) for y in range(12) for x in range(12) for c in range(3))
open("d.pictures", "wb").write(b"DSCPIX01" + struct.pack("<q4i32x", len(labels), 12, 12, 3, 3) + struct.pack(f"<{len(labels)}i", *labels) + pixels)
PY

config() { # NAME GROUP STAGE RECOMPUTE STEPS REST: the rest is inside of "zero_optimization", from a comma on
    cat >"$1.json" <<EOF2
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "SGD", "params": {"lr": 0.003, "momentum": 0.9}}, "zero_optimization": {"stage": $3$6},
 "dsc": {"model": "mobilenet_v3_small", "data": "d.pictures", "eval_data": "d.pictures", "batch_norm": {"synchronized": $2},
         "steps": $5, "recompute": "$4", "threads": 1, "reproducible": "world_size"}}
EOF2
}
train() { # NAME RANKS ARGUMENTS...
    local name=$1 ranks=$2
    shift 2
    timeout 300 "$bin/dsc-launch" --num_gpus="$ranks" train --config "$name.json" --log "$name.log" "$@" >"$name.out" 2>&1 </dev/null ||
        { cp "$name.out" why; return 1; }
}
result() { # NAME: losses and norms, tensors, buffers and the count of an evaluation
    sed -E 's/.*("loss":[^,]*),.*("grad_norm":[^,]*),.*/\1 \2/' "$1.log"
    "$bin/dsc" ckpt hash "$1.save/step-3"
    sha256sum <"$1.save/step-3/buffers.safetensors"
    grep -oE 'accuracy [0-9.]+, [0-9]+ of [0-9]+ samples' "$1.out"
}
trains() { # NAME RANKS GROUP STAGE RECOMPUTE REST
    config "$1" "$3" "$4" "$5" 3 "$6"
    rm -rf "$1.save" "$1.log" "$1.result"
    train "$1" "$2" --save "$1.save" && result "$1" >"$1.result" 2>why
}
same() {
    trains "$@" && cmp -s reference.result "$1.result" && return
    [ -e "$1.result" ] && diff reference.result "$1.result" >why
    return 1
}
steps_of() { # NAME COUNT: batches that the statistics have seen
    python3 - "$1.save/step-3/buffers.safetensors" "$2" <<'PY'
import json, struct, sys
file = open(sys.argv[1], "rb").read()
size = struct.unpack("<q", file[:8])[0]
for name, of in json.loads(file[8:8 + size]).items():
    if name.endswith("num_batches_tracked"):
        at = 8 + size + of["data_offsets"][0]
        assert struct.unpack("<q", file[at:at + 8])[0] == int(sys.argv[2]), (name, file[at:at + 8])
PY
}
report "four micro-batches of one rank" trains reference 1 4 0 none ""
report "statistics are folded once for each group" steps_of reference 6
report "two of two ranks, stage 2" same run 2 4 2 none ""
report "one of four ranks, stage 3" same run 4 4 3 none ""
report "four of one rank, full recomputation, stage 1" same run 1 4 1 full ""
report "two of two ranks, full recomputation, stage 3" same run 2 4 3 full ""
report "two of two ranks, selective recomputation" same run 2 4 1 selective ""
report "one of four ranks, kept" same run 4 4 0 kept ""
report "parameters and optimizer in host memory" same run 2 4 3 none \
    ', "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'
report "the run's peak is within 1 % of the plan" grep -qE '^memory per rank: .*\((99\.[0-9]+|100\.00) %\)' run.out
resumes() { # two steps, then the third one on other ranks
    config run 4 1 none 2 ""
    rm -rf run.save run.log
    train run 1 --save run.save || return 1
    config run 4 2 none 3 ""
    train run 4 --save run.save --load auto || return 1
    result run >run.result 2>why
    tail -n 3 reference.result >wanted
    tail -n 3 run.result | cmp -s - wanted || { diff wanted run.result >why; return 1; }
}
report "a resume goes on with the same bits" resumes
cp reference.result four.result
apart() { # norms by single micro-batches are another training
    trains alone 1 0 0 none "" && ! cmp -s reference.result alone.result
}
report "without groups a run has other losses" apart
report "and its statistics are folded for each micro-batch" steps_of alone 24
refused() { # WORDS RANKS GROUP MODEL
    config bad "$3" 0 none 1 ""
    "$bin/dsc-launch" --num_gpus="$2" train --config bad.json --model "$4" >out 2>err </dev/null
    [ $? -eq 2 ] && grep -qF -- "$1" err || { cp err why; return 1; }
}
report "micro-batches that the ranks do not share equally" refused "give a multiple of 2" 2 5 mobilenet_v3_small
report "groups that a step does not have whole" refused "do not divide gradient_accumulation_steps" 1 3 mobilenet_v3_small
report "a model without batch norms" refused "has no batch norm" 1 4 basic_cnn
end_of_tests
