#!/usr/bin/env bash
#SBATCH --job-name=dsc
#SBATCH --output=logs/slurm_distributed_%j.out
#SBATCH --signal=TERM@60
# slurm_distributed.sh - trains in a Slurm job: MODEL STRATEGY [NUM_GPUS] BATCH_SIZE EPOCHS [more arguments of train]
#
# It is submitted from the folder that has scripts/ and bin/, or from scripts/.
#
# Nodes and ranks are sbatch's: --nodes=2 --ntasks-per-node=4 --gpus-per-node=4. `mkdir -p logs` first, or Slurm drops the
# output. A minute before the time is up, and by scancel, ranks get SIGTERM. SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# Slurm runs a copy of this file from its own folder.
root=${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
[ -f "$root/scripts/launch_common.sh" ] || [ ! -f "$root/launch_common.sh" ] || root=$(dirname "$root")
source "$root/scripts/launch_common.sh"

usage() {
    cat >&2 <<END
usage: sbatch --nodes=N --ntasks-per-node=R scripts/slurm_distributed.sh MODEL STRATEGY [NUM_GPUS] BATCH_SIZE EPOCHS [more]

  MODEL       a built-in name, a Hugging Face folder or a .json file, for example gpt2-nano or mobilenet
  STRATEGY    ddp, fsdp_stage2 or fsdp_stage3
  NUM_GPUS    all ranks of the job, which are N times R; it may be left out
  BATCH_SIZE  micro-batch of each rank
  EPOCHS      passes over the data
  more        further arguments of train
END
    exit 2
}

[ $# -ge 4 ] || { [ $# -eq 0 ] || refuse "ARGUMENTS" "$# given, 4 expected"; usage; }
model=$1 strategy=$2 num_gpus=
shift 2
if [ $# -ge 3 ] && [[ $3 =~ ^[0-9]+$ ]]; then
    num_gpus=$1
    check_count NUM_GPUS "$num_gpus" 16384
    shift
fi
batch_size=$1 epochs=$2
shift 2
check_name MODEL "$model"
check_strategy "$strategy"
check_count BATCH_SIZE "$batch_size" 1000000
check_count EPOCHS "$epochs" 1000000
[ -n "${SLURM_JOB_ID:-}" ] || { refuse SLURM_JOB_ID "not set; start this with sbatch, or use launch_distributed.sh"; exit 2; }

runner=(--launcher slurm)
tasks=${SLURM_NTASKS:-1} nodes=${SLURM_JOB_NUM_NODES:-1}
if [ -n "$num_gpus" ] && [ "$((10#$num_gpus))" -ne "$tasks" ]; then
    words="NUM_GPUS is $num_gpus, and the job has $tasks task(s) on $nodes node(s)"
    if [ "$nodes" -gt 1 ]; then
        refuse NUM_GPUS "$words; give --nodes and --ntasks-per-node of sbatch that make $num_gpus"
        exit 2
    fi
    echo "dsc: note: $words; they share what the job has. Each gets its own with sbatch --nodes=1" \
        "--ntasks-per-node=$num_gpus --gpus-per-node=$num_gpus" >&2
    runner=(--num_gpus="$num_gpus")
fi

exec "$launcher" "${runner[@]}" train --model-type "$model" --strategy "$strategy" --batch-size "$batch_size" \
    --epochs "$epochs" "$@"
