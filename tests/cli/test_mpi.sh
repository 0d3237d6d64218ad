#!/usr/bin/env bash
# test_mpi.sh - ranks that mpirun started: MPI is called by one thread of each from first to last, which asks for no more
# than MPI_THREAD_FUNNELED; whatever dies, nothing stays; what cannot start says why.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
plugins=${DSC_LIB:-$root/lib}/dsc
if [ ! -e "$plugins/libdsc_mpi.so" ] || ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null; then
    skip "mpirun" "no libdsc_mpi.so, mpirun or mpicc here"
    end_of_tests
fi
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

seq -s ' ' 1 3000 | tr 0-9 a-j >text.txt
config() { # NAME STEPS ZERO
    cat >"$1.json" <<END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.002}},
 "bf16": {"enabled": true}, "zero_optimization": {$3},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 16, "steps": $2, "threads": 1, "comm_timeout_s": 5}}
END
}
mkdir nvme
config plain 2 '"stage": 1'
config overlap 2 '"stage": 3, "overlap_comm": true'
config files 2 "\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$tmp/nvme\"}"
config long 1000000 '"stage": 2, "overlap_comm": true'

knows_all_calls() {
    nm -D --undefined-only "$plugins/libdsc_mpi.so" | grep -o ' MPI_[A-Za-z_]*' | sort >called
    nm -D --defined-only spy.so | grep -o ' MPI_[A-Za-z_]*' | sort >known
    comm -23 called known >why
    [ -s called ] && [ ! -s why ]
}
# trains CONFIG THREAD: every rank's calls come from one thread, which is the program's main one or another.
one_thread() {
    local rank
    rm -f spied.*
    timeout -k 5 60 mpirun --bind-to none -np 2 -x LD_PRELOAD="$tmp/spy.so" -x DSC_MPI_SPY="$tmp/spied" "$bin/train" --comm mpi \
        --config "$1.json" >out 2>&1 </dev/null || return 1
    for rank in 0 1; do
        grep -qE "^level 1 threads 1 calls [0-9]{2,} from $2\$" spied.$rank && continue
        cat spied.* >why
        return 1
    done
}
if mpicc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -shared -fPIC -o spy.so "$root/tests/cli/spy_mpi.c" 2>why; then
    report "the spy knows all functions of MPI that are called" knows_all_calls
    report "the main thread makes all calls where it makes all calls of the engine" one_thread plain main
    report "a thread of its own makes them with overlap" one_thread overlap another
    report "and with states in files" one_thread files another
else
    report "spy_mpi.c compiles" false
fi
end_of_tests
