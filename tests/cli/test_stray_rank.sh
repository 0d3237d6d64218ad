#!/usr/bin/env bash
# test_stray_rank.sh - variables that are left over in a shell or pod start a rank alone. The rank says soon which rank it waits
# for and which variables made the job. It ends after comm_timeout_s and names the remedy. Each family of variables and each
# transport is tried. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
trap 'kill -9 $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
for name in $(compgen -e | grep -E '^(RANK|WORLD_SIZE|LOCAL_|CROSS_|GROUP_|MASTER_|OMPI_|PMI_|MPI_LOCAL|SLURM_|DSC_LAUNCHER_PID|DSC_JOB_TOKEN|DSC_COMM$)'); do
    unset "$name"
done

seq 1 2000 | tr '\n' ' ' >text.txt
config() { # FILE MEMBERS
    cat >"$1" <<END
{"train_micro_batch_size_per_gpu": 1, "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 16, "steps": 1, "threads": 1$2}}
END
}
config plain.json ''
config short.json ', "comm_timeout_s": 1'
token=DSC_JOB_TOKEN=0123456789abcdef0123456789abcdef other_token=DSC_JOB_TOKEN=fedcba9876543210fedcba9876543210
port=$((20000 + $$ % 20000))

# Most of the time is waiting, so all ranks wait at once; each has a port of its own.
names=() codes=() waits=() said=()
alone() { # NAME CODE WAITS-FOR VARIABLES SETTING...: exit code, the rank that is waited for, both variables as messages name them
    local i=${#names[@]}
    names+=("$1") codes+=("$2") waits+=("$3") said+=("$4")
    shift 4
    { # its exit code and seconds
        local before
        before=$(date +%s)
        env MASTER_PORT=$((port + i)) "$@" timeout 60 "$bin/train" --config short.json >"$i.out" 2>&1
        echo "$? $(($(date +%s) - before))" >"$i.end"
    } &
}
as_expected() { # NUMBER
    local seconds
    cp "$1.out" out
    read -r code seconds <"$1.end"
    [ "$code" -eq "${codes[$1]}" ] || fail "exit $code, not ${codes[$1]}" || return 1
    [ "$seconds" -lt "$slowest" ] || fail "$seconds s" || return 1
    [ -z "${waits[$1]}" ] || grep -q "^dsc: warning: .*waits for ${waits[$1]} to come; the environment has ${said[$1]}" out ||
        fail "no line while it waits" || return 1
    grep -q "^dsc: error: .*${said[$1]}.*unset both" out || fail "no remedy with the variables"
}
slowest=$([ -n "${DSC_TEST_STRICT:-}" ] && echo 20 || echo 60)
plain="RANK=0 and WORLD_SIZE=2"
alone "RANK and WORLD_SIZE" 5 "rank 1 of 2" "$plain" RANK=0 WORLD_SIZE=2
alone "a rank other than 0" 5 "rank 0 of 2" "RANK=1 and WORLD_SIZE=2" RANK=1 WORLD_SIZE=2
alone "variables of torchrun" 5 "rank 1, 2, 3 of 4" "RANK=0 and WORLD_SIZE=4" RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 \
    GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=localhost
alone "variables of Open MPI" 5 "rank 1 of 2" "OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=2" \
    OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2
alone "variables of PMI" 5 "rank 0 of 2" "PMI_RANK=1 and PMI_SIZE=2" PMI_RANK=1 PMI_SIZE=2
alone "variables of Slurm" 5 "rank 1 of 2" "SLURM_PROCID=0 and SLURM_STEP_NUM_TASKS=2" SLURM_JOB_ID=77 SLURM_PROCID=0 \
    SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 SLURM_STEP_NUM_NODES=1

for transport in shm tcp hier gloo; do
    if [ $transport = gloo ] && [ ! -e "${DSC_LIB:-$root/lib}/dsc/libdsc_gloo.so" ]; then skip "$transport: rank 0 alone" "gloo is not built"; continue; fi
    alone "$transport: rank 0 alone" 5 "rank 1 of 2" "$plain" DSC_COMM=$transport $token RANK=0 WORLD_SIZE=2
    alone "$transport: rank 1 alone" 5 "rank 0 of 2" "RANK=1 and WORLD_SIZE=2" DSC_COMM=$transport $other_token RANK=1 WORLD_SIZE=2
done
if [ -e "${DSC_LIB:-$root/lib}/dsc/libdsc_mpi.so" ]; then
    alone "mpi: a process that mpirun did not start" 2 "" "$plain" DSC_COMM=mpi RANK=0 WORLD_SIZE=2
else
    skip "mpi: a process that mpirun did not start" "mpi is not built"
fi
alone "several hosts without a token" 2 "" "$plain" RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost
alone "an unknown MASTER_ADDR" 2 "" "$plain" $token RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=no-such-host.invalid

# The other process of mpirun starts no MPI. A thread of its own makes the calls of MPI with overlap_comm, and the rank ends
# itself; else the rank waits inside MPI, and mpirun ends it.
overlap=', "comm_timeout_s": 1}, "zero_optimization": {"stage": 2, "overlap_comm": true'
config overlap.json "$overlap"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
without_partner() { # CONFIG
    timeout 60 mpirun --bind-to none -np 1 "$bin/train" --comm mpi --config "$1" : -np 1 sleep 4 >"$1.out" 2>&1 </dev/null
    echo "$?" >"$1.end"
}
partner_as_expected() { # CONFIG WORDS
    cp "$1.out" out
    read -r code <"$1.end"
    [ "$code" -ne 0 ] && grep -q "rank 0 waits for rank 1 of 2 to come; the environment has OMPI_COMM_WORLD_RANK=0" out && grep -q "$2" out
}
mpi=false
[ -e "${DSC_LIB:-$root/lib}/dsc/libdsc_mpi.so" ] && mpirun --version 2>/dev/null | grep -q 'Open MPI' && mpi=true
$mpi && { without_partner short.json & without_partner overlap.json & }
wait
for i in "${!names[@]}"; do report "${names[i]}" as_expected "$i"; done
if $mpi; then
    report "mpi: a partner that does not come" partner_as_expected short.json 'waits for'
    report "mpi: a partner that does not come, with overlap: the rank ends itself" partner_as_expected overlap.json \
        'dsc: error: .*OMPI_COMM_WORLD_SIZE=2.*unset both'
else
    skip "mpi: a partner that does not come" "no Open MPI here"
fi
no_local_rank() {
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 "$bin/train" --config short.json >out 2>&1
    code=$?
    [ $code -eq 2 ] && grep -q '^dsc: error: LOCAL_RANK: not set; .*to run alone, unset RANK and WORLD_SIZE' out
}
report "another host and no LOCAL_RANK: the remedy for a run alone" no_local_rank

# Without comm_timeout_s a rank waits for a minute, and the line comes within 5 s.
within_5_s() {
    local i most=$([ -n "${DSC_TEST_STRICT:-}" ] && echo 50 || echo 250)
    RANK=0 WORLD_SIZE=2 MASTER_PORT=$port "$bin/train" --config plain.json >out 2>&1 &
    for ((i = 0; i < most; i++)); do
        grep -q "rank 0 waits for rank 1 of 2 to come; the environment has $plain" out && break
        sleep 0.1
    done
    kill $!
    wait $! 2>/dev/null
    [ $i -lt $most ]
}
report "the line comes within 5 s" within_5_s

# All ranks of dsc-launch have the variables too, and none is alone.
launched() {
    "$bin/dsc-launch" --num_gpus 2 train --config short.json >out 2>&1 </dev/null
    code=$?
    [ $code -eq 0 ] && ! grep -q 'environment has' out
}
report "ranks of dsc-launch do not name the variables" launched
end_of_tests
