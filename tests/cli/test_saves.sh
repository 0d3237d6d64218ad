#!/usr/bin/env bash
# test_saves.sh - saves of a run: asynchronous saves, a full disk, and --load latest.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive

mkdir model
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}' >model/config.json
seq 1 900 | tr '\n' ' ' >text.txt
cat >config.json <<END
{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002}},
 "dsc": {"model": "$tmp/model", "data": "$tmp/text.txt", "seq_length": 16, "threads": 1}}
END
launch() { # CODE RANKS FLAG...
    local wanted=$1 ranks=$2
    shift 2
    timeout 60 "$bin/dsc-launch" --num_gpus="$ranks" train --config config.json "$@" >out 2>&1 </dev/null
    local code=$?
    [ $code -eq "$wanted" ] || fail "ended with $code, not $wanted: $*"
}
steps_in() { (cd "$1" && echo step-*); }
# The n-th write of rank 1 to optimizer.safetensors of step $1 finds the disk full.
full_at() { # STEP CODE FLAG...
    local step=$1 code=$2
    shift 2
    rm -rf save
    DIE_RANK=1 DIE_OP=write DIE_PATH="*/step-$step.tmp/optimizer.safetensors" DIE_WHEN=full LD_PRELOAD="$tmp/die_at.so" \
        launch "$code" 2 --save save --save-every 2 --steps 6 "$@"
}

goes_on() {
    full_at 4 0 || return 1
    [ "$(steps_in save)" = "step-2 step-6" ] && [ "$(cat save/latest)" = step-6 ] || fail "$(ls save)" || return 1
    grep -q 'warning: step 4 is not saved: .*optimizer.safetensors.*No space left on device; training goes on (dsc.save_failure)' \
        out || fail "no warning" || return 1
    [ "$(grep -c 'is not saved' out)" -eq 1 ] || fail "more than one line" || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1 || return 1
    # The save that failed has changed nothing.
    launch 0 2 --save calm --steps 6 || return 1
    [ "$("$bin/dsc" ckpt hash save/step-6)" = "$("$bin/dsc" ckpt hash calm/step-6)" ] || fail "other hash"
}
stops() {
    full_at 4 1 --save-failure stop || return 1
    [ "$(steps_in save)" = step-2 ] && [ "$(cat save/latest)" = step-2 ] || fail "$(ls save)" || return 1
    grep -q 'error: .*No space left on device' out || fail "no reason" || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1
}
last_one_fails() {
    full_at 6 1 || return 1
    [ "$(cat save/latest)" = step-4 ] || fail "$(ls save)" || return 1
    grep -q 'error: .*No space left on device' out || fail "no reason"
}
beside() {
    rm -rf save calm
    launch 0 2 --save calm --save-every 2 --steps 7 || return 1
    launch 0 2 --save save --save-every 2 --steps 7 --save-async || return 1
    [ "$(steps_in save)" = "$(steps_in calm)" ] || fail "$(ls save)" || return 1
    [ "$(grep -c '^saved step [246] to .*, while training went on)$' out)" -eq 3 ] || fail "not beside training" || return 1
    for step in 2 4 6 7; do
        "$bin/dsc" ckpt verify save/step-$step >>why 2>&1 || return 1
        [ "$("$bin/dsc" ckpt hash save/step-$step)" = "$("$bin/dsc" ckpt hash calm/step-$step)" ] || fail "other hash" || return 1
    done
    # DeepSpeed's word for it.
    sed 's/"optimizer"/"checkpoint": {"writer": {"decoupled": true}}, "optimizer"/' config.json >decoupled.json
    "$bin/train" --config decoupled.json --save other --save-every 2 --steps 3 >out 2>&1 </dev/null || return 1
    grep -q '^saved step 2 to .*, while training went on)$' out || fail "decoupled is not heard"
}
full_beside() {
    full_at 4 0 --save-async || return 1
    [ "$(steps_in save)" = "step-2 step-6" ] && [ "$(cat save/latest)" = step-6 ] || fail "$(ls save)" || return 1
    grep -q 'warning: step 4 is not saved: .*No space left on device' out || fail "no warning" || return 1
    "$bin/dsc" ckpt verify save >>why 2>&1
}
latest() {
    rm -rf save
    launch 2 1 --save save --load latest --steps 2 || return 1
    grep -q 'save: no such checkpoint folder' out || fail "no reason" || return 1
    launch 0 1 --save save --steps 2 || return 1
    launch 0 1 --save save --load latest --steps 3 || return 1
    grep -q '^resumed at step 2' out || fail "not resumed" || return 1
    launch 2 1 --load latest --steps 4 || return 1
    grep -q 'latest means the newest checkpoint of --save DIR; give --save' out || fail "no word about --save"
}

if [ -n "${DSC_SAN:-}" ]; then
    skip "a full disk" "nothing is preloaded into a sanitized program"
elif ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -shared -fPIC -o die_at.so "$root/tests/cli/die_at.c" -ldl 2>why; then
    report "die_at.c compiles" false
else
    report "a full disk: a warning, the next save is whole and the run ends as without it" goes_on
    report "--save-failure stop ends the run; the last good checkpoint stays" stops
    report "a last save that fails ends with code 1" last_one_fails
    report "a full disk while training goes on" full_beside
fi
report "--save-async: the same checkpoints, and training goes on meanwhile" beside
report "--load latest" latest
end_of_tests
