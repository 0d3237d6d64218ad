#!/usr/bin/env bash
# launch_distributed.sh - trains on this host: MODEL STRATEGY NUM_GPUS BATCH_SIZE EPOCHS [more arguments of train]
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/launch_common.sh"

usage() {
    cat >&2 <<END
usage: bash scripts/launch_distributed.sh MODEL STRATEGY NUM_GPUS BATCH_SIZE EPOCHS [more arguments of train]

  MODEL        a built-in name, a Hugging Face folder or a .json file, for example gpt2-nano
  STRATEGY     ddp, fsdp_stage2 or fsdp_stage3
  NUM_GPUS     ranks on this host; CPU ranks where there is no GPU
  BATCH_SIZE   micro-batch of each rank
  EPOCHS       passes over the data

example: bash scripts/launch_distributed.sh gpt2-nano ddp 4 16 1
END
    exit 2
}

[ $# -ge 5 ] || { [ $# -eq 0 ] || refuse "ARGUMENTS" "$# given, 5 expected"; usage; }
model=$1 strategy=$2 num_gpus=$3 batch_size=$4 epochs=$5
shift 5
check_name MODEL "$model"
check_strategy "$strategy"
check_count NUM_GPUS "$num_gpus" 1024
check_count BATCH_SIZE "$batch_size" 1000000
check_count EPOCHS "$epochs" 1000000

exec "$launcher" --num_gpus="$num_gpus" train --model-type "$model" --strategy "$strategy" --batch-size "$batch_size" \
    --epochs "$epochs" "$@"
