#!/usr/bin/env bash
# launch_multi_node.sh - trains on several hosts: MODEL STRATEGY NUM_NODES GPUS_PER_NODE BATCH_SIZE EPOCHS [of train]
#
# The hosts are the first NUM_NODES of the file $HOSTFILE (lines "name slots=N"). MASTER_ADDR and MASTER_PORT are passed
# on when they are set. SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/launch_common.sh"

usage() {
    cat >&2 <<END
usage: [HOSTFILE=FILE] bash scripts/launch_multi_node.sh MODEL STRATEGY NUM_NODES GPUS_PER_NODE BATCH_SIZE EPOCHS [more]

  MODEL          a built-in name, a Hugging Face folder or a .json file, for example gpt2-nano
  STRATEGY       ddp, fsdp_stage2 or fsdp_stage3
  NUM_NODES      hosts, the first ones of HOSTFILE (scripts/hostfile_example.txt shows one); 1 needs no file
  GPUS_PER_NODE  ranks on each host
  BATCH_SIZE     micro-batch of each rank
  EPOCHS         passes over the data
  more           further arguments of train
END
    exit 2
}

[ $# -ge 6 ] || { [ $# -eq 0 ] || refuse "ARGUMENTS" "$# given, 6 expected"; usage; }
model=$1 strategy=$2 num_nodes=$3 gpus_per_node=$4 batch_size=$5 epochs=$6
shift 6
check_name MODEL "$model"
check_strategy "$strategy"
check_count NUM_NODES "$num_nodes" 16384
check_count GPUS_PER_NODE "$gpus_per_node" 1024
check_count BATCH_SIZE "$batch_size" 1000000
check_count EPOCHS "$epochs" 1000000

flags=(--num_nodes="$num_nodes" --num_gpus="$gpus_per_node")
if [ -n "${HOSTFILE:-}" ]; then
    flags+=(--hostfile "$HOSTFILE")
elif [ "$num_nodes" -gt 1 ]; then
    refuse HOSTFILE "$num_nodes nodes need HOSTFILE=FILE with lines such as \"worker-0 slots=$gpus_per_node\""
    exit 2
fi
[ -z "${MASTER_ADDR:-}" ] || flags+=(--master_addr "$MASTER_ADDR")
[ -z "${MASTER_PORT:-}" ] || flags+=(--master_port "$MASTER_PORT")

exec "$launcher" "${flags[@]}" train --model-type "$model" --strategy "$strategy" --batch-size "$batch_size" \
    --epochs "$epochs" "$@"
