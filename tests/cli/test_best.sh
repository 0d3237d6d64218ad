#!/usr/bin/env bash
# test_best.sh - the best checkpoint of a run that evaluates: named, kept, listed, loaded, and the record after a resume.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
seq 1 900 | tr '\n' ' ' >text.txt
seq 400 500 | tr '\n' ' ' >eval.txt
mkdir model
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}' >model/config.json
# The rate grows until training destroys what it learned: the lowest validation loss is neither the first nor the last.
cat >config.json <<END
{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
 "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 1, "lr_range_test_step_rate": 4}},
 "dsc": {"model": "$tmp/model", "data": "$tmp/text.txt", "eval_data": "$tmp/eval.txt", "eval_every": 2, "save_every": 2, "seq_length": 16,
         "threads": 1, "keep_last": 1}}
END
launch() { # RANKS FLAG...
    local ranks=$1
    shift
    code=0
    timeout 60 "$bin/dsc-launch" --num_gpus="$ranks" train --config config.json "$@" >out 2>&1 </dev/null || code=$?
    [ $code -eq 0 ]
}
# The lowest validation loss of the outputs and its step, the first of equal ones.
lowest() { cat "$@" | sed -nE 's/^step ([0-9]+)  validation loss ([0-9.]+) .*/\2 \1/p' | LC_ALL=C sort -s -g -k1,1 | head -1; }
steps_in() { (cd "$1" && echo step-*); }
says_best() { # FOLDER OUTPUT...
    local dir=$1 loss step
    shift
    read -r loss step < <(lowest "$@")
    [ "$(cut -d ' ' -f 1 "$dir/best")" = "step-$step" ] || fail "$(cat "$dir/best"), not step-$step of $loss" || return 1
    [ "$(printf %.6f "$(cut -d ' ' -f 2 "$dir/best")")" = "$loss" ] || fail "$(cat "$dir/best") is not $loss"
}
launch 2 --save one --steps 12
cp out one.out
report "the best checkpoint is the one with the lowest validation loss" says_best one one.out
best=$(cut -d ' ' -f 1 one/best)
report "it is neither the first nor the last" eval '[ "$best" != step-2 ] && [ "$best" != step-12 ]'
report "it stays beside the newest" [ "$(steps_in one | tr ' ' '\n' | sort)" = "$(printf '%s\n' "$best" step-12 | sort)" ]
"$dsc" ckpt ls one >out 2>&1
report "dsc ckpt ls lists it with its loss" grep -qE "^$best .*  \(best, validation loss [0-9.]+\)$" out
report "and the latest" grep -qE "^step-12 .*  \(latest\)$" out
report "dsc ckpt verify DIR/best" eval '"$dsc" ckpt verify one/best >out 2>&1 && grep -q "one/$best: good" out'
report "dsc ckpt export DIR/best" eval '"$dsc" ckpt export one/best --out weights >out 2>&1 && "$dsc" ckpt export "one/$best" --out same >out 2>&1 && diff -r weights same'
launch 2 --save async --steps 12 --save-async
report "saves in the background name the same one" cmp one/best async/best
launch 2 --save two --steps 6
cp out two.out
launch 2 --save two --load auto --steps 12
cp out three.out
report "a resumed run keeps the record" says_best two two.out three.out
report "which is that of a whole run" cmp one/best two/best
launch 1 --load one/best --save again --steps 12
report "--load DIR/best goes on from it" grep -q "^resumed at step ${best#step-}$" out
echo "step-9" >one/best
"$dsc" ckpt ls one >out 2>&1
report "a damaged name is told" grep -q '^best: is not one line "step-N LOSS"; remove the file' out
code=0
"$dsc" ckpt prune one --keep-last 1 >out 2>&1 || code=$?
report "dsc ckpt prune removes nothing then" eval '[ $code -eq 2 ] && [ -d "one/$best" ]'
echo "step-7 1.5" >one/best
"$dsc" ckpt ls one >out 2>&1
report "a name of a checkpoint that was removed is told" grep -q '^best: names step-7, which is not there$' out
code=0
"$bin/train" --config config.json --load_best_model_at_end >out 2>&1 || code=$?
report "the Trainer's flag says how it is done here" eval '[ $code -eq 2 ] && grep -q "error: .*load_best_model_at_end: unknown flag; dsc.eval_every in the config" out'
code=0
end_of_tests
