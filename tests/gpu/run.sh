#!/usr/bin/env bash
# run.sh [--nccl DIR] PROGRAM... - runs test programs on this machine's GPU, then some of them under compute-sanitizer.
#
# One GPU takes several ranks only with NCCL 2.30 or newer (--nccl: the folder of its libnccl.so.2): then 2 and 4 ranks
# are threads of one process; otherwise one rank runs. Exit 77 with the reason where there is no GPU that can be used.
# SPDX-License-Identifier: Apache-2.0
set -u
nccl=
if [ "${1:-}" = --nccl ]; then nccl=$2; shift 2; fi
dsc=${DSC_BIN:-bin}/dsc train=${DSC_BIN:-bin}/train
export DSC_PLUGIN_DIR=${DSC_LIB:-lib}/dsc CK_DEVICE=cuda # checkkern: the GPU's kernels
gpu=$("$dsc" doctor | grep -E '^ +GPU' | head -n 1)
case $gpu in
*sm_*) echo "test-gpu:$gpu" ;;
*) echo "test-gpu: skipped:$gpu"; exit 77 ;;
esac

ranks=1
if [ -n "$nccl" ]; then
    # All ranks' kernels must be on the GPU at once, no launch may wait for another rank's, and none for a lazy load.
    export LD_LIBRARY_PATH=$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=8 \
        CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
    ranks=4
fi
export DSC_TEST_RANKS_MAX=$ranks
echo "test-gpu: at most $ranks rank(s) on this GPU"
"$(dirname "$0")/../run" gpu "$@"; rc=$?

# One short training run, as a user starts it.
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
echo '{"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": true}, "dsc": {"device": "cuda"}}' >"$work/config.json"
"$train" --config "$work/config.json" --model gpt2-nano --steps 20 || rc=1

if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        echo "test-gpu: compute-sanitizer $tool"
        for program in "$@"; do
            DSC_TEST_RANKS_MAX=1 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" >"$work/log" 2>&1 ||
                { echo "  FAILED $program under $tool"; tail -n 40 "$work/log" | sed 's/^/    /'; rc=1; }
        done
    done
else
    echo "test-gpu: compute-sanitizer is not here"
fi
exit $rc
