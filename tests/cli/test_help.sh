#!/usr/bin/env bash
# test_help.sh - `--help` of every command and subcommand: exit 0, usage, each flag explained, exit codes; a misspelled
# flag gets a suggestion, and '_' is read as '-'. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
run() { code=0; timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
fails() { # PATTERN: exit 2, nothing on stdout, one error line with the pattern
    [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] &&
        grep '^dsc: error: ' "$tmp/err" | grep -qF -- "$1"
}
# Every flag and argument of the usage lines has a row of its own with an explanation.
page() { # NAME: of the program in the usage line
    local item
    [ $code -eq 0 ] || return 1
    [ ! -s "$tmp/err" ] || fail "stderr is not empty" || return 1
    head -n 1 "$tmp/out" | grep -qF "usage: $1" || fail "no usage of $1" || return 1
    grep -q '^exit codes: 0 ' "$tmp/out" || fail "no exit codes" || return 1
    [ "$(awk 'length > 100' "$tmp/out" | wc -l)" -eq 0 ] || fail "a line above 100 columns" || return 1
    [ -n "$(sed -n '/^$/,$p' "$tmp/out" | sed -n 2p)" ] || fail "no description" || return 1
    { sed '/^$/,$d' "$tmp/out" | tr ' ' '\n' | grep -oE -- '^\[?-[-a-zA-Z0-9_]+' | tr -d '['
      grep -oE -- '^  -[-a-zA-Z0-9_]+' "$tmp/out" | tr -d ' '; } | sort -u >"$tmp/flags"
    while read -r item; do # the explanation is on the row or on the next line, at column 31
        grep -A1 -E -- "^  $item(,| |\$)" "$tmp/out" | grep -qE '^(  -.*  | {30})[^ ]' ||
            fail "$item is not explained" || return 1
    done <"$tmp/flags"
}
# A page whose first line names no flags has a row for each of the flags that users and scripts rely on.
rows() { # NAME FLAG...
    local name=$1 flag
    page "$name" || return 1
    shift
    for flag; do
        grep -qxF -- "$flag" "$tmp/flags" || fail "no row of $flag" || return 1
    done
}
suggests() { # WRONG RIGHT: in the one line
    fails "$1" && grep -qF -- "did you mean $2?" "$tmp/err"
}

run "$dsc" --help
report "dsc --help" [ $code -eq 0 ]
sed -n 's/^  dsc \([a-z]*\) .*/\1/p' "$tmp/out" | grep -v '^COMMAND$' >"$tmp/commands"
report "all commands are listed" [ "$(wc -l <"$tmp/commands")" -eq 16 ]
while read -r command; do
    run "$dsc" "$command" --help
    if ! grep -q 'SUBCOMMAND' "$tmp/out"; then
        report "dsc $command --help" page "dsc $command"
        run "$dsc" "$command" -h
        report "dsc $command -h" page "dsc $command"
        run "$dsc" "$command" --no-such-flag-here
        report "dsc $command with an unknown flag" fails "--no-such-flag-here: unknown flag"
        continue
    fi
    report "dsc $command --help" [ $code -eq 0 ]
    sed -n 's/^  \([a-z]*\)  *.*/\1/p' "$tmp/out" >"$tmp/verbs"
    while read -r verb; do
        run "$dsc" "$command" "$verb" --help
        report "dsc $command $verb --help" page "dsc $command $verb"
        run "$dsc" "$command" "$verb" --no-such-flag-here
        report "dsc $command $verb with an unknown flag" fails "--no-such-flag-here: unknown flag"
    done <"$tmp/verbs"
    run "$dsc" "$command" frobnicate
    report "dsc $command with an unknown subcommand" fails "frobnicate: unknown subcommand"
done <"$tmp/commands"

run "$dsc" plan --worldsize 4; report "a misspelled flag" suggests --worldsize --world-size
run "$dsc" tune --free_bach; report "a misspelled flag with an underscore" suggests --free_bach --free-batch
run "$dsc" ckpt prune --keep-lst 2; report "a misspelled flag of a subcommand" suggests --keep-lst --keep-last
run "$dsc" ckpt verfy; report "a misspelled subcommand" suggests verfy '"dsc ckpt verify"'
printf '{"train_batch_size": 8}' >"$tmp/c.json"
for flag in --world-size --world_size; do
    run "$dsc" config check "$tmp/c.json" $flag=4 --json
    report "$flag=4" grep -q '"train_micro_batch_size_per_gpu":2' "$tmp/out"
    run "$dsc" config check "$tmp/c.json" $flag 4 --json
    report "$flag 4" grep -q '"train_micro_batch_size_per_gpu":2' "$tmp/out"
done

contract="--config --strategy --model --data --eval-data --tokenizer --seq-len --steps --epochs --batch-size
    --gradient-accumulation-steps --learning-rate --save --save-every --keep-last --keep-every --save-failure
    --save-async --load --seed --no-shuffle --log --device --comm --sample --curve --strict --deepspeed --local_rank
    --version --help"
for flag in --help -h; do
    run "$bin/train" $flag --no-such-flag-here; report "train $flag" rows train $contract
    run "$bin/train" --config "$tmp/c.json" $flag; report "train --config FILE $flag" page train
done
run "$bin/train" --no-such-flag-here; report "train with an unknown flag" fails "--no-such-flag-here: unknown flag"
run "$bin/train" stray; report "train with an argument" fails "stray: unknown argument"
run "$bin/train" --learning_rte 1; report "train with a misspelled flag" suggests --learning_rte --learning-rate
run "$bin/train" --seq_len x
report "'_' is read as '-', and the flag is named as typed" fails '--seq_len: "x" is not a number'
for pair in per_device_train_batch_size=--batch-size num_train_epochs=--epochs max_steps=--steps output_dir=--save \
    tokenizer_name=--tokenizer train_file=--data validation_file=--eval-data block_size=--seq-len max_seq_length=--seq-len \
    save_steps=--save-every save_total_limit=--keep-last resume_from_checkpoint=--load model_name_or_path=--model; do
    run "$bin/train" --${pair%=*} 1
    report "--${pair%=*} names ours" fails "--${pair%=*}: unknown flag; give ${pair#*=} instead"
done
for pair in eval_steps=dsc.eval_every logging_steps=steps_per_print weight_decay=optimizer.params.weight_decay \
    max_grad_norm=gradient_clipping warmup_steps=dsc.lr_warmup_steps lr_scheduler_type=dsc.lr_schedule lora_r=dsc.lora.r \
    bf16=bf16.enabled gradient_checkpointing=dsc.recompute zero_stage=zero_optimization.stage; do
    run "$bin/train" --${pair%=*} 1
    report "--${pair%=*} names the key" fails "--${pair%=*}: unknown flag; set ${pair#*=} in the config instead"
    report "which exists" "$dsc" config explain "${pair#*=}"
done
head -c 4000 "$root/README.md" >"$tmp/t.txt"
echo "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"dsc\": {\"model\": \"gpt2-nano\", \"data\": \"$tmp/t.txt\", \"seq_length\": 16, \"steps\": 1}}" >"$tmp/ds.json"
run "$bin/train" --deepspeed "$tmp/ds.json" --seed 3
report "--deepspeed FILE is the config" eval '[ $code -eq 0 ] && grep -q "step 1/1" "$tmp/out"'
run "$bin/train" --seed 3 --deepspeed --deepspeed_config "$tmp/ds.json"
report "--deepspeed alone is a switch" eval '[ $code -eq 0 ] && grep -q "step 1/1" "$tmp/out"'
run "$bin/train" --deepspeed="$tmp/ds.json"
report "--deepspeed=FILE says how to write it" fails "write it as --config"
run "$bin/train" --version --bogus
report "train --version" eval '[ $code -eq 0 ] && grep -q "^train (dsc) " "$tmp/out"'

contract="--num_gpus --nproc_per_node -np -H --hostfile --include --exclude --num_nodes --oversubscribe --master_addr
    --master_port --comm --export --ssh_port --ssh_option --launcher --launcher_args --sbatch --force_multi
    --bind_cores_to_rank --bind_core_list --enable_each_rank_log --grace_seconds --stuck_seconds --max_restarts
    --elastic_timeout --reset_limit
    --save_pid --log_level --quiet --dry_run --no_python --no_local_rank --module --no_ssh --no_ssh_check --node_rank
    --standalone --version --venv_script --autotuning --elastic_training --min_elastic_nodes --max_elastic_nodes
    --min_np --max_np --host_discovery_script --blacklist_cooldown_range --chaos --help"
for flag in --help -h; do
    run "$bin/dsc-launch" --num-gpus 1 $flag --no-such-flag-here; report "dsc-launch $flag" rows dsc-launch $contract
done
run "$bin/dsc-launch" --no-such-flag-here true
report "dsc-launch with an unknown flag" fails "--no-such-flag-here: unknown flag"
run "$bin/dsc-launch" --nunm-gpus 2 true; report "dsc-launch with a misspelled flag" suggests --nunm-gpus --num_gpus
run "$bin/dsc-launch" --num-gpus x true
report "the flag is named as typed" fails '--num-gpus: "x" is not a whole number'
run "$bin/dsc-launch" --num-gpus 5000 true
report "above the limit: the limit and the way out" fails '"5000" is more than the limit of 1024; for more ranks, name more hosts'
run "$bin/dsc-launch" --venv_script x true; report "a flag that is not built yet" fails "--venv_script: not built yet"
run "$bin/dsc-launch" --dry_run train --help; report "--help after PROGRAM belongs to it" grep -q '"--help"' "$tmp/out"
run "$bin/dsc-launch" --version --bogus
report "dsc-launch --version" eval '[ $code -eq 0 ] && grep -q "^dsc-launch " "$tmp/out"'
end_of_tests
