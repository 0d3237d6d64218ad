#!/usr/bin/env bash
# test_bench_peers.sh - a bench whose peer is missing measures what needs none, says in one line what and how to get it, and ends with
# 77; never a traceback. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
worker=$(ls -t "$root"/build/*/bench/step_worker 2>/dev/null | head -n 1)
python=$(python3 -c 'import sys; print(sys.executable)')
mkdir "$tmp/path" # nothing else is found

bench() { # SCRIPT ARGS...
    code=0
    timeout 120 env PATH="$tmp/path" PYTHONDONTWRITEBYTECODE=1 "$python" "$root/bench/$1.py" "${@:2}" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
skips() { # NAME WORDS: exit 77, and the last line says so
    [ $code -eq 77 ] && [ ! -s "$tmp/err" ] && [ "$(grep -c ': skipped: ' "$tmp/out")" -eq 1 ] &&
        tail -n 1 "$tmp/out" | grep -q "^$1: skipped: .*$2"
}

name="bench-ckpt without fio: a save and a load alone"
if [ -n "$worker" ]; then
    bench bench_ckpt "$(dirname "$worker")" "$bin/train" "$tmp" --model gpt2-nano --rounds 1 files
    report "$name" skips bench-ckpt "apt-get install fio"
    report "and each has its figure" [ "$(grep -cE '^(save|load|load, idle memory): ' "$tmp/out")" -eq 3 ]
else
    skip "$name" "no step_worker (make bench-ckpt builds it)"
fi
bench bench_train none ""; report "bench-train without PEERS" skips bench-train "PEERS=DIR is needed"
bench bench_train none "$tmp"; report "and with one that has no Python" skips bench-train "venv/bin/python"
bench bench_comm none --comm mpi; report "bench-comm of MPI without mpirun" skips bench-comm openmpi-bin
bench bench_comm none --peers "$tmp"; report "and with PEERS that has no Python" skips bench-comm "venv/bin/python"
for needs in "bench_generate bench-generate torch" "bench_adam_peer bench-adam deepspeed"; do
    # shellcheck disable=SC2086 # three words
    set -- $needs
    name="$2 by a Python without $3"
    if "$python" -c "import $3" 2>/dev/null; then skip "$name" "this one has it"; continue; fi
    bench "$1" none
    report "$name" skips "$2" "$3"
done
end_of_tests
