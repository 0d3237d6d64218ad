#!/usr/bin/env bash
# test_gpu_errors.sh - what train says when a GPU cannot be used or fails: one line, the right exit code, no waiting. The
# GPUs are simulated (tests/sim); what a machine without any says is in test_gpu_lines.sh.
# SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-} launch=${DSC_BIN:-bin}/dsc-launch
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
seconds=20; [ -z "${DSC_SAN:-}" ] || seconds=200
unset LD_LIBRARY_PATH DSC_PLUGIN_DIR CUDA_VISIBLE_DEVICES NCCL_MULTI_RANK_GPU_ENABLE
if [ ! -x "$sim/train" ]; then
    echo "ok 1 - errors of GPUs # SKIP no simulated GPUs in this build (DSC_SIM)"; echo "1..1"; exit 0
fi
cat >"$dir/model.json" <<'C'
{"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_head": 1, "n_layer": 1, "n_positions": 16}
C
for i in $(seq 200); do echo "line $i of a text to learn from"; done >"$dir/text.txt"
echo '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0, "dsc": {"threads": 1}}' \
    >"$dir/config.json"
arguments=(--config "$dir/config.json" --model "$dir/model.json" --data "$dir/text.txt" --seq-len 16
    --steps 2 --device cuda)

run() { # run [NAME=VALUE]... PROGRAM [ARGS]: out, rc
    out=$(env "$@" 2>&1 </dev/null); rc=$?
}
check() { # check NAME CODE TEXT: one error line with the text
    local ok=ok errors
    errors=$(printf '%s\n' "$out" | grep -c '^dsc: error: ')
    [ "$rc" -eq "$2" ] && [ "$errors" -eq 1 ] || ok="not ok"
    case $(printf '%s\n' "$out" | grep '^dsc: error: ') in *"$3"*) ;; *) ok="not ok" ;; esac
    n=$((n + 1)); echo "$ok $n - $1"
    [ "$ok" = ok ] || printf '%s\n' "$out" | sed "s/^/# $rc: /"
}
one() { run "$@" "${arguments[@]}"; }
ranks() { # ranks COUNT [NAME=VALUE]... PROGRAM: processes
    run "${@:2:$#-2}" timeout $seconds "$launch" --num_gpus "$1" "${@: -1}" "${arguments[@]}"
}
# Libraries that are found and are none: so they are missing on a machine that has them too.
mkdir "$dir/broken"
for library in libnccl.so.2 libcublasLt.so libcublasLt.so.{11,12,13,14}; do
    echo "no library" >"$dir/broken/$library"
done

one timeout $seconds "$sim/train"
n=$((n + 1))
if [ $rc -eq 0 ]; then echo "ok $n - trains on a simulated GPU"
else echo "not ok $n - trains on a simulated GPU"; printf '%s\n' "$out" | sed "s/^/# $rc: /"; fi

one CUSIM_DEVICES=0 timeout $seconds "$sim/train"
check "no GPU" 2 'dsc.device: "cuda": no GPU here'
one CUSIM_ARCH=75 timeout $seconds "$sim/train"
check "a GPU that is too old" 2 'is sm_75; sm_80 or newer is needed'
if compgen -G "/usr/local/cuda/lib64/libcublasLt.so.*" >/dev/null || \
    compgen -G "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.*" >/dev/null; then
    n=$((n + 1)); echo "ok $n - no cuBLASLt # SKIP this machine has it, and the plugin looks there"
else
    one LD_LIBRARY_PATH="$dir/broken" timeout $seconds "$sim/train_without_cublaslt"
    check "no cuBLASLt" 2 'needs libcublasLt.so.'
fi
one CUSIM_MEM=1M timeout $seconds "$sim/train"
check "a GPU that is too small" 3 'memory'
one CUSIM_FAIL=sumsq timeout $seconds "$sim/train"
check "a kernel that fails" 1 'GPU 0'
n=$((n + 1))
case $out in *SUMSQ*) echo "ok $n - and its name" ;; *) echo "not ok $n - and its name"; printf '# %s\n' "$out" ;; esac
ranks 3 CUSIM_DEVICES=2 "$sim/train"
check "more ranks than GPUs" 2 '3 ranks on this host and 2 GPUs'
ranks 2 LD_LIBRARY_PATH="$dir/broken" "$sim/train_without_nccl"
check "no NCCL" 2 'libnccl.so.2 does not load'
echo "1..$n"
