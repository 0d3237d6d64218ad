#!/usr/bin/env bash
# test_mpi.sh - ranks that mpirun started. One thread of each rank makes all MPI calls, with MPI_THREAD_FUNNELED. No
# process remains after any death, and a failed start names the reason.
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
config plain-long 1000000 '"stage": 1'
config overlap-long 1000000 '"stage": 2, "overlap_comm": true'

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

mkdir empty old
echo 'const void *dsc_mpi_api_get(void) { static const unsigned table[12] = { 1, 48 }; return table; }' >old.c
mpicc -shared -fPIC -o old/libdsc_mpi.so old.c
says() { # FOLDER WORDS
    DSC_PLUGIN_DIR=$1 "$bin/train" --comm mpi --config plain.json >out 2>&1
    code=$?
    [ $code -eq 2 ] && grep -q "dsc: error: .*$2" out
}
report "an installation without the plugin says how to get it" says "$tmp/empty" 'has no libdsc_mpi.so.*deps-net.*"tcp"'
report "one with another version says so" says "$tmp/old" 'of another version'

seed=${DSC_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$((seed % 32768))
alive() { # PROCESSES: those that exist and are not zombies
    local p
    for p in "$@"; do [[ "$(cut -d' ' -f3 "/proc/$p/stat" 2>/dev/null)" == [!Z] ]] && echo "$p"; done
}
# A death at a random moment after the start: mpirun and all processes end within 5 s. A waiting rank ends after its
# comm_timeout_s and 3 s. Without DSC_TEST_STRICT the bounds are five times as long (tests/README.md).
all_end() { # CONFIG SIGNAL
    local all=() i left limit=50
    [ "$2" != STOP ] || limit=80
    [ -n "${DSC_TEST_STRICT:-}" ] || limit=$((5 * limit))
    mpirun --bind-to none -np 2 "$bin/train" --comm mpi --config "$1.json" >out 2>&1 </dev/null &
    local job=$!
    for i in $(seq 100); do
        mapfile -t all < <(pgrep -P $job)
        [ ${#all[@]} -eq 2 ] && break
        sleep 0.05
    done
    [ ${#all[@]} -eq 2 ] || fail "mpirun started ${#all[@]} ranks" || return 1
    sleep "$((RANDOM % 2)).$((RANDOM % 90 + 10))"
    kill "-$2" "${all[RANDOM % 2]}"
    for i in $(seq "$limit"); do
        left=$(alive $job "${all[@]}")
        [ -z "$left" ] && break
        sleep 0.1
    done
    [ -z "$left" ] || { kill -KILL $left; fail "left: $left"; return 1; }
    wait $job && fail "mpirun ended with 0" && return 1
    return 0
}
night=${DSC_TEST_NIGHT:+10}
for try in $(seq "${night:-1}"); do
    echo "# try $try, seed $seed"
    for signal in ${night:+KILL STOP SEGV} KILL; do
        report "a rank ends by $signal, all end" all_end "$([ $((RANDOM % 2)) = 0 ] && echo plain || echo overlap)-long" "$signal"
    done
done
end_of_tests
