#!/usr/bin/env bash
# test_vision_bits.sh - a small ViT, and cnn_lstm on frames, give equal losses and `dsc ckpt hash` for any stage, number of ranks,
# offload and recomputation. An evaluation has one accuracy for any number of ranks. SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more threads than cores here: spinning would only take the others' time

. "$root/tests/cli/vision.sh"
mkdir frames
echo '{"architecture": "cnn_lstm", "frames": 3, "hidden_size": 24, "num_layers": 2, "num_classes": 3, "image_size": 12}' >frames/config.json

model=vit # the folder
steps=20  # enough for bits to differ
# trains NAME RANKS STAGE RECOMPUTE BF16 REST: the rest is inside of "zero_optimization", from a comma on
trains() {
    cat >"$1.json" <<EOF2
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": $5},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
 "zero_optimization": {"stage": $3$6},
 "dsc": {"model": "$tmp/$model", "data": "$tmp/train.pictures", "eval_data": "$tmp/eval.pictures", "steps": $steps, "eval_every": $steps,
         "recompute": "$4", "threads": 1, "reproducible": "world_size"}}
EOF2
    rm -rf "$1.save" "$1.log"
    timeout 120 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --save "$1.save" --log "$1.log" >"$1.out" 2>&1 </dev/null ||
        { cp "$1.out" why; return 1; }
    { sed -E 's/.*("loss":[^,]*),.*("grad_norm":[^,]*),.*/\1 \2/' "$1.log"; "$bin/dsc" ckpt hash "$1.save/step-$steps"
      grep -oE 'accuracy [0-9.]+, [0-9]+ of [0-9]+ samples' "$1.out"; } >"$1.result" 2>why
    rm -rf "$1.save"
}
same() { # NAME RANKS STAGE RECOMPUTE BF16 REST
    trains "$@" || return 1
    cmp -s "reference.$model.$5.result" "$1.result" && return
    diff "reference.$model.$5.result" "$1.result" >why
    return 1
}
learns() { # more than nine of ten pictures that it has not seen
    local steps=60
    trains learned 1 0 none false "" || return 1
    awk '$1 == "accuracy" { found = 1; good = $2 > 0.9 && $5 == 37 } END { exit !(found && good) }' learned.result ||
        { cp learned.result why; return 1; }
}
recomputes=(none kept selective full)
for model in vit frames; do
    for bf16 in false true; do
        report "$model: the reference runs, bf16 $bf16" trains "reference.$model.$bf16" 1 0 none $bf16 ""
    done
    report "$model: a new model learns, and its accuracy is that of all samples" learns
    for ranks in 1 2 4; do for stage in 0 1 2 3; do
        report "$model: stage $stage on $ranks ranks" same run $ranks $stage "${recomputes[(ranks + stage) % 4]}" false ""
    done; done
    report "$model: stage 3 in bf16 on 2 ranks" same run 2 3 full true ""
    report "$model: stage 1 in bf16 on 4 ranks" same run 4 1 selective true ""
    report "$model: the optimizer in host memory" same run 2 2 none false ', "offload_optimizer": {"device": "cpu"}'
    report "$model: parameters and optimizer in host memory" same run 2 3 full false \
        ', "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'
done
model=vit
report "parameters and optimizer in files" same run 2 3 none false \
    ', "offload_optimizer": {"device": "nvme", "nvme_path": "'"$tmp"'"}, "offload_param": {"device": "nvme", "nvme_path": "'"$tmp"'"}'
refused() { # WORDS ARGUMENTS...
    local words=$1
    shift
    "$bin/train" --model "$tmp/vit" "$@" >out 2>err </dev/null
    [ $? -eq 2 ] && grep -qF -- "$words" err
}
report "a text is not pictures" refused "not a file of pictures" --data vit/config.json --steps 1
echo '{"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "dsc": {"document_end": 1}}' >documents.json
report "the end of documents is for texts" refused "dsc.document_end is for texts" --config documents.json --data train.pictures --steps 1
takes_the_preset() { # whose sequence length is for texts
    "$bin/train" --model "$tmp/vit" --data train.pictures --steps 2 >out 2>err </dev/null && grep -q "has no effect: a sample is" err
}
report "without a config the preset is taken, with a warning" takes_the_preset
sed 's/"image_size": 12/"image_size": 16/' vit/config.json >vit/other && mv vit/other vit/config.json
report "pictures of another size are refused" refused "the model takes 16 by 16" --data train.pictures --steps 1
end_of_tests
