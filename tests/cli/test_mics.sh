#!/usr/bin/env bash
# test_mics.sh - MiCS between processes. Losses and checkpoint are equal for groups inside a host and for hosts of one
# rank each (tcp). Any other run loads the files of one copy, and `dsc plan` predicts the memory.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 DSC_JOB_TOKEN=0123456789abcdef0123456789abcdef
seq -s ' ' 1 3000 | tr 0-9 a-j >text.txt
config() { # NAME STAGE ZERO
    cat >"$1.json" <<END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.1}}, "bf16": {"enabled": true},
 "zero_optimization": {"stage": $2, "overlap_comm": true$3},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 16, "threads": 1}}
END
}
config plain 3 ''
config mics 3 ', "mics_shard_size": 2'
config other 1 ''
result() { sed -E 's/.*("loss":[^,]*),.*("grad_norm":[^,]*),.*/\1 \2/' "$1.log" >"$1.result" && "$bin/dsc" ckpt hash "$1.save/step-3" >>"$1.result"; } # NAME
trains() { # NAME CONFIG ARGUMENTS...
    timeout -k 5 120 "$bin/dsc-launch" --num_gpus=4 train --config "$2.json" --steps 3 --save "$1.save" --log "$1.log" "${@:3}" >"$1.out" 2>&1 </dev/null &&
        result "$1" || { cp "$1.out" why; return 1; }
}
apart() { # NAME CONFIG: four ranks that say they are hosts
    local port=$((20000 + RANDOM % 9000)) r bad=0 pids=()
    for r in 0 1 2 3; do
        RANK=$r WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=$r GROUP_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            timeout -k 5 120 "$bin/train" --config "$2.json" --steps 3 --save "$1.save" --log "$1.log" >"$1.$r.out" 2>&1 </dev/null &
        pids+=($!)
    done
    for r in "${pids[@]}"; do wait "$r" || bad=1; done
    cat "$1".?.out >why
    [ $bad = 0 ] && result "$1"
}
report "four ranks" trains plain plain
report "in two groups" trains mics mics
first() { head -1 "$1.result" | cut -d' ' -f1; } # NAME
report "the first loss is the same" [ "$(first plain)" = "$(first mics)" ]
near() { # losses of all steps within rounding, in bf16
    paste plain.result mics.result | head -3 | awk -F'[: \t]' '{ d = $2 / $6 - 1; if (d < 0) d = -d; if (d > 2e-3) exit 1 }'
}
report "and the others are close" near
report "again: the same bits" eval 'trains again mics && cmp mics.result again.result'
report "every rank a host of its own" apart hosts mics
report "talks over tcp" grep -q '(tcp)' hosts.0.out
report "the same bits there" cmp mics.result hosts.result
report "the checkpoint is whole" "$bin/dsc" ckpt verify mics.save/step-3
loads() { # CONFIG NAME: goes on from the two groups' checkpoint
    timeout -k 5 120 "$bin/dsc-launch" --num_gpus="$3" train --config "$1.json" --steps 4 --load mics.save --log "$2.log" >why 2>&1 </dev/null
}
report "two ranks at stage 1 go on from it" loads other stage1 2
report "four in groups do" loads mics groups 4

# ---- the plan ----
plan() { "$bin/dsc" plan --config "$1.json" --model gpt2-124m --world-size 8 --json >"$1.plan" 2>why; } # NAME
field() { sed -E "s/.*\"$2\":([0-9]+).*/\1/" "$1.plan"; }
config eight 3 '' && config four 3 ', "mics_shard_size": 4' && plan eight && plan four
report "states of half as many shards" awk -v a="$(field eight model_states_bytes)" -v b="$(field four model_states_bytes)" 'BEGIN { exit !(b > 1.98 * a && b < 2.02 * a) }'
refused() { # ZERO WORDS
    config bad "$1" "$2"
    "$bin/dsc-launch" --num_gpus=4 train --config bad.json --steps 1 >out 2>why </dev/null
    [ $? -eq 2 ] && [ "$(grep -c '^dsc: error:' why)" -eq 1 ] && grep -qF "$3" why
}
report "groups that do not divide the ranks" refused 3 ', "mics_shard_size": 3' '3 does not divide 4 ranks'
report "another stage" refused 2 ', "mics_shard_size": 2' 'MiCS is stage 3 within groups of ranks, not stage 2'
end_of_tests
