#!/usr/bin/env bash
# test_tensor.sh - tensor ranks as processes: losses beside one rank, checkpoints at other grids, a killed rank, the
# plan's bytes, and sizes that do not work. Where transformers is installed (DSC_TEST_PYTHON), also training from its
# folders and the export that it reads. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more ranks than cores
awk 'BEGIN { x = 7; for (i = 0; i < 9000; i++) { x = (x * 1103515245 + 12345) % 2147483648
    printf "%s%s", substr("abcdefghijklmnopqrstuvwxyz", int(x / 65536) % 26 + 1, 1 + i % 3), i % 5 ? "" : " " } }' >text.txt
cat >config.json <<END
{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}}, "zero_optimization": {"stage": 2},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "eval_data": "$tmp/text.txt", "eval_batches": 2, "seq_length": 32,
  "threads": 1, "comm_timeout_s": 60, "reproducible": "world_size"}}
END
# life NAME RANKS TENSOR STEPS [FLAGS]
life() {
    local name=$1 ranks=$2 tensor=$3 steps=$4
    shift 4
    timeout 100 "$bin/dsc-launch" --num_gpus="$ranks" train --config "${config:-config.json}" --tensor-ranks "$tensor" \
        --steps "$steps" --save "$name.save" --log "$name.jsonl" "$@" >"$name.out" 2>&1 </dev/null
}
losses() { sed -nE 's/^\{"step":([0-9]+),"loss":([^,]*),.*"grad_norm":([^,]*),.*\}$/\1 \2 \3/p' "$1.jsonl"; }
# near A B FIRST: losses of A, from step FIRST on, are B's within 1e-5 of them, and norms within 1e-4
near() {
    paste -d' ' <(losses "$1") <(losses "$2" | awk -v first="$3" '$1 >= first') | awk '
        function apart(a, b) { return a > b ? (a - b) / b : (b - a) / b }
        NF != 6 || $1 != $4 || apart($2, $5) > 1e-5 || apart($3, $6) > 1e-4 { bad = 1; print }
        END { exit bad || NR == 0 }' >why
}
one_rank() { life one 1 1 6 && [ "$(losses one | wc -l)" = 6 ]; }
report "one rank trains" one_rank
beside() { # NAME RANKS TENSOR
    life "$@" 6 && grep -q "tensor $3" "$1.out" && near "$1" one 1
}
report "two tensor ranks have its losses and norms" beside two 2 2
report "two of two data ranks too" beside grid 4 2
report "and four tensor ranks" beside four 4 4
evaluates() { # the last evaluation of each run, in six digits
    local name
    for name in one two; do
        sed -nE 's/.*validation loss ([0-9.]+) .*/\1/p' "$name.out" | tail -n 1 >"$name.eval"
        [ -s "$name.eval" ] || fail "$name has no validation loss" || return 1
    done
    paste one.eval two.eval | awk '{ d = ($1 - $2) / $1; exit d > 1e-5 || d < -1e-5 }'
}
report "evaluation has one rank's loss" evaluates

short() { # samples of 16 tokens, then of all 32
    sed 's/"dsc"/"curriculum_learning": {"enabled": true, "min_difficulty": 16, "max_difficulty": 32, "schedule_type":'`
        `' "fixed_linear", "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 8}}, "dsc"/' config.json >short.json
    config=short.json life short.one 1 1 6 && config=short.json life short.two 2 2 6 &&
        near short.two short.one 1 && ! cmp -s short.one.jsonl one.jsonl
}
report "curriculum learning has one rank's losses" short

life half 4 2 3 # the first save of those that follow
goes_on() {     # NAME RANKS TENSOR: from half's save at another grid
    cp -r half.save "$1.save" && life "$1" "$2" "$3" 6 --load "$1.save" && near "$1" one 4
}
report "a save by 2 x 2 ranks continues at one rank" goes_on alone 1 1
report "and at two data ranks" goes_on data 2 1
report "and at four tensor ranks" goes_on tensor 4 4
names_ranks() { # a save's tensor ranks, and a resume that has others
    "$dsc" ckpt verify half.save/step-3 && grep -q '"tensor_ranks":2' half.save/step-3/manifest.json &&
        ! grep -q tensor_ranks one.save/step-6/manifest.json &&
        grep -q "dsc.grid.tensor was 2 in the saved run and is 4; bits may differ" tensor.out &&
        grep -q "dsc.grid.tensor was 2 in the saved run and is 1; bits may differ" alone.out
}
report "the save is whole and names its tensor ranks, and a resume with others says so" names_ranks

