#!/usr/bin/env bash
# test_signals.sh - SIGUSR1 saves and training goes on. SIGTERM, Ctrl-C and a closed terminal save and end with 143, 130 and
# 129; the resumed run ends like one that nobody disturbed. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
trap 'kill -9 $(jobs -p) 2>/dev/null; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive

await() { # WORDS: a line of out has them, soon
    local i
    for ((i = 0; i < 3000; i++)); do
        grep -aq -- "$1" out 2>/dev/null && return 0
        sleep 0.02
    done
    fail "\"$1\" never came"
}

mkdir model
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}' >model/config.json
seq 1 9000 | tr '\n' ' ' >text.txt
cat >config.json <<END
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002}},
 "dsc": {"model": "$tmp/model", "data": "$tmp/text.txt", "seq_length": 16, "threads": 1}}
END
launch() { # RANKS STEPS FLAG...: $! is dsc-launch
    local ranks=$1 steps=$2
    shift 2
    rm -f out
    "$bin/dsc-launch" --num_gpus="$ranks" train --config config.json --steps "$steps" "$@" >out 2>&1 </dev/null &
}
ranks_of() { # FOLDER: process numbers of the ranks of its run
    ps -eo pid=,args= | awk '$2 ~ /train$/ { print $1 }' | while read -r pid; do
        [ "$(readlink "/proc/$pid/cwd")" = "$tmp" ] && echo "$pid"
    done
}
ended() { # PID CODE
    wait "$1"
    local code=$?
    [ $code -eq "$2" ] || fail "ended with $code, not $2"
}

