#!/usr/bin/env bash
# test_transports.sh - training gives the same losses, norms and `dsc ckpt hash` over every transport between processes:
# shm, tcp, gloo, and mpi under mpirun without dsc-launch.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

seq -s ' ' 1 3000 | tr 0-9 a-j >text.txt
for stage in 0 1 2 3; do
    cat >"$stage.json" <<END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.1}}, "bf16": {"enabled": true},
 "zero_optimization": {"stage": $stage, "overlap_comm": true},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 16, "steps": 3, "threads": 1}}
END
done
# trains NAME STAGE COMMAND...: NAME.result
trains() {
    timeout -k 5 120 "${@:3}" --config "$2.json" --save "$1.save" --log "$1.log" >"$1.out" 2>&1 </dev/null ||
        { cp "$1.out" why; return 1; }
    sed -E 's/.*("loss":[^,]*),.*("grad_norm":[^,]*),.*/\1 \2/' "$1.log" >"$1.result" &&
        "$bin/dsc" ckpt hash "$1.save/step-3" >>"$1.result" 2>why
}
over() { # TRANSPORT STAGE
    trains "$1-$2" "$2" "$bin/dsc-launch" --num_gpus=2 train --comm "$1" && grep -q "$1" "$1-$2.out" || return 1
    cmp "$1-$2.result" shm-0.result 2>why
}
has() { # TRANSPORT: 0, or the reason in why
    "$bin/dsc" comm bench --comm "$1" --ranks 1 --mib 1 --rounds 1 >why 2>&1 || ! grep -q 'has no libdsc' why
}
report "two ranks over shm" over shm 0
for stage in 0 1 2 3; do report "the same over tcp, stage $stage" over tcp $stage; done
for stage in 1 3; do
    if has gloo; then report "the same over gloo, stage $stage" over gloo $stage; else
        skip "the same over gloo, stage $stage" "$(cat why)"
    fi
done
under_mpirun() { # NAME STAGE ARGUMENTS...
    trains "$1" "$2" mpirun --oversubscribe --bind-to none -np 2 "$bin/train" "${@:3}" && cmp "$1.result" shm-0.result
}
for stage in 0 3; do
    if ! has mpi; then skip "the same over mpi, stage $stage" "$(cat why)"
    elif ! command -v mpirun >/dev/null; then skip "the same over mpi, stage $stage" "no mpirun here"
    else report "the same over mpi, stage $stage" under_mpirun "mpi-$stage" $stage --comm mpi; fi
done
if command -v mpirun >/dev/null; then report "mpirun alone, transport by itself" under_mpirun mpirun 2; else
    skip "mpirun alone, transport by itself" "no mpirun here"
fi
end_of_tests
