#!/usr/bin/env bash
# test_monitors.sh - TensorBoard event files and CSV files have the numbers of --log, also after a kill and a resume; a
# folder that cannot be written is refused, a disk that becomes full does not end the run.
#
# DSC_TEST_PYTHON names a python3 that has the tensorboard package; its reader is then asked too.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
trap 'mountpoint -q "$tmp/small" && umount "$tmp/small"; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
python=${DSC_TEST_PYTHON:-python3}

for i in $(seq 300); do echo "line $i of a text that is long enough"; done >text.txt
config() { # OUTPUT_PATH
    cat <<END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "wall_clock_breakdown": true, "steps_per_print": 2,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "tensorboard": {"enabled": true, "output_path": "$1/tb", "job_name": "a run"},
 "csv_monitor": {"enabled": true, "output_path": "$1/csv"},
 "dsc": {"model": "gpt2-nano", "data": "text.txt", "eval_data": "text.txt", "eval_batches": 1, "seq_length": 16, "threads": 1}}
END
}
as_logged() { "$@" >why 2>&1; }
train() { timeout 60 "$bin/dsc-launch" --num_gpus=2 train --config config.json "$@" >out 2>err </dev/null; }

config logs >config.json
report "two ranks train" train --steps 5 --save save --save-every 3 --log log.jsonl
report "a line of times with each detailed one" [ "$(grep -c '^time (ms) | forward: [0-9.]* | backward: [0-9.]* | step: [0-9.]* | ' out)" = 2 ]
report "one event file" [ "$(find logs/tb -type f | wc -l)" = 1 ]
rm -rf save/step-5 && echo step-3 >save/latest # as if killed after step 5
sleep 1.1                                               # the time in the file's name is of another second
report "it resumes at step 3" train --steps 7 --save save --load save --log log.jsonl
report "into a second event file" [ "$(find logs/tb -type f | wc -l)" = 2 ]
if ! command -v "$python" >/dev/null; then skip "the files have the numbers of the log" "no python3"; else
    report "the files have the numbers of the log" as_logged "$python" -B "$root/tests/cli/read_events.py" "logs/tb/a run" logs/csv/DeepSpeedJobName log.jsonl 8
    "$python" -c 'import tensorboard' 2>/dev/null || skip "TensorBoard's own reader" "the tensorboard package is not installed"
fi

echo plain >file
config file >config.json
report "a file in the place of the folder is bad input" [ "$(train --steps 2 --log none.jsonl; echo $?)" = 2 ]
report "that names it" grep -q '^dsc: error: file.*folder' err
if mkdir small && mount -t tmpfs -o size=64k none small 2>/dev/null; then
    config small >config.json
    head -c 1M /dev/zero >small/zeros 2>/dev/null
    report "a full disk does not end the run" train --steps 3 --log full.jsonl
    report "each monitor that stopped is told of once" [ "$(grep -c 'warning: \(tensorboard\|csv_monitor\): .*No space left.*the run goes on' err)" = 2 ]
else
    skip "a full disk" "tmpfs cannot be mounted here"
fi
end_of_tests
