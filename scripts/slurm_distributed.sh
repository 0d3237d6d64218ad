#!/usr/bin/env bash
#SBATCH --job-name=dsc
#SBATCH --output=logs/slurm_distributed_%j.out
#SBATCH --signal=TERM@60
# slurm_distributed.sh - trains in a Slurm job: sbatch [flags of sbatch] scripts/slurm_distributed.sh MODEL STRATEGY BATCH_SIZE
# EPOCHS [more arguments of train], from the folder that has scripts/ and bin/.
#
# Nodes and ranks are sbatch's: --nodes=2 --ntasks-per-node=4 --gpus-per-node=4. `mkdir -p logs` first, or Slurm drops the
# output. A minute before the time is up, and by scancel, ranks get SIGTERM. SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# Slurm runs a copy of this file from its own folder.
root=${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
source "$root/scripts/launch_common.sh"

usage() {
    cat >&2 <<END
usage: sbatch --nodes=N --ntasks-per-node=R scripts/slurm_distributed.sh MODEL STRATEGY BATCH_SIZE EPOCHS [more]

  MODEL       a built-in name, a Hugging Face folder or a .json file, for example gpt2-nano
  STRATEGY    ddp, fsdp_stage2 or fsdp_stage3
  BATCH_SIZE  micro-batch of each rank
  EPOCHS      passes over the data
  more        further arguments of train
END
    exit 2
}

[ $# -ge 4 ] || { [ $# -eq 0 ] || refuse "ARGUMENTS" "$# given, 4 expected"; usage; }
model=$1 strategy=$2 batch_size=$3 epochs=$4
shift 4
check_name MODEL "$model"
check_strategy "$strategy"
check_count BATCH_SIZE "$batch_size" 1000000
check_count EPOCHS "$epochs" 1000000
[ -n "${SLURM_JOB_ID:-}" ] || { refuse SLURM_JOB_ID "not set; start this with sbatch, or use launch_distributed.sh"; exit 2; }

exec "$launcher" --launcher slurm train --model-type "$model" --strategy "$strategy" --batch-size "$batch_size" \
    --epochs "$epochs" "$@"
