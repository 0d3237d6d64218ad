#!/usr/bin/env bash
# test_fail.sh - every way in which a GPU fails its user, through the programs on simulated GPUs: one line, the right exit code,
# at once. Drivers and plugins that are missing or foreign are tests/cli/test_gpu_lines.sh's. SPDX-License-Identifier: Apache-2.0
set -u
bin=${DSC_BIN:-bin} sim=${DSC_SIM:-build/gcc-release/tests/sim}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
unset CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH DSC_PLUGIN_DIR
seq 1 3000 >"$dir/text.txt"
echo '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "dsc": {"device": "cuda", "seq_length": 16, "steps": 1, "threads": 1}}' >"$dir/c.json"
args=(--config "$dir/c.json" --model gpt2-nano --data "$dir/text.txt")
most=10; [ -z "${DSC_SAN:-}" ] || most=60

library() { # library PATH C_TEXT
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "$2" >"$dir/lib.c"
    ${CC:-cc} -shared -fPIC -o "$1" "$dir/lib.c"
}
verdict() { # verdict NAME CODE TEXT: one error line with the text, nothing else of an error
    local name=$1 ok=ok
    n=$((n + 1))
    [ "$rc" -eq "$2" ] || ok="not ok"
    [ "$(grep -c '^dsc: error: ' "$dir/err")" -eq 1 ] || ok="not ok"
    grep '^dsc: error: ' "$dir/err" | grep -qF -- "$3" || ok="not ok"
    echo "$ok $n - $name"
    [ "$ok" = ok ] || { echo "# exit $rc"; tail -n 5 "$dir/err" | sed 's/^/# /'; }
}
run() { # run [VARIABLE=VALUE...] PROGRAM ARGS...
    rc=0
    timeout "$most" env "$@" >"$dir/out" 2>"$dir/err" </dev/null || rc=$?
}
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }

# ---- train, straight and under the launcher ----
for launcher in "" "$bin/dsc-launch --num_gpus=1"; do
    by=${launcher:+, by dsc-launch}
    # shellcheck disable=SC2086
    t() { run "$@" $launcher "$sim/bin/train" "${args[@]}"; }
    t X=1; n=$((n + 1)); [ $rc -eq 0 ] && grep -q '^step 1/1 ' "$dir/out" && echo "ok $n - a GPU that works$by" || { echo "not ok $n - a GPU that works$by"; tail -n 5 "$dir/err" | sed 's/^/# /'; }
    t CUSIM_DEVICES=0; verdict "no GPU$by" 2 'no GPU here, or CUDA_VISIBLE_DEVICES hides them; "cpu" and "auto" work here'
    t CUSIM_DRIVER=12080; verdict "a driver that is older than the runtime$by" 2 "the GPU driver is older than this build's CUDA runtime; install a newer driver"
    t CUSIM_ARCH=75; verdict "a GPU of another architecture$by" 2 'is sm_75; sm_80 or newer is needed'
    n=$((n + 1)); run CUSIM_ARCH=75 $launcher "$sim/bin/train" "${args[@]}" --device auto
    if [ $rc -eq 0 ] && grep -q '^step 1/1 ' "$dir/out"; then echo "ok $n - with auto the CPU computes$by"; else echo "not ok $n - with auto the CPU computes$by"; tail -n 5 "$dir/err" | sed 's/^/# /'; fi
    t CUSIM_MEM=40M; verdict "a GPU with too little memory$by" 3 '1 rank on this GPU needs'
    t CUSIM_FAIL_MALLOC=1; verdict "memory that another program took at once$by" 3 'GPU 0 (simulated GPU) is out of memory: 32.0 MiB are needed, '
    t CUSIM_FAIL_MALLOC=2; verdict "host memory that cannot be pinned$by" 3 'the host is out of memory: pinning 4.0 MiB of host memory'
    t CUSIM_FAIL_MALLOC=3; verdict "memory that another program took after the plan$by" 3 'GPU 0 (simulated GPU) is out of memory: '
    t CUSIM_FAIL_KERNEL=sumsq; verdict "a kernel that fails$by" 1 'GPU 0 (simulated GPU) failed: stream compute, at or before SUMSQ: unspecified launch failure'
    t CUSIM_FAIL_KERNEL=each_kernel; verdict "a kernel that fails before the first step$by" 1 'GPU 0 (simulated GPU) failed: measuring plans: a copy: unspecified launch failure'
done

# ---- the kernels of attention that only sm_90 has ----
run CUSIM_REGISTERS=160 "$sim/bin/train" "${args[@]}"; n=$((n + 1))
if [ $rc -eq 0 ] && grep -q '^step 1/1 ' "$dir/out" && grep -q 'warpgroups have fewer registers at their start' "$dir/err" "$dir/out"; then
    echo "ok $n - kernels that could not start are not started"
