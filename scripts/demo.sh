#!/usr/bin/env bash
# demo.sh - the demo of `make demo`: prepares real English text, trains over 4 sharded ranks, and shows the result and the memory
# that sharding saves. It writes to data/ and demo-run/ only. SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${RANKS:-4} steps=${STEPS:-1000}
mkdir -p data demo-run

if [ ! -s data/bible-kjv.txt ]; then
    command -v bible >/dev/null || { echo "demo: the Debian package bible-kjv is missing (make deps-demo)" >&2; exit 1; }
    # One verse a line, without its number; the last 1500 verses are kept for validation.
    bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' > demo-run/text
    head -n -1500 demo-run/text > data/bible-kjv.txt
    tail -n 1500 demo-run/text > data/bible-kjv-val.txt
    rm demo-run/text
fi
echo "text: the King James Bible, $(wc -c < data/bible-kjv.txt) bytes to train on, $(wc -c < data/bible-kjv-val.txt) to validate"

# Memory of one rank: the same 2 steps at stage 0 and at stage 3.
states() { # STAGE
    sed "s/\"stage\": 3/\"stage\": $1/" configs/ds_config.json > demo-run/stage.json
    bin/dsc-launch --num_gpus="$ranks" train --config demo-run/stage.json --data data/bible-kjv.txt --steps 2 2>/dev/null |
        awk '/^  (params|grads|master|moments) / {states += $3} /^memory per rank/ {sub(/,/, "", $6); peak = $6}
             END {printf "%.2f %.2f", states, peak}'
}
read -r states0 peak0 <<< "$(states 0)"
read -r states3 peak3 <<< "$(states 3)"

echo
echo "bin/dsc-launch --num_gpus=$ranks train --config configs/ds_config.json ..."
rm -rf demo-run/checkpoints
bin/dsc-launch --num_gpus="$ranks" train --config configs/ds_config.json --data data/bible-kjv.txt \
    --eval-data data/bible-kjv-val.txt --steps "$steps" --save demo-run/checkpoints --log demo-run/log.jsonl \
    --curve --sample "And God said"

echo
echo "memory per rank of $ranks   model states   tracked peak"
printf '  ZeRO stage 0         %8.2f MiB   %8.2f MiB\n' "$states0" "$peak0"
printf '  ZeRO stage 3         %8.2f MiB   %8.2f MiB\n' "$states3" "$peak3"
echo
echo "checkpoint: $(ls -d demo-run/checkpoints/step-*); losses: demo-run/log.jsonl"
bin/dsc ckpt verify demo-run/checkpoints
