#!/usr/bin/env bash
# test_ema.sh - moving averages of weights: the same bits for any stage, number of ranks and offload, and after a resumption. Evaluations
# and exports use them, and training is the same without them. SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
. "$root/tests/cli/vision.sh"
# config NAME STAGE BF16 OWN REST: OWN is inside of "dsc", the rest inside of "zero_optimization", both from a comma on
config() {
    cat >"$1.json" <<EOF2
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": $3},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
 "zero_optimization": {"stage": $2$5},
 "dsc": {"model": "$tmp/vit", "data": "$tmp/train.pictures", "eval_data": "$tmp/eval.pictures", "steps": 12, "eval_every": 5,
         "threads": 1, "reproducible": "world_size"$4}}
EOF2
}
ema=', "ema": {"decay": 0.9}'
runs() { # NAME RANKS FLAGS...
    local name=$1 ranks=$2
    shift 2
    timeout 60 "$bin/dsc-launch" --num_gpus="$ranks" train --config "$name.json" --save "$name.save" --log "$name.log" "$@" >"$name.out" 2>&1 \
        </dev/null || { cp "$name.out" why; return 1; }
    grep -ohE '"(loss|eval_loss)":[^,]*' "$name.log" >"$name.result"
    "$bin/dsc" ckpt hash "$name.save/step-12" >>"$name.result"
}
trains() { # NAME RANKS STAGE BF16 OWN REST
    config "$1" "$3" "$4" "$5" "$6"
    rm -rf "$1.save" "$1.log"
    runs "$1" "$2"
}
same() { # RANKS STAGE BF16 REST
    trains run "$1" "$2" "$3" "$ema" "$4" || return 1
    cmp -s "reference.$3.result" run.result || { diff "reference.$3.result" run.result >why; return 1; }
}
mkdir frames
for bf16 in false true; do
    report "the reference runs, bf16 $bf16" trains "reference.$bf16" 1 0 $bf16 "$ema" ""
done
report "a run without averages" trains none 1 0 false "" ""
report "evaluations of the weights themselves" trains weights 1 0 false ', "ema": {"decay": 0.9, "evaluate": false}' ""
training_alike() {
    for other in none weights; do
        cmp <(grep '"loss"' $other.result) <(grep '"loss"' reference.false.result) >why 2>&1 || return 1
    done
    cmp <(grep '"eval_loss"' none.result) <(grep '"eval_loss"' weights.result) >why 2>&1 || return 1
    ! cmp -s <(grep '"eval_loss"' none.result) <(grep '"eval_loss"' reference.false.result) || return 1
    [ "$(tail -n 1 weights.result)" = "$(tail -n 1 reference.false.result)" ] && [ "$(tail -n 1 none.result)" != "$(tail -n 1 weights.result)" ]
}
report "averages change evaluations, and no step" training_alike
for run in "2 0" "4 1" "2 2" "1 3" "4 3"; do
    read -r ranks stage <<<"$run"
    report "stage $stage on $ranks ranks has the same bits" same "$ranks" "$stage" false ""