else echo "not ok $n - kernels that could not start are not started"; tail -n 5 "$dir/err" | sed 's/^/# /'; fi
# A model with heads of 64, and tokens 0 to 999 as its data.
for i in {0..999}; do printf '\\x%02x\\x%02x' $((i % 256)) $((i / 256)); done >"$dir/bytes"
printf '%b' "$(<"$dir/bytes")" >"$dir/t.bin"
wide=(--config "$dir/c.json" --model gpt2-small-384 --data "$dir/t.bin")
usual=$most; most=$((most + 30))
run CUSIM_ENDLESS_KERNEL=dkv_sm90 "$sim/bin/train" "${wide[@]}"
verdict "a kernel that never ends" 1 'the kernel attention_bwd_sm90 has not ended within 10 s; "dsc": {"gemm_plans": "first"} does without it'
run CUSIM_FAIL_KERNEL=sm90_kernel "$sim/bin/train" "${wide[@]}"; most=$usual
verdict "a kernel that fails at its trial" 1 'the kernel attention_fwd_sm90: unspecified launch failure; "dsc": {"gemm_plans": "first"} does without it'

# ---- libraries ----
mkdir -p "$dir/text"
echo "no library" >"$dir/text/libcublasLt.so.13"; echo "no library" >"$dir/text/libnccl.so.2"
library "$dir/half/libcublasLt.so.13" 'int cublasLtGetVersion(void) { return 130000; }'
run LD_LIBRARY_PATH="$dir/half" "$sim/no-cublaslt/train" "${args[@]}"
verdict "a cuBLASLt that is not whole" 2 'libcublasLt.so.13 lacks calls that this build needs'
if ls /usr/local/cuda/lib64/libcublasLt.so.13 >/dev/null 2>&1 || ldconfig -p | grep -q 'libcublasLt\.so\.13'; then
    skip "no cuBLASLt" "this machine has it"
else
    run LD_LIBRARY_PATH="$dir/text" "$sim/no-cublaslt/train" "${args[@]}"
    verdict "no cuBLASLt" 2 "\"cuda\" needs libcublasLt.so.13 and it is not in the loader's path or /usr/local/cuda/lib64; install cuBLAS 13"
fi
symbols=$(sed -nE 's/.*\(([a-z_]+, (nccl[A-Za-z]+)),.*/\2/p' "$(dirname "$0")/../../comm/transports/nccl_api.h" | grep -v ncclGetVersion | sort -u)
old="int ncclGetVersion(int *v) { *v = 20700; return 0; }"
for s in $symbols ncclGetErrorString ncclGetLastError; do old="$old int $s(void) { return 1; }"; done
library "$dir/old/libnccl.so.2" "$old"
library "$dir/half/libnccl.so.2" 'int ncclGetVersion(int *v) { *v = 22800; return 0; }'
two() { run LD_LIBRARY_PATH="$1" "$bin/dsc-launch" --num_gpus=2 "$sim/no-nccl/train" "${args[@]}"; }
two "$dir/text"; verdict "two ranks without NCCL" 2 'several GPUs need NCCL 2.'
two "$dir/half"; verdict "an NCCL that is not whole" 2 'libnccl.so.2 is without nccl'
two "$dir/old"; verdict "an NCCL that is too old" 2 'libnccl.so.2 is too old; several GPUs need NCCL'

# ---- ranks and GPUs ----
run CUSIM_DEVICES=2 "$bin/dsc-launch" --num_gpus=3 "$sim/bin/train" "${args[@]}"
verdict "more ranks than GPUs" 2 '3 ranks on this host and 2 GPUs; start one rank for each GPU'

# ---- dsc doctor: always whole, exit 0, the reason beside the GPU ----
doctor() { # doctor NAME TEXT [VARIABLE=VALUE...] PROGRAM
    local name=$1 text=$2
    shift 2
    run "$@" doctor
    n=$((n + 1))
    if [ $rc -eq 0 ] && grep -E '^ +GPU' "$dir/out" | grep -qF -- "$text" && grep -q '^built in this version' "$dir/out"; then echo "ok $n - dsc doctor: $name"
    else echo "not ok $n - dsc doctor: $name"; grep GPU "$dir/out" | sed 's/^/# /'; tail -n 2 "$dir/err" | sed 's/^/# /'; fi
}
doctor "GPUs" 'simulated GPU, sm_90, ' "$sim/bin/dsc"
doctor "no GPU" 'no GPU here, or CUDA_VISIBLE_DEVICES hides them' CUSIM_DEVICES=0 "$sim/bin/dsc"
doctor "an old driver" "older than this build's CUDA runtime" CUSIM_DRIVER=12080 "$sim/bin/dsc"
doctor "another architecture" 'is sm_75; sm_80 or newer is needed' CUSIM_ARCH=75 "$sim/bin/dsc"
doctor "a cuBLASLt that is not whole" 'lacks calls that this build needs' LD_LIBRARY_PATH="$dir/half" "$sim/no-cublaslt/dsc"
echo "1..$n"
