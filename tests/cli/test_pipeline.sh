#!/usr/bin/env bash
# test_pipeline.sh - stages of a pipeline as processes: the numbers of one rank, checkpoints at other grids, a killed
# rank, the plan of each stage, and sizes that do not work. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more ranks than cores
awk 'BEGIN { x = 7; for (i = 0; i < 9000; i++) { x = (x * 1103515245 + 12345) % 2147483648
    printf "%s%s", substr("abcdefghijklmnopqrstuvwxyz", int(x / 65536) % 26 + 1, 1 + i % 3), i % 5 ? "" : " " } }' >text.txt
cat >config.json <<END
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.1}}, "zero_optimization": {"stage": 2},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 32, "threads": 1, "comm_timeout_s": 60,
  "reproducible": "world_size"}}
END
# life NAME RANKS STAGES STEPS [FLAGS]
life() {
    local name=$1 ranks=$2 stages=$3 steps=$4
    shift 4
    timeout 100 "$bin/dsc-launch" --num_gpus="$ranks" train --config config.json --pipeline-ranks "$stages" \
        --steps "$steps" --save "$name.save" --log "$name.jsonl" "$@" >"$name.out" 2>&1 </dev/null
}
numbers() { sed -nE 's/^\{"step":([0-9]+),"loss":([^,]*),.*"grad_norm":([^,]*),.*\}$/\1 \2 \3/p' "$1.jsonl"; }
hash_of() { "$bin/dsc" ckpt hash "$1.save/step-4"; }

one_rank() { life one 1 1 4 && numbers one >one.numbers && [ "$(wc -l <one.numbers)" = 4 ]; }
report "one rank trains" one_rank
same() { # NAME RANKS STAGES
    life "$@" 4 && grep -q "grid: pipeline $3 x data $(($2 / $3))" "$1.out" &&
        grep -q "x $(($2 / $3)) rank" "$1.out" && numbers "$1" | cmp - one.numbers && [ "$(hash_of "$1")" = "$(hash_of one)" ]
}
report "two stages have its losses, norms and checkpoint" same two 2 2
report "two stages of two data ranks too" same grid 4 2
report "and four stages" same four 4 4
goes_on() {
    cp -r two.save on.save && rm -rf on.save/step-4 && life half 4 2 2 && cp -r half.save on2.save &&
        life on2 1 1 4 --load on2.save && [ "$(hash_of on2)" = "$(hash_of one)" ] && numbers on2 | cmp - <(tail -2 one.numbers)
}
report "a save by four ranks in two stages continues at one rank" goes_on

killed() {
    timeout 100 "$bin/dsc-launch" --num_gpus=4 train --config config.json --pipeline-ranks 2 --steps 100000 \
        --log killed.jsonl >killed.out 2>&1 </dev/null &
    local launcher=$! rank= i
    for i in $(seq 200); do
        [ "$(wc -l 2>/dev/null <killed.jsonl)" -ge 2 ] 2>/dev/null && break
        sleep 0.1
    done
    for rank in /proc/[0-9]*; do # a rank works in this folder
        [ "$(readlink "$rank/cwd" 2>/dev/null)" = "$tmp" ] &&
            tr '\0' '\n' <"$rank/environ" 2>/dev/null | grep -qx RANK=3 && kill -9 "${rank##*/}"
    done
    wait "$launcher"
    [ $? = 137 ] && grep -q "rank 3 (stage 1, data rank 1, host localhost, pid [0-9]*) was killed by SIGKILL" killed.out
}
report "a killed rank of the last stage ends the job with its name and its places on the axes" killed

"$bin/dsc" plan --config config.json --model gpt2-nano --world-size 4 >plan.one
planned() {
    sed 's/"reproducible"/"grid": {"pipeline": 2}, "reproducible"/' config.json >two.json
    "$bin/dsc" plan --config two.json --world-size 4 >plan.out && grep -q "grid: pipeline 2 x data 2" plan.out &&
        grep -q "stage 0 *embedding *h.1" plan.out && grep -q "stage 1 *h.2 *head" plan.out && ! grep -q grid: plan.one
}
report "dsc plan prints the grid and each stage" planned
refused() {
    ! life odd 3 2 1 && grep -q "2 stages do not divide 3 ranks; sizes that work: 1, 3 stages, or 2, 4, 6, ... ranks" odd.out
}
report "stages that do not divide the ranks are refused with sizes that work" refused
dry() { # the grid of a flag, of a config, none of another program
    "$bin/dsc-launch" --dry-run --num_gpus=4 train --config config.json --pipeline-ranks=2 >dry.out &&
        grep -q '"grid":{"pipeline":2,"data":2,' dry.out &&
        grep -q '"rank":3,.*"stage":1,"data_rank":1}' dry.out &&
        "$bin/dsc-launch" --dry-run --num_gpus=4 train --config two.json | grep -q '"pipeline":2' &&
        ! "$bin/dsc-launch" --dry-run --num_gpus=4 train --config config.json | grep -q grid &&
        ! "$bin/dsc-launch" --dry-run --num_gpus=4 other --config two.json 2>&1 | grep -q '"grid"' &&
        ! "$bin/dsc-launch" --dry-run --num_gpus=3 train --config two.json >dry.out 2>&1 &&
        grep -q "2 stages of a pipeline do not divide 3 ranks; start 2, 4, 6" dry.out
}
dry_tensor() { # the grid of DeepSpeed's section and of a flag
    sed 's/"dsc"/"tensor_parallel": {"autotp_size": 2}, "dsc"/' two.json >tensor.json
    "$bin/dsc-launch" --dry-run --num_gpus=8 train --config tensor.json >dry.out &&
        grep -q '"grid":{"pipeline":2,"data":2,"sequence":1,"tensor":2}' dry.out &&
        grep -q '"rank":3,.*"stage":0,"data_rank":1,"tensor_rank":1}' dry.out &&
        grep -q '"rank":4,.*"stage":1,"data_rank":0,"tensor_rank":0}' dry.out &&
        "$bin/dsc-launch" --dry-run --num_gpus=2 train --config config.json --tensor-ranks 2 | grep -q '"pipeline":1,"data":1,.*"tensor":2' &&
        ! "$bin/dsc-launch" --dry-run --num_gpus=6 train --config tensor.json >dry.out 2>&1 &&
        grep -q "2 tensor ranks in 2 stages do not divide 6 ranks; start 4, 8, 12" dry.out
}
report "dsc-launch --dry-run prints the grid and each rank's place in it" dry
report "the grid has tensor ranks too" dry_tensor
deepspeeds() {
    sed 's/"dsc"/"pipeline": {"stages": 2, "partition": "uniform", "activation_checkpoint_interval": 1}, "dsc"/' \
        config.json >ds.json
    timeout 100 "$bin/dsc-launch" --num_gpus=2 train --config ds.json --steps 4 --save ds.save --log ds.jsonl \
        >ds.out 2>&1 </dev/null && numbers ds | cmp - one.numbers && [ "$(hash_of ds)" = "$(hash_of one)" ]
}
report "DeepSpeed's section does the same" deepspeeds
end_of_tests
