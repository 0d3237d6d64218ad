#!/usr/bin/env bash
# test_same_bits.sh - whole programs give equal losses, norms and `dsc ckpt hash` for any stage, overlap, recomputation,
# thread count, transport, and after kill -9 and resume. With "world_size" also for any number of ranks.
#
# Each group (ranks, precision, accumulation) has one reference run and a sample of variants; a seed (DSC_TEST_SEED)
# chooses them. DSC_TEST_NIGHT=1 runs every combination. SPDX-License-Identifier: Apache-2.0
[ -w /dev/shm ] && tap_folder=/dev/shm # the disk's speed does not matter here
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive # more threads than cores here: spinning would only take the others' time
night=${DSC_TEST_NIGHT:-0}
seed=${DSC_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "# seed $seed; rerun: DSC_TEST_SEED=$seed $0"
RANDOM=$((seed % 32768))

# Text without a period, so that every sample has its own loss.
awk 'BEGIN { x = 7; for (i = 0; i < 4000; i++) { x = (x * 1103515245 + 12345) % 2147483648
    printf "%s%s", substr("abcdefghijklmnopqrstuvwxyz", int(x / 65536) % 26 + 1, 1 + i % 3), i % 5 ? "" : " " } }' >text.txt

model=gpt2-nano
# config NAME STAGE BF16 MICRO ACCUMULATION OVERLAP RECOMPUTE THREADS REPRODUCIBLE STEPS
config() {
    cat >"$1.json" <<EOF
{"train_micro_batch_size_per_gpu": $4, "gradient_accumulation_steps": $5, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.1}}, "bf16": {"enabled": $3},
 "zero_optimization": {"stage": $2, "overlap_comm": $6},
 "dsc": {"model": "$model", "data": "$tmp/text.txt", "seq_length": 16, "steps": ${10}, "recompute": "$7",
         "threads": $8, "reproducible": "$9"}}
EOF
}
# Results that must not depend on the way of a run: loss and norm of each step as text, and the hash.
result() { # LOG CHECKPOINT
    sed -E 's/.*("loss":[^,]*),.*("grad_norm":[^,]*),.*/\1 \2/' "$1" && "$bin/dsc" ckpt hash "$2"
}
# trains NAME RANKS STEPS: NAME.result. Processes over shared memory (one rank: self).
trains() {
    rm -rf "$1.save" "$1.log"
    timeout 120 "$bin/dsc-launch" --num_gpus="$2" train --config "$1.json" --save "$1.save" --log "$1.log" \
        >"$1.out" 2>&1 </dev/null || { cp "$1.out" why; return 1; }
    result "$1.log" "$1.save/step-$3" >"$1.result" 2>why || return 1
    rm -rf "$1.save"
    [ "$(wc -l <"$1.result")" -eq $(($3 + 1)) ] && return
    { echo "$(wc -l <"$1.result") lines of results"; cat "$1.result"; } >why
    return 1
}
same() { # NAME RANKS STEPS REFERENCE
    trains "$1" "$2" "$3" || return 1
    cmp -s "$4" "$1.result" || { cat "$1.json"; diff "$4" "$1.result"; } >why 2>&1
    cmp -s "$4" "$1.result"
}
pick() { local values=("$@"); echo "${values[RANDOM % $#]}"; }

# The variants of a group, one a line: stage overlap recompute threads.
variants() {
    local stage overlap recompute threads
    for stage in 0 1 2 3; do
        if [ "$night" = 1 ]; then
            for overlap in true false; do for recompute in kept none selective full; do for threads in 1 2 3; do
                echo "$stage $overlap $recompute $threads"
            done; done; done
        elif [ "$stage" != 0 ]; then
            echo "$stage $(pick true false) $(pick kept none selective full) $(pick 1 2 3)"
        fi
    done
}
group() { # RANKS BF16 ACCUMULATION
    local stage overlap recompute threads
    config reference 0 "$2" 2 "$3" false none 1 plan 3
    trains reference "$1" 3 || return 1
    variants >list # in this shell: a subshell would not advance the seed
    while read -r stage overlap recompute threads; do
        config variant "$stage" "$2" 2 "$3" "$overlap" "$recompute" "$threads" plan 3
        same variant "$1" 3 reference.result || return 1
    done <list
}
any_world() { # BF16
    local ranks
    config reference 1 "$1" 2 8 false none 2 world_size 3
    trains reference 1 3 || return 1
    for ranks in 2 4 8; do
        config variant "$(pick 0 1 2 3)" "$1" 2 $((8 / ranks)) "$(pick true false)" "$(pick kept none selective full)" 1 world_size 3
        same variant $ranks 3 reference.result || return 1
    done
}
steps_differ() { # the lines of a result say something: every loss is another number
    [ "$(sort -u reference.result | wc -l)" -eq "$(wc -l <reference.result)" ] && grep -qE '^"loss":[0-9.]{9}' reference.result
}

