#!/usr/bin/env bash
# test_ensemble.sh - an ensemble has equal losses, weights and running statistics for any stage, number of ranks, offload and recomputation;
# it resumes, evaluates and exports. Values beside PyTorch's are in test_convnets.sh. SPDX-License-Identifier: Apache-2.0
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

config() { # NAME STAGE RECOMPUTE STEPS REST: the rest is inside of "zero_optimization", from a comma on
    cat >"$1.json" <<EOF2
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "SGD", "params": {"lr": 0.003, "momentum": 0.9}}, "zero_optimization": {"stage": $2$5},
 "dsc": {"model": "ensemble", "ensemble": ["basic_cnn", "mobilenet_v3_small"], "data": "d.pictures", "eval_data": "d.pictures",
         "steps": $4, "recompute": "$3", "threads": 1, "reproducible": "world_size", "label_smoothing": 0.1,
         "images": {"mixup": 0.2}}}
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
trains() { # NAME RANKS STAGE RECOMPUTE REST
    config "$1" "$3" "$4" 3 "$5"
    rm -rf "$1.save" "$1.log"
    train "$1" "$2" --save "$1.save" && result "$1" >"$1.result" 2>why
}
same() {
    trains "$@" && cmp -s reference.result "$1.result" && return
    [ -e "$1.result" ] && diff reference.result "$1.result" >why
    return 1
}
report "the reference runs" trains reference 1 0 none ""
report "the evaluation counts all pictures" grep -q 'of 29 samples' reference.result
report "stage 1 on 2 ranks, kept" same run 2 1 kept ""
report "stage 2 on 4 ranks, full recomputation" same run 4 2 full ""
report "stage 3 on 2 ranks, selective recomputation" same run 2 3 selective ""
report "parameters and optimizer in host memory" same run 2 3 none \
    ', "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'
resumes() { # two steps, then the third one on other ranks
    config run 1 none 2 ""
    rm -rf run.save run.log
    train run 1 --save run.save || return 1
    config run 2 none 3 ""
    train run 2 --save run.save --load auto || return 1
    result run >run.result 2>why
    tail -n 3 reference.result >wanted
    tail -n 3 run.result | cmp -s - wanted || { diff wanted run.result >why; return 1; }
}
report "a resume goes on with the same bits" resumes
exports() {
    "$bin/dsc" ckpt export reference.save/step-3 --out model >out 2>why || return 1
    grep -q '"members"' model/config.json && grep -aq 'members.1.features.0.0.weight' model/model.safetensors &&
        grep -aq 'members.1.features.0.1.running_mean' model/model.safetensors || { cp model/config.json why; return 1; }
    "$bin/dsc" classify --model model d.pictures >out 2>why || return 1
    [ "$(grep -c '"label"' out)" -eq 29 ] || { head -c 600 out >why; return 1; }
    "$bin/train" --model model --data d.pictures --steps 1 --eval-data d.pictures >out 2>why </dev/null && grep -q '^step 1/1 ' out
}
report "the export has the members, and trains" exports
rows() { sed -nE 's/^ +(grads|moments|buffers|activations|leaf grads|scratch) +host .* ([0-9.]+)$/\1 \2/p'; }
plans() { # the plan before a run has the bytes of the run's own
    "$bin/dsc" plan --config reference.json >out 2>why && rows <out >planned && rows <reference.out >taken || return 1
    [ "$(wc -l <planned)" -eq 6 ] && diff planned taken >why
}
report "dsc plan" plans
report "the run's peak is within 1 % of it" grep -qE '^memory per rank: .*\((99\.[0-9]+|100\.00) %\)' reference.out
refused() { # WORDS ARGUMENTS...
    local words=$1
    shift
    "$bin/train" "$@" --data d.pictures --steps 1 >out 2>err </dev/null
    [ $? -eq 2 ] && grep -qF -- "$words" err || { cp err why; return 1; }
}
config reference 0 none 1 ""
report "members are for the ensemble" refused "dsc.ensemble" --config reference.json --model resnet18
sed 's/"basic_cnn", /"vit_b_16", /' reference.json >other.json
report "a member that is not built" refused '"vit_b_16" cannot be a member' --config other.json
other_classes() {
    sed 's/"dsc": {/"dsc": {"image_classes": 9, /; s/"ensemble": \[[^]]*\],\? *//' reference.json >classes.json
    refused "is not built for a folder of an ensemble" --config classes.json --model model
}
report "a new classifier for a folder of an ensemble is refused" other_classes
end_of_tests