save_and_go_on() {
    launch 2 1000000 --save save --log log.jsonl
    local pid=$!
    await '^step 3/' || return 1
    kill -USR1 $pid
    await '^saved step' || return 1
    local step
    step=$(sed -nE 's/^saved step ([0-9]+) .*/\1/p' out)
    await "^step $((step + 3))/" || return 1
    "$bin/dsc" ckpt verify "save/step-$step" >>why 2>&1 || return 1
    # One rank of the job is asked: the whole job saves, once.
    kill -USR1 "$(ranks_of | tail -n 1)"
    for ((i = 0; i < 1000; i++)); do
        [ "$(grep -ac '^saved step' out)" -ge 2 ] && break
        sleep 0.02
    done
    [ "$(grep -ac '^saved step' out)" -eq 2 ] || fail "$(grep -ac '^saved step' out) saves" || return 1
    kill -TERM $pid
    ended $pid 143 || return 1
    step=$(sed -nE 's/^saved step ([0-9]+) .*/\1/p' out | tail -n 1)
    [ "$(cat save/latest)" = "step-$step" ] || fail "latest is $(cat save/latest), saved was $step" || return 1
    grep -aq "SIGTERM: ended at step $step" out || fail "no word of the end" || return 1
    [ -z "$(ranks_of)" ] || fail "ranks stay" || return 1
    [ "$(wc -l <log.jsonl)" -eq "$step" ] || fail "$(wc -l <log.jsonl) lines of log for $step steps"
}
same_end() {
    local step=$(($(sed 's/step-//' save/latest) + 3))
    launch 2 $step --save save --load auto
    ended $! 0 || return 1
    launch 2 $step --save calm
    ended $! 0 || return 1
    [ "$("$bin/dsc" ckpt hash "save/step-$step")" = "$("$bin/dsc" ckpt hash "calm/step-$step")" ] || fail "other hash"
}
one_process() {
    rm -rf save out
    "$bin/train" --config config.json --steps 1000000 --save save >out 2>&1 </dev/null &
    local pid=$!
    await '^step 3/' || return 1
    kill -TERM $pid
    ended $pid 143 || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1
}
# A job of this script in the background ignores Ctrl-C, so env gives `train` the terminal's defaults.
interrupted() { # SIGNAL CODE
    rm -rf save out
    env --default-signal="$1" "$bin/train" --config config.json --steps 1000000 --save save >out 2>&1 </dev/null &
    local pid=$!
    await '^step 3/' || return 1
    kill -"$1" $pid
    ended $pid "$2" || return 1
    grep -aqE "SIG$1: ended at step [0-9]+, which is saved" out || fail "no word of the end" || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1
}
interrupted_ranks() { # SIGNAL CODE: the launcher passes the signal to its ranks once
    rm -rf save out
    env --default-signal="$1" "$bin/dsc-launch" --num_gpus=2 train --config config.json --steps 1000000 --save save \
        >out 2>&1 </dev/null &
    local pid=$!
    await '^step 3/' || return 1
    kill -"$1" $pid
    ended $pid "$2" || return 1
    [ -z "$(ranks_of)" ] || fail "ranks stay" || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1
}
ignored() { # nohup ignores SIGHUP
    rm -rf save out
    env --ignore-signal=HUP "$bin/train" --config config.json --steps 1000000 --save save >out 2>&1 </dev/null &
    local pid=$! step
    await '^step 3/' || return 1
    kill -HUP $pid
    step=$(sed -nE 's/^step ([0-9]+)\/.*/\1/p' out | tail -n 1)
    await "^step $((step + 3))/" || return 1
    kill -TERM $pid
    ended $pid 143
}
second_interrupt() {
    rm -rf save out
    env --default-signal=INT "$bin/train" --config config.json --gradient-accumulation-steps 1000000 --steps 2 --save save \
        >out 2>&1 </dev/null &
    local pid=$!
    await '^plan per rank' || return 1
    sleep 0.3
    kill -INT $pid
    sleep 0.3
    kill -INT $pid || fail "it had ended already: the test proves nothing" || return 1
    ended $pid 130 || return 1
    [ ! -e save/latest ] || fail "saved, so it was no second signal that ended it"
}
nowhere_to_save() {
    rm -f out
    "$bin/train" --config config.json --steps 1000000 >out 2>&1 </dev/null &
    local pid=$!
    await '^step 3/' || return 1
    kill -USR1 $pid
    await 'SIGUSR1: nothing is saved; start with --save DIR' || return 1
    kill -TERM $pid
    ended $pid 143
}
twice() {
    rm -rf save out
    "$bin/train" --config config.json --steps 1000000 --save save >out 2>&1 </dev/null &
    local pid=$!
    await '^step 3/' || return 1
    kill -TERM $pid
    await '^saved step' || return 1
    kill -TERM $pid 2>/dev/null # too late or just in time: 143 in both
    ended $pid 143
}
# scancel's SIGTERM reaches a rank twice: as a task of its step, and passed on by the srun that the batch script is. A step
# must outlast the time between both by far: 0.8 s on a core that makes 160,000 tokens a second.
at_once() {
    rm -rf save out
    "$bin/train" --config config.json --gradient-accumulation-steps 8000 --steps 1000000 --save save >out 2>&1 </dev/null &
    local pid=$!
    await '^step 1/' || return 1
    kill -TERM $pid
    sleep 0.1
    kill -TERM $pid || fail "it had ended already: the test proves nothing" || return 1
    ended $pid 143 || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1
}
# But who means it is not kept waiting for a step that takes long.
insisting() {
    rm -rf save out
    "$bin/train" --config config.json --gradient-accumulation-steps 1000000 --steps 2 --save save >out 2>&1 </dev/null &
    local pid=$!
    await '^plan per rank' || return 1
    sleep 0.3
    kill -TERM $pid
    sleep 2.1
    kill -TERM $pid || fail "it had ended already: the test proves nothing" || return 1
    ended $pid 143 || return 1
    [ ! -e save/latest ] || fail "saved, so it was no second signal that ended it"
}

report "SIGUSR1 to the launcher or to one rank saves and training goes on; SIGTERM saves and ends" save_and_go_on
report "resumed, it ends like a run that nobody disturbed" same_end
report "train by itself: SIGTERM saves and ends" one_process
report "train by itself: Ctrl-C saves and ends with 130" interrupted INT 130
report "train by itself: a closed terminal saves and ends with 129" interrupted HUP 129
report "under the launcher: Ctrl-C saves and ends with 130" interrupted_ranks INT 130
report "under the launcher: a closed terminal saves and ends with 129" interrupted_ranks HUP 129
report "an ignored SIGHUP, as under nohup, stays ignored" ignored
report "a second Ctrl-C ends the run at once" second_interrupt
report "without --save: SIGUSR1 says so, SIGTERM ends" nowhere_to_save
report "a second SIGTERM" twice
report "two SIGTERMs at once are one" at_once
report "a second SIGTERM two seconds later ends the run at once" insisting
end_of_tests
