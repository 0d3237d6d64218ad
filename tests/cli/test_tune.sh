#!/usr/bin/env bash
# test_tune.sh - `dsc scale` and `dsc tune`: tables of real short runs, and a tuned config that trains the same batch. No
# file remains, and runs that cannot be measured are reported. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
. "$root/tests/cli/cgroup.sh"
trap 'remove_group; rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive TMPDIR=$tmp/left
mkdir left
run() { code=0; timeout 100 "$dsc" "$@" >out 2>err </dev/null || code=$?; }
fails() { [ $code -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
nothing_left() { [ -z "$(ls left)" ]; }
for i in $(seq 400); do echo "line $i of a text that is long enough"; done >text.txt
cat >config.json <<'END'
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, // as the user wrote it
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 2},
 "tensorboard": {"enabled": true, "output_path": "tb"}, "autotuning": {"num_tuning_micro_batch_sizes": 1},
 "dsc": {"model": "gpt2-nano", "seq_length": 8, "threads": 1, "save": "saves", "log_text": "text.log"}}
END
short=(--config config.json --data text.txt --steps 3 --warm 1)

# The table's numbers belong together.
cat >table.py <<'END'
import json, sys
t = json.load(open(sys.argv[1]))
kind, ranks, batches, failed = sys.argv[2], *(json.loads(a) for a in sys.argv[3:6])
rows = t["rows"]
assert t["scaling"] == kind and [r["ranks"] for r in rows] == ranks and [r["train_batch_size"] for r in rows] == batches, t
assert [r["ranks"] for r in rows if "failed" in r] == failed, rows
ran = [r for r in rows if "failed" not in r]
first = ran[0]
for r in ran:
    assert r["train_micro_batch_size_per_gpu"] * r["gradient_accumulation_steps"] * r["ranks"] == r["train_batch_size"], r
    assert r["step_s_low"] <= r["step_s"] <= r["step_s_high"] and r["steps"] == 3, r
    assert abs(r["tokens_per_s"] * r["step_s"] / (8 * r["train_batch_size"]) - 1) < 1e-6, r
    assert abs(r["speed_up"] - r["tokens_per_s"] / first["tokens_per_s"]) < 1e-6 * r["speed_up"], r
    assert abs(r["efficiency"] * r["ranks"] - r["speed_up"]) < 1e-9, r
    assert 0 <= r["waiting_share"] < 1, r
    samples = (len(open("text.txt", "rb").read()) - 1) // 8
    assert abs(r["epoch_s"] / r["step_s"] - samples // r["train_batch_size"]) < 1e-6, (r, samples)
END
has() { if command -v python3 >/dev/null; then python3 table.py "$@" 2>why; fi; }
run scale "${short[@]}" --ranks 1,2 --svg picture.svg -o weak.json
report "weak scaling" [ $code -eq 0 -a "$(grep -cE '^ +[12] ' out)" = 2 ]
report "each rank has the same work" has weak.json weak '[1, 2]' '[8, 16]' '[]'
report "a picture" [ "$(grep -c 'class="curve"' picture.svg)" = 4 ]
report "no checkpoint, log or monitor of these runs, and no files of theirs" [ ! -e saves -a ! -e tb -a ! -e text.log -a -z "$(ls left)" ]
run scale "${short[@]}" --ranks 1,2,3 --strong -o strong.json
report "strong scaling" [ $code -eq 0 ]
report "the ranks share the batch, which three cannot" has strong.json strong '[1, 2, 3]' '[8, 8, 0]' '[3]'

run tune "${short[@]}" --ranks 2 --set dsc.seed=7 --table table.json --trials 6
report "tune" [ $code -eq 0 -a "$(grep -cE '^[ *] (stage|the file)' out)" -eq 6 ]
if [ -e ds_config_tuned.json ]; then
    "$dsc" config check ds_config_tuned.json --world-size 2 --json >check.json 2>err
    report "the tuned config has the same batch size" grep -q '"train_batch_size":8,' check.json
    report "with what the command line gave" grep -q '"seed":.7' ds_config_tuned.json
    run tune "${short[@]}" --ranks 2
    report "a config is not written over" fails 'ds_config_tuned.json: is there already'
else
    report "or nothing was faster" grep -q '^nothing is faster than the file as it is' out
fi

run tune "${short[@]}" --ranks 2 --grid --table grid.json --trials 20 -o grid.tuned.json
grids() { # two stages with one data rank are tried, with several micro-batches and the same samples of a step
    [ $code -eq 0 ] && [ "$(grep -c 'pipeline 2  *8 ' out)" -ge 1 ] && grep -q '"pipeline":[[:space:]]*2' grid.json &&
        ! grep -A9 '"pipeline":[[:space:]]*2' grid.json | grep '"train_batch_size"' | grep -qv ':[[:space:]]*8,'
}
report "--grid tries pipelines with the samples of a step" grids

# 32 M parameters on a host that has 200 MiB for a run: they take 122 MiB, gradients and moments three times as much.
LIMIT_MB=200
echo '{"model_type": "gpt2", "vocab_size": 256, "n_embd": 384, "n_head": 6, "n_layer": 18, "n_positions": 32}' >model.json
large=(tune --config config.json --data text.txt --model model.json --steps 1 --warm 1 --ranks 1 --overwrite -o files.json)
in_small_memory() { code=0; in_group timeout 200 "$dsc" "${large[@]}" "$@" >out 2>err </dev/null || code=$?; }
if [ -n "${DSC_SAN:-}" ]; then
    skip "a model larger than memory" "a sanitizer takes memory of its own"
elif ! make_group $LIMIT_MB; then
    skip "a model larger than memory" "no memory cgroup can be made here"
else
    in_small_memory
    report "without a folder for files nothing runs" [ $code -eq 2 -a ! -e files.json -a "$(grep -cE '^[ *] stage' out)" = 0 ]
    report "and why is told" grep -q "offload_optimizer and offload_param on nvme" err
    mkdir swap
    in_small_memory --set zero_optimization.offload_param.nvme_path="$tmp/swap" --max-micro-batch 1 --table files-table.json
    report "with one, states go to files" [ $code -eq 0 -a "$(grep -c '^[ *] stage 3, all in files' out)" -ge 3 ]
    report "and what is for states in files is tried" [ "$(grep -c 'early updates' out)" -ge 1 -a "$(grep -c 'micro-batches together' out)" -ge 1 ]
    trains() { in_group timeout 100 "$bin/train" --config files.json --steps 1 >out 2>err </dev/null; }
    report "the config trains in that memory" trains
    report "no file is left" [ -z "$(ls swap)" ]
fi

run tune "${short[@]}" --batch 4..16 --ranks 2 --table sweep.json
report "batch sizes side by side" [ $code -eq 0 -a "$(grep -o '"train_batch_size":.[0-9]*' sweep.json | tr -dc '0-9\n' | tr '\n' ' ')" = "4 8 16 " ]
report "nothing is left" nothing_left

run scale "${short[@]}" --ranks 1 --set zero_optimization.stage=7; report "a value that no config has" [ $code -eq 2 -a "$(grep -c stage err)" = 1 ]
run scale --config none.json; report "no such config" fails 'none.json: cannot open'
run scale --ranks 1; report "no config" fails '--config: is missing'
run scale "${short[@]}" --ranks 2,1; report "ranks that do not rise" fails '--ranks: "2,1"'
run scale "${short[@]}" --ranks 1 --model none-such
report "a run that fails says why in the table" [ $code -eq 2 -a "$(grep -c '"none-such" is not a built-in model' out)" = 1 ]
run tune "${short[@]}" --batch 1024..64; report "batches that fall" fails '--batch: "1024..64"'
run tune "${short[@]}" --batch 3..12 --ranks 2; report "a batch without equal parts" fails '--batch: 3 samples'
run scale "${short[@]}" --steps 4000 --limit 1 --ranks 1
report "a run that does not end is ended" [ $code -eq 2 -a "$(grep -c 'no end within 1 s' out)" = 1 ]

ended() { # SIGNAL: all is gone, and the exit is the signal's
    local pid waited=0
    timeout 60 "$dsc" scale "${short[@]}" --steps 4000 --ranks 2 >out 2>err </dev/null &
    pid=$!
    while [ -z "$(find left -name log.jsonl -size +0 2>/dev/null)" ] && [ $waited -lt 400 ]; do sleep 0.05; waited=$((waited + 1)); done
    pkill "-$1" -P $pid
    wait $pid
    [ $? -ge 128 ] && nothing_left && ! pgrep -f "train --config $tmp/left" >/dev/null
}
report "ended by SIGTERM" ended TERM
report "ended by Ctrl-C" ended INT
end_of_tests