done
report "stage 3 in bf16 on 2 ranks" same 2 3 true ""
files='"device": "nvme", "nvme_path": "'"$tmp"'"'
report "the optimizer in files" same 2 2 true ", \"offload_optimizer\": {$files}"
report "parameters and optimizer in files" same 2 3 false ", \"offload_optimizer\": {$files}, \"offload_param\": {$files}"
resumed() {
    config resumed 2 false "$ema" "" && rm -rf resumed.save resumed.log
    timeout 60 "$bin/train" --config resumed.json --save resumed.save --steps 7 >out 2>&1 </dev/null || { cp out why; return 1; }
    runs resumed 2 --load latest || return 1
    [ "$(tail -n 1 resumed.result)" = "$(tail -n 1 reference.false.result)" ] || { tail -n 1 resumed.result reference.false.result >why; return 1; }
}
report "a resumption on other ranks has the same bits" resumed
begins() { # averages of a checkpoint that has none, and none of one that has them
    config none 0 false "$ema" ""
    timeout 60 "$bin/train" --config none.json --save none.save --load latest --steps 13 >out 2>&1 </dev/null || { cp out why; return 1; }
    grep -q "has no averages of weights, which begin with the next update" out || { cp out why; return 1; }
    config weights 0 false "" ""
    timeout 60 "$bin/train" --config weights.json --save weights.save --load latest --steps 13 >out 2>&1 </dev/null || { cp out why; return 1; }
    grep -q "has moving averages of weights, which this run leaves out" out || { cp out why; return 1; }
}
report "a checkpoint with or without averages is told" begins
exported() {
    "$dsc" ckpt verify reference.true.save/step-12 >out 2>&1 && "$dsc" ckpt export reference.true.save/step-12 --out weights.hf >out 2>&1 &&
        "$dsc" ckpt export reference.true.save/step-12 --out ema.hf --ema --dtype fp32 >out 2>&1 || { cp out why; return 1; }
    sed -i "s#$tmp/vit#$tmp/ema.hf#" reference.false.json
    ! cmp -s weights.hf/model.safetensors ema.hf/model.safetensors
}
report "averages are exported" exported
no_averages() { "$dsc" ckpt export run0.save/step-12 --out no.hf --ema >out 2>err; [ $? -eq 2 ] && grep -q "has no averages of weights" err; }
trains run0 1 0 false "" "" && report "a checkpoint without averages has none to export" no_averages
echo '{"architecture": "cnn_lstm", "frames": 3, "hidden_size": 24, "num_layers": 2, "num_classes": 3, "image_size": 12}' >frames/config.json
statistics() { # NAME RANKS STAGE OWN: averages of running statistics are in the hash of the checkpoint, and in evaluations
    config "$1" "$3" false "$4" "" && sed -i "s#$tmp/vit#$tmp/frames#" "$1.json" && rm -rf "$1.save" "$1.log" && runs "$1" "$2"
}
report "running statistics are averaged" statistics frames 1 0 "$ema"
for run in "2 1" "4 3"; do
    read -r ranks stage <<<"$run"
    same_statistics() { statistics run "$ranks" "$stage" "$ema" && cmp frames.result run.result >why 2>&1; }
    report "averages of statistics: stage $stage on $ranks ranks has the same bits" same_statistics
done
resumed_statistics() {
    config resumed 2 false "$ema" "" && sed -i "s#$tmp/vit#$tmp/frames#" resumed.json && rm -rf resumed.save resumed.log
    timeout 60 "$bin/train" --config resumed.json --save resumed.save --steps 7 >out 2>&1 </dev/null || { cp out why; return 1; }
    runs resumed 2 --load latest && [ "$(tail -n 1 resumed.result)" = "$(tail -n 1 frames.result)" ]
}
report "averages of statistics: a resumption has the same bits" resumed_statistics
present() { # statistics as they are: other evaluations, and the same training
    statistics present 1 0 ', "ema": {"decay": 0.9, "buffers": false}' || return 1
    cmp <(grep '"loss"' frames.result) <(grep '"loss"' present.result) >why 2>&1 || return 1
    ! cmp -s <(grep '"eval_loss"' frames.result) <(grep '"eval_loss"' present.result)
}
report "dsc.ema.buffers false evaluates averages of weights with the present statistics" present
begun() { # averages of statistics that the checkpoint does not have begin at its statistics
    config present 0 false "$ema" "" && sed -i "s#$tmp/vit#$tmp/frames#" present.json
    timeout 60 "$bin/train" --config present.json --save present.save --load latest --steps 13 >out 2>&1 </dev/null || { cp out why; return 1; }
    "$bin/dsc" ckpt export present.save/step-13 --out begun.hf --ema >out 2>&1 || { cp out why; return 1; }
}
report "averages of statistics begin in a resumption" begun
planned() { # 4 bytes for each of P / N elements, in the row of moments
    moments() { "$dsc" plan --config "$1.json" --model vit --world-size 2 --json | python3 -c '
import json, sys
print(sum(row["bytes"] for row in json.load(sys.stdin)["per_rank"] if row["tag"] == "moments"))'; }
    config with 2 false "$ema" "" && config without 2 false "" ""
    [ "$(($(moments with) * 2))" -eq "$(($(moments without) * 3))" ] && [ "$(moments with)" -gt 0 ] || { echo "$(moments with) $(moments without)" >why; return 1; }
}
report "the plan counts a third number beside Adam's two" planned
config signs 0 true "$ema" "" && sed -i 's/"AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}/"OneBitAdam", "params": {"lr": 0.003, "freeze_step": 2}/; s/, "reproducible": "world_size"//' signs.json
refused() { "$bin/train" --config signs.json >out 2>err </dev/null; [ $? -eq 2 ] && grep -q "averages need the weights of each update" err; }
report "averages beside signs are refused" refused
end_of_tests
