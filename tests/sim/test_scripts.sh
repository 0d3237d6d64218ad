#!/usr/bin/env bash
# test_scripts.sh - the scripts of test-gpu, bench-gpu and gpu-day, shortened, on simulated GPUs; and that they refuse where there is none.
# SPDX-License-Identifier: Apache-2.0
set -u
top=$(cd "$(dirname "$0")/../.." && pwd) sim=${DSC_SIM:-build/gcc-release/tests/sim}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
report() { # report NAME CONDITION...
    local name=$1
    shift
    n=$((n + 1))
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; echo "# exit $rc"; tail -n 25 "$dir/out" | sed 's/^/# /'; fi
}
has() { grep -qE -- "$1" "$dir/out"; }
run() { rc=0; timeout 200 env DSC_BIN="$sim/bin" "$@" >"$dir/out" 2>&1 </dev/null || rc=$?; }

# ---- test-gpu ----
cat >"$dir/engine" <<'END'
#!/usr/bin/env bash
case $DSC_TEST_RANKS_MAX:${NCCL_MULTI_RANK_GPU_ENABLE:-0}:${NCCL_MAX_CTAS:-all}:${CUDA_DEVICE_MAX_CONNECTIONS:-8} in
1:0:all:8 | 2:1:16:32 | 4:1:8:32) echo "ok 1 - as ranks that share a GPU need it" ;;
*) echo "not ok 1 - $DSC_TEST_RANKS_MAX ranks"; exit 1 ;;
esac
END
chmod +x "$dir/engine"
run "$top/tests/gpu/run.sh" --simulate --results "$dir/results" "$dir/engine"
report "test-gpu ends well" [ $rc -eq 0 ]
report "it names the GPU" has '^test-gpu: GPU 0 simulated GPU, sm_90'
report "one rank" has '^test-gpu: the engine, one rank: ok, [0-9]+ s \(1 passed, 0 failed'
report "several ranks on one GPU" has '^test-gpu: the engine, 4 ranks that share the GPU: ok'
report "train" has '^test-gpu: train, 1 steps: ok'
report "the summary is kept" grep -q '^    test-gpu: no part failed' "$dir"/results/*-simulated-GPU-test.md
printf '#!/bin/sh\necho "not ok 1 - broken"\nexit 1\n' >"$dir/broken"; chmod +x "$dir/broken"
run "$top/tests/gpu/run.sh" --simulate "$dir/broken"
report "a test that fails fails the whole" [ $rc -eq 1 ]
report "and is shown" has '^ +not ok 1 - broken'
run "$top/tests/gpu/run.sh" --simulate --seconds 5 "$dir/broken"
report "a run without time left is named and not started" has 'one rank: not run, the 5 s are over'
run CUSIM_DEVICES=0 "$top/tests/gpu/run.sh" --simulate "$dir/broken"
report "no GPU: exit 77 and one line" [ $rc:"$(wc -l <"$dir/out")" = 77:1 ]
run CUSIM_ARCH=75 "$top/tests/gpu/run.sh" --simulate "$dir/broken"
report "a GPU that is too old: exit 77 and one line" [ $rc:"$(wc -l <"$dir/out")" = 77:1 ]
run CUDA_VISIBLE_DEVICES=-1 DSC_BIN="${DSC_BIN:-bin}" "$top/tests/gpu/run.sh" "$dir/broken"
report "no real GPU either" [ $rc:"$(wc -l <"$dir/out")" = 77:1 ]

# ---- bench-gpu ----
if command -v python3 >/dev/null; then
    run ROUNDS=5 python3 "$top/bench/bench_gpu.py" "$sim/bin/step_worker" --simulate --checkkern "$sim/checkkern" --results "$dir/results"
    report "bench-gpu ends well" [ $rc -eq 0 ]
    report "a line of times" has '^nano dsc +[0-9.]+ ms  min [0-9.]+ max [0-9.]+ +[0-9]+ tokens/s  GPU memory [0-9]+ MiB'
    report "graphs are a side of their own" has '^nano graphs/dsc [0-9.]+ +p10 '
    report "late updates are a side of their own" has '^nano late/dsc [0-9.]+ +p10 '
    report "the results say that they are simulated" grep -q 'SIMULATED: the numbers mean nothing' "$dir"/results/*-simulated-GPU.md
    run CUSIM_FAIL_KERNEL=sumsq ROUNDS=5 python3 "$top/bench/bench_gpu.py" "$sim/bin/step_worker" --simulate nano
    report "a side that dies ends it with its last words" has '^nano: (dsc|graphs|late) ended with 1: .*failed: stream compute, at or before SUMSQ'
    report "exit 1" [ $rc -eq 1 ]
    run python3 "$top/bench/bench_gpu.py" "$sim/bin/step_worker" --simulate --seconds 20 nano
    report "a run without time left is named and not started" has '^nano: not run, the 20 s are over'
    if command -v nvidia-smi >/dev/null; then n=$((n + 1)); echo "ok $n - bench-gpu without a GPU # SKIP this machine has one"; else
        for command in bench/bench_gpu.py "tests/gpu/day.py --checkkern none --train none --step-worker"; do
            run python3 "$top"/$command "$sim/bin/step_worker"
            report "${command%% *}, no GPU: exit 77 and one line" [ $rc:"$(wc -l <"$dir/out")" = 77:1 ]
        done
    fi

    # ---- turns.py and kernel_sums.py ----
    cat >"$dir/nano.json" <<'END'
{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "dsc": {"model": "gpt2-nano", "seq_length": 16, "device": "cuda"}}
END
    worker="$sim/bin/step_worker $dir/nano.json 256 16"
    run python3 "$top/bench/turns.py" --rounds 2 --warm-up 1 --write "$dir/turns" a="$worker" b="CUSIM_FAIL_KERNEL=sumsq $worker" none=false
    report "turns of a worker that goes on" has '^a +[0-9.]+ ms  min [0-9.]+ max [0-9.]+  middle half .* of 2  loss [0-9]'
    report "a worker that dies, with its last words" has '^b ended with 1: .*at or before SUMSQ'
    report "a worker that does not start, by name" has '^none did not start: none ended with 1'
    report "sides that failed make it exit 1, and the file has all lines" [ $rc:"$(wc -l <"$dir/turns")" = 1:3 ]
    run python3 "$top/bench/turns.py" --rounds 1 --warm-up 0 a="$worker" b="$worker"
    report "the paired ratio of two sides" has '^b/a [0-9.]+  p10 .* of 1 pairs'
    cat >"$dir/step.csv" <<'END'
==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","1","fill(int *)","(1, 1, 1)","gpu__time_duration.sum","us","7"
"1","1","void norm<float>(float *, int)","(8, 1, 1)","gpu__time_duration.sum","ns","1,000"
"2","1","void norm<float>(float *, int)","(8, 1, 1)","gpu__time_duration.sum","ns","1,000"
"3","1","adam","(4, 1, 1)","gpu__time_duration.sum","ms","1"
"4","1","void norm<float>(float *, int)","(8, 1, 1)","gpu__time_duration.sum","ns","3,000"
"5","1","void norm<float>(float *, int)","(8, 1, 1)","gpu__time_duration.sum","ns","5,000"
"6","1","adam","(4, 1, 1)","dram__bytes.sum","Mbyte","3,000"
"6","1","adam","(4, 1, 1)","gpu__time_duration.sum","ms","1.5"
END
    run python3 "$top/bench/kernel_sums.py" "$dir/step.csv"
    report "kernels of the last of two equal steps" has ': 1\.508 ms in 3 kernels$'
    report "kernels of one name and grid are one row" has '^ +0\.008 ms +0\.5 % +2 x +4\.0 us  norm<float> \(8, 1, 1\)$'
    report "GB/s of a kernel whose bytes were counted" has '^ +1\.500 ms .* 2000 GB/s  adam'
    sed '/"3"/d' "$dir/step.csv" >"$dir/unequal.csv"
    run python3 "$top/bench/kernel_sums.py" "$dir/unequal.csv"
    report "steps that differ are named, and every kernel counts" has 'no two equal steps at its end, so every kernel counts'

    # ---- gpu-day ----
    mkdir "$dir/tools"
    cat >"$dir/tools/ncu" <<END
#!/usr/bin/env bash
while [ "\$1" != --log-file ]; do shift; done
cp "$dir/step.csv" "\$2"; shift 2; exec "\$@"
END
    chmod +x "$dir/tools/ncu"
    rm -f "$dir"/results/*
    day() { run ROUNDS=2 PATH="$dir/tools:$PATH" "$top/tests/gpu/day.py" --simulate --step-worker "$sim/bin/step_worker" --checkkern "$sim/checkkern" \
        --train "$sim/bin/train" --results "$dir/results" "$@"; }
    day -- "$dir/engine"
    report "gpu-day ends well" [ $rc -eq 0 ]
    report "tests and measurements are written" [ "$(ls "$dir"/results | grep -cE 'simulated-GPU(-test)?\.md$')" = 2 ]
    for part in check-kernels engine two-ranks killed-rank; do
        report "$part, among the tests" grep -qE "^    $part: ok" "$dir"/results/*-test.md
    done
    for part in 124m bench-kernels 1558m llama-7b llama-7b-fp8 qwen3 olmoe fp8-losses; do
        report "$part, among the measurements" grep -qE "^    $part: done" "$dir"/results/*GPU.md
    done
    report "a step by kernel" grep -qE '^    profile ncu: +1\.500 ms .* adam' "$dir"/results/*GPU.md
    report "a missing tool is named" has '^profile: ncu done; no kernel_trace.so'
    day --seconds 1 engine 124m -- "$dir/engine"
    report "parts without time are named and not run" has '^124m: not run, 1 s of 1 are left and it needs 2'
    day engine user -- "$dir/broken"
    report "a failed part fails the day, and the others run" [ $rc:"$(grep -cE '^(engine: FAILED|user: ok)' "$dir/out")" = 1:2 ]
    run timeout -s TERM 3 "$top/tests/gpu/day.py" --simulate --step-worker "$sim/bin/step_worker" --checkkern "$sim/checkkern" \
        --train "$sim/bin/train" --results "$dir/results" 124m engine -- "$dir/engine"
    report "a day that is stopped says where and writes what it has" grep -q '^    stopped in ' "$dir"/results/*-test.md
else
    n=$((n + 1)); echo "ok $n - bench-gpu # SKIP no python3"
fi
echo "1..$n"