killed() {
    timeout 100 "$bin/dsc-launch" --num_gpus=4 train --config config.json --tensor-ranks 2 --steps 100000 \
        --log killed.jsonl >killed.out 2>&1 </dev/null &
    local launcher=$! rank i
    for i in $(seq 300); do
        [ "$(wc -l 2>/dev/null <killed.jsonl)" -ge 2 ] 2>/dev/null && break
        sleep 0.1
    done
    for rank in /proc/[0-9]*; do # a rank works in this folder
        [ "$(readlink "$rank/cwd" 2>/dev/null)" = "$tmp" ] &&
            tr '\0' '\n' <"$rank/environ" 2>/dev/null | grep -qx RANK=3 && kill -9 "${rank##*/}"
    done
    wait "$launcher"
    code=$?
    cp killed.out out
    [ "$code" = 137 ] &&
        grep -q "rank 3 (data rank 1, tensor rank 1, host localhost, pid [0-9]*) was killed by SIGKILL" killed.out
}
report "a killed tensor rank ends the job with its name and its places on the axes" killed
code=0

# A rank is killed while saves go on at every step: whatever is there is whole, and a rank alone continues from it.
killed_while_saving() {
    local launcher rank i last
    timeout 100 "$bin/dsc-launch" --num_gpus=4 train --config config.json --tensor-ranks 2 --steps 100000 \
        --save kill.save --save-every 1 --log kill.jsonl >out 2>&1 </dev/null &
    launcher=$!
    for i in $(seq 300); do
        [ -e kill.save/step-2 ] && break
        sleep 0.1
    done
    for rank in /proc/[0-9]*; do
        [ "$(readlink "$rank/cwd" 2>/dev/null)" = "$tmp" ] &&
            tr '\0' '\n' <"$rank/environ" 2>/dev/null | grep -qx RANK=1 && kill -9 "${rank##*/}"
    done
    wait "$launcher"
    code=$?
    [ "$code" = 137 ] && last=$(cat kill.save/latest) && "$dsc" ckpt verify "kill.save/$last" >out 2>&1 &&
        life after 1 1 $((${last#step-} + 1)) --load "kill.save/$last" && grep -q "resumed at step" after.out
}
report "a rank that is killed between saves of every step leaves a whole one, which one rank continues" killed_while_saving
code=0

planned() { # a sum of 2 (T - 1) / T of its elements, four for a block, and one each for table and head
    sed 's/"reproducible"/"grid": {"tensor": 2}, "reproducible"/' config.json >two.json
    "$dsc" plan --config two.json --world-size 2 --json >plan.json && grep -q '"tensor":2' plan.json &&
        grep -qE '"tensor_sent_bytes":[1-9]' plan.json &&
        "$dsc" plan --config two.json --world-size 2 | grep -q "tensor MiB/step"
}
report "dsc plan prints the bytes along the tensor axis" planned
refused() { ! life odd 3 2 1 && grep -q "2 tensor ranks do not divide 3 ranks" odd.out; }
report "tensor ranks that do not divide the ranks are refused" refused

python=${DSC_TEST_PYTHON:-/usr/bin/python3}
if "$python" -c 'import torch, transformers' 2>/dev/null; then
    beside_transformers() { "$python" "$root/tests/cli/tensor_test.py" "$bin" "$1" >out 2>&1; }
    report "a folder of Llama with copied heads trains as transformers does, and the export goes back" beside_transformers llama
    report "and a folder of GPT-2 with a tied table" beside_transformers gpt2
else
    skip "folders of transformers" "transformers is not installed (DSC_TEST_PYTHON names a python that has it)"
fi
end_of_tests
