#!/usr/bin/env bash
# demo_vision.sh - the demo of `make demo-vision`: trains a convolutional network on handwritten digits over sharded ranks, and shows
# what it says about digits that it has not seen. It writes to FOLDER (demo-run/vision) only. SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${RANKS:-4} epochs=${EPOCHS:-20} folder=${FOLDER:-demo-run/vision}
rm -rf "$folder"
mkdir -p "$folder"

if command -v python3 >/dev/null && python3 -B scripts/demo_vision_data.py "$folder"; then
    train=$folder/train-images-idx3-ubyte held_out=$folder/t10k-images-idx3-ubyte
    echo "pictures: 1500 handwritten digits of scikit-learn to train on, and 297 others to validate, in IDX files as MNIST has"
else
    train=shapes:train held_out=shapes:test
    echo "pictures: drawn shapes, as scikit-learn's digits cannot be downloaded here (PyPI: scikit-learn; Debian: python3-sklearn)"
fi

cat >"$folder/config.json" <<'END_OF_CONFIG'
{
  "train_micro_batch_size_per_gpu": 8,
  "zero_optimization": {"stage": 3},
  "gradient_clipping": 1.0,
  "steps_per_print": 100,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.05}},
  "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 20}},
  "dsc": {"model": "basic_cnn"}
}
END_OF_CONFIG

echo
echo "bin/dsc-launch --num_gpus=$ranks train --config $folder/config.json --data $train --eval-data $held_out --epochs $epochs"
bin/dsc-launch --num_gpus="$ranks" train --config "$folder/config.json" --data "$train" --eval-data "$held_out" --epochs "$epochs" \
    --save "$folder/checkpoints" --log "$folder/log.jsonl" --curve | grep -vE '^epoch |^saved '
newest=$(ls -d "$folder"/checkpoints/step-* | sort -t- -k3n | tail -n 1)

echo
echo "bin/dsc classify --model $newest --show 8 --grid $folder/predictions.png $held_out"
bin/dsc classify --model "$newest" --show 8 --grid "$folder/predictions.png" "$held_out"
echo
echo "$folder/predictions.png has 100 of them: in green what is right, in red what is wrong, and below it the truth"
echo "your picture: bin/dsc classify --model $newest FILE.jpg"