# By day each number of ranks has each precision and each accumulation once.
for ranks in 1 2 3 4; do for bf16 in false true; do
    case $night:$((ranks % 2)):$bf16 in 1:*) sizes="1 4" ;; *:1:false | *:0:true) sizes=1 ;; *) sizes=4 ;; esac
    for accumulation in $sizes; do
        report "stages 0-3: $ranks ranks, bf16 $bf16, accumulation $accumulation" group $ranks $bf16 $accumulation
    done
done; done
experts() { # BF16: experts with biases, sinks and windows, of fresh weights
    echo '{"model_type": "gpt_oss", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24, "num_local_experts": 8, "num_experts_per_tok": 3,
        "sliding_window": 5, "max_position_embeddings": 32}' >experts.json
    model=$tmp/experts.json
    group 2 "$1" 2
    local status=$?
    model=gpt2-nano
    return $status
}
for bf16 in false true; do
    report "stages 0-3: mixture of experts, 2 ranks, bf16 $bf16" experts $bf16
done
report "losses are numbers with all their digits" steps_differ
for bf16 in false true; do
    report "world_size: 1, 2, 4 and 8 ranks agree, bf16 $bf16" any_world $bf16
done

# kills one rank of a run at a random moment, three times, each resumed by the next; the last one ends.
start_killed() {
    "$bin/dsc-launch" --num_gpus=3 train --config killed.json --save killed.save --load auto --log "killed.log" \
        >"killed.out" 2>&1 </dev/null &
    local launcher=$! victims
    sleep "0.$(printf %03d $((150 + RANDOM % 600)))"
    mapfile -t victims < <(ps -eo pid=,args= | awk -v dir="$tmp" '$2 ~ /train$/ { print $1 }' | while read -r pid; do
        [ "$(readlink "/proc/$pid/cwd")" = "$tmp" ] && echo "$pid"
    done)
    [ "${#victims[@]}" -gt 0 ] && kill -9 "${victims[RANDOM % ${#victims[@]}]}" 2>/dev/null && kills=$((kills + 1))
    wait "$launcher"
    return 0
}
killed_runs_end_the_same() { # STAGE
    local steps=40 tries=0
    kills=0
    config killed "$1" true 2 2 true none 1 plan $steps
    sed -i 's/"steps": /"save_every": 2, "steps": /' killed.json
    cp killed.json reference.json
    trains reference 3 $steps || return 1
    rm -rf killed.save
    while [ $kills -lt 3 ] && [ $tries -lt 8 ]; do
        start_killed 2>/dev/null
        tries=$((tries + 1))
        if [ -e killed.save/step-$steps ]; then rm -rf killed.save; fi # it ended before its kill: again from the start
    done
    timeout 120 "$bin/dsc-launch" --num_gpus=3 train --config killed.json --save killed.save --load auto --log killed.log \
        >killed.out 2>&1 </dev/null || { cp killed.out why; ls killed.save >>why; return 1; }
    result killed.log "killed.save/step-$steps" 2>why | tail -n 2 >killed.result
    tail -n 2 reference.result | cmp -s - killed.result || { cat killed.result killed.out >why; return 1; }
    [ $kills -eq 3 ] || { echo "only $kills kills reached a rank" >why; return 1; }
}
report "three times kill -9 of a rank, resumed: the same end" killed_runs_end_the_same "$(pick 1 2 3)"
# A kill between the rename of step-4 and its `latest` is rare: made by hand.
latest_is_missing() {
    local run=(timeout 120 "$bin/dsc-launch" --num_gpus=2 train --config window.json --save window.save)
    config window 2 false 2 1 true none 1 plan 4
    sed -i 's/"steps": /"save_every": 2, "steps": /' window.json
    "${run[@]}" >why 2>&1 </dev/null || return 1
    "$bin/dsc" ckpt hash window.save/step-4 >before || return 1
    echo step-2 >window.save/latest
    "${run[@]}" --load auto >why 2>&1 </dev/null || return 1
    "$bin/dsc" ckpt hash window.save/step-4 | cmp -s - before || return 1
    [ "$(cat window.save/latest)" = step-4 ] && [ "$(ls window.save | wc -l)" -eq 3 ]
}
others_step_is_kept() { # a save with another run's step-4: refused, and left as it is
    config window 2 true 2 1 true none 1 plan 4
    echo step-2 >window.save/latest
    timeout 120 "$bin/dsc-launch" --num_gpus=2 train --config window.json --save window.save --load auto >why 2>&1 </dev/null
    [ $? -eq 2 ] && grep -q 'step-4: exists already' why && "$bin/dsc" ckpt hash window.save/step-4 | cmp -s - before &&
        [ ! -e window.save/step-4.tmp ]
}
report "killed before latest was written: resumed from the one before" latest_is_missing
report "a step of another run is not replaced" others_step_is_kept
end_of_tests
