#!/usr/bin/env bash
# test_simulate.sh - `dsc simulate`: its steps beside `dsc plan --time`, weak and strong tables, slow ranks, noise,
# failures, and what is refused. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export CUDA_VISIBLE_DEVICES=-1

simulate() { code=0; timeout 120 "$dsc" simulate "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
refused() { [ $code -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$1" "$tmp/err"; }
# value RANKS NAME: of the JSON table
value() { awk -v ranks="$1" -v name="\"$2\":" '{ sub(/,$/, "", $2) } $1 == "\"ranks\":" { here = $2 == ranks } here && $1 == name { print $2; exit }' "$tmp/out"; }
holds() { awk "BEGIN { exit !($1) }"; }

echo '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 16, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW"}, "dsc": {"model": "gpt2-xl", "seq_length": 1024}}' >"$tmp/c.json"

# ---- without slow ranks, the step of one rank ----
simulate --config "$tmp/c.json" --gpu H200 --ranks 1,8,64 --json
same() {
    local w planned
    for w in 1 8 64; do
        planned=$("$dsc" plan --time --gpu H200 --world-size $w --config "$tmp/c.json" --json | sed -nE 's/.*"step_s":([0-9.e+-]+).*/\1/p')
        holds "$(value $w step_s) / $planned < 1.001 && $planned / $(value $w step_s) < 1.001" || return 1
    done
}
report "steps last as long as dsc plan --time says" same
even=$(value 8 step_s)
report "each rank has the same work" [ "$(value 64 train_batch_size)" -eq 4096 ]
report "computation waits for a part of the exchanges" holds "$(value 8 exposed_share) > 0 && $(value 8 exposed_share) < $(value 8 exchange_share) && $(value 1 exposed_share) == 0"
report "more ranks are less efficient" holds "$(value 64 efficiency) < $(value 8 efficiency) && $(value 64 efficiency) < 1"

# ---- slow ranks and noise ----
simulate --config "$tmp/c.json" --gpu H200 --ranks 8 --slow 1:1.5 --json
report "one slow rank delays all" holds "$(value 8 step_s) > 1.4 * $even && $(value 8 waiting_share) > 0.2"
simulate --config "$tmp/c.json" --gpu H200 --ranks 2,8 --noise 10 --steps 1 --json
report "noise costs more than its mean" holds "$(value 8 waiting_share) > 0 && $(value 8 step_s) > 1.1 * $even"
cp "$tmp/out" "$tmp/first"
simulate --config "$tmp/c.json" --gpu H200 --ranks 2,8 --noise 10 --steps 1 --json
report "a seed gives the same table" cmp -s "$tmp/first" "$tmp/out"

# ---- the batch shared by the ranks ----
simulate --config "$tmp/c.json" --gpu H200 --ranks 1,3,8,64 --strong --json
report "the ranks share the batch" [ "$(value 8 train_batch_size)-$(value 64 train_micro_batch_size_per_gpu)" = 64-1 ]
report "a batch without equal parts is a row that says so" grep -q '"a batch of 64 has no equal parts for 3 ranks"' "$tmp/out"

# ---- failures ----
simulate --config "$tmp/c.json" --gpu H200 --ranks 8,1024 --fail-hours 10000 --json
report "failures cost more on more ranks" holds "$(value 1024 useful_share) < $(value 8 useful_share) && $(value 1024 useful_share) > 0.5"
simulate --config "$tmp/c.json" --gpu H200 --ranks 1024 --fail-hours 10000 --save-every-s 30 --json
often=$(value 1024 useful_share)
report "saves that are too frequent cost more than Young's" holds "$often < 0.6"

# ---- the table, files ----
simulate --config "$tmp/c.json" --gpu L40S --ranks 1,8 -o "$tmp/t.json" --svg "$tmp/t.svg"
report "the table says that it is simulated" grep -q '^simulated weak scaling of .* on L40S' "$tmp/out"
report "and that rates come from data sheets" grep -q 'the card.s rates come from data sheets' "$tmp/out"
report "as JSON and as a picture" sh -c "python3 -m json.tool '$tmp/t.json' >/dev/null && grep -q '<svg' '$tmp/t.svg'"

# ---- ranks on this CPU ----
echo '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}, "dsc": {"model": "gpt2-nano", "seq_length": 32}}' >"$tmp/n.json"
simulate --measure "$tmp/cpu.json" --config "$tmp/n.json"
report "this CPU is measured" grep -qE '^[0-9]+ shapes of launches measured' "$tmp/out"
simulate --cpu "$tmp/cpu.json" --config "$tmp/n.json" --ranks 1,2,4,1024 --json
report "one rank has no exchange, and others have one" holds "$(value 1 exchange_share) == 0 && $(value 2 exchange_share) > 0 && $(value 2 exposed_share) > 0"
no_mfu() { python3 -c 'import json, sys; assert all(row.get("mfu") is None for row in json.load(open(sys.argv[1]))["rows"])' "$tmp/out"; }
report "a CPU's peak is not known, so no MFU is named" no_mfu
cores=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["cores"])' "$tmp/cpu.json")
report "ranks that outnumber the cores share them" holds "$(value 1024 step_s) > 0.5 * 1024 / $cores * $(value 1 step_s)"
report "and each uses as much time as one" holds "$(value 4 rank_cpu_s) > 0.5 * $(value 1 rank_cpu_s) && $(value 4 rank_cpu_s) < 2 * $(value 1 rank_cpu_s)"
simulate --cpu "$tmp/cpu.json" --gpu H200 --config "$tmp/n.json"
report "a card and a CPU at once" refused 'give a card by --gpu, or a CPU by --cpu'
simulate --config "$tmp/n.json"
report "neither a card nor a CPU" refused 'give a card by --gpu, or a CPU by --cpu'
simulate --measure "$tmp/x.json" --gpu H200 --config "$tmp/n.json"
report "a card to measure" refused 'measures this CPU; leave out --gpu and --cpu'
# ---- what a card must not be, and files that stay ----
simulate --cpu "$tmp/cpu.json" --config "$tmp/n.json" --ranks 1 -o "$tmp/cpu.json"
report "a table in place of the CPU's card" refused 'which would be lost'
simulate --cpu "$tmp/cpu.json" --config "$tmp/n.json" --ranks 1 --svg "$tmp/cpu.json"
report "a picture in place of the CPU's card" refused 'which would be lost'
for flag in "-o $tmp/x" "--svg $tmp/x" --json "--ranks 2" --weak --strong "--steps 5" "--noise 0" "--seed 1" "--slow 1:1" \
    "--fail-hours 0" "--save-s 30" "--save-every-s 0" "--restart-s 120"; do
    simulate --measure "$tmp/x.json" --config "$tmp/n.json" $flag
    report "--measure with ${flag%% *}" refused "simulates nothing; leave out ${flag%% *}"
done
# A classifier of one layer, in a run with logs and data, started as one of two ranks.
mkdir "$tmp/classes" "$tmp/logs"
echo '{"architectures": ["GPT2ForSequenceClassification"], "model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0, "id2label": {"0": "no", "1": "yes"}}' >"$tmp/classes/config.json"
cp "$tmp/classes/config.json" "$tmp/kept"
echo '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"},
    "tensorboard": {"enabled": true, "output_path": "'"$tmp/logs"'"}, "csv_monitor": {"enabled": true, "output_path": "'"$tmp/logs"'"},
    "dsc": {"model": "'"$tmp/classes"'", "seq_length": 16, "data": "'"$tmp/missing.bin"'", "trace": "'"$tmp/logs/trace"'"}}' >"$tmp/k.json"
simulate --measure "$tmp/classes/config.json" --config "$tmp/k.json"
report "a card in place of the model's config" refused 'which would be lost'
report "the model's config stays" cmp -s "$tmp/kept" "$tmp/classes/config.json"
RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 simulate --measure "$tmp/small.json" --config "$tmp/k.json"
report "a classifier is measured, without its data, as one rank alone" grep -q 'shapes of launches measured' "$tmp/out"
report "and writes none of the run's logs" [ -z "$(ls -A "$tmp/logs")" ]
# card FROM PYTHON: bad.json is the card after the statement on c
card() { python3 -c 'import json, sys
c = json.load(open(sys.argv[1])); exec(sys.argv[2]); json.dump(c, open(sys.argv[3], "w"))' "$1" "$2" "$tmp/bad.json"; }
card "$tmp/cpu.json" 'c["launches"] = []'
simulate --cpu "$tmp/bad.json" --config "$tmp/n.json" --ranks 1
report "a card without launches" refused 'no launches; measure again'
card "$tmp/cpu.json" 'c["launches"] = [r for r in c["launches"] if r["kind"] != "GEMM"]'
simulate --cpu "$tmp/bad.json" --config "$tmp/n.json" --ranks 1
report "a card without a kernel that is launched" grep -q 'no time for launches of GEMM; measure again' "$tmp/out"
report "and no row has a time" [ $code -eq 2 ]
card "$tmp/cpu.json" 'c["engine_s"] = c["exchange_s"] = 0; [r.update(seconds=0) for r in c["launches"]]'
simulate --cpu "$tmp/bad.json" --config "$tmp/n.json" --ranks 1,2
report "a card whose times are 0" sh -c "[ $code -eq 2 ] && grep -q 'a step of 0 s; measure again' '$tmp/out'"
card "$tmp/cpu.json" '[r.update(seconds=1e5) for r in c["launches"]]'
simulate --cpu "$tmp/bad.json" --config "$tmp/n.json" --ranks 1,1024
report "a card whose times are absurd" [ $code -le 2 ]
card "$tmp/cpu.json" 'c["launches"].insert(0, dict(c["launches"][0], kind="OTHER")); c["launches"][2]["shape"] = [1]'
simulate --cpu "$tmp/bad.json" --config "$tmp/n.json" --ranks 1
report "a launch is named by its place in the file" refused 'launch 2 has no kind'
for bad in '{}' '{"kind":"cpu","cores":0,"peak_flops":1,"engine_s":0,"exchange_s":0,"launches":[]}' \
    '{"kind":"cpu","cores":2,"peak_flops":1,"engine_s":0,"exchange_s":0,"launches":[{"kind":"ADD","shape":[1,0,0],"seconds":1}]}' \
    '{"kind":"cpu","cores":2,"peak_flops":1,"engine_s":0,"exchange_s":0,"launches":[{"kind":"ADD","shape":[-1,0,0,0],"seconds":1}]}' \
    '{"kind":"cpu","cores":2,"peak_flops":1,"engine_s":0,"exchange_s":0,"launches":[7]}'; do
    echo "$bad" >"$tmp/bad.json"
    simulate --cpu "$tmp/bad.json" --config "$tmp/n.json" --ranks 1
    report "a file that is no CPU's: ${bad: -40}" refused 'dsc simulate --measure'
done

# ---- refused ----
simulate --config "$tmp/c.json" --gpu H200 --ranks 8,4
report "ranks that do not rise" refused '"8,4" is not a list of ranks'
simulate --config "$tmp/c.json" --gpu H200 --ranks 2048
report "more than 1024 ranks" refused 'up to 1024'
simulate --config "$tmp/c.json" --gpu H200 --slow 1
report "slow ranks without a factor" refused 'such as 2:1.5'
simulate --config "$tmp/c.json" --gpu H200 --ranks 1024 --noise 1 --steps 1000
report "a replay that takes too long" grep -q 'give fewer --steps' "$tmp/out"
simulate --config "$tmp/c.json" --gpu H200 --ranks 8 --out "$tmp/f" --svg "$tmp/f"
report "one file for a table and a picture" refused "the picture has the table's file"
sed 's/"gradient_accumulation_steps": 16/"gradient_accumulation_steps": 1000000/' "$tmp/c.json" >"$tmp/many.json"
simulate --config "$tmp/many.json" --gpu H200 --ranks 1
report "a step of too many micro-batches" grep -q 'take too long to predict' "$tmp/out"
simulate --config "$tmp/c.json" --gpu H200 --ranks 1024 --fail-hours 1e-300
report "cards that fail all the time" [ $code -eq 0 ]
simulate --config "$tmp/c.json" --gpu GTX480
report "a card without rates" refused 'no rates of "GTX480"'
simulate --config "$tmp/c.json" --gpu RTX4090 --ranks 1
report "a model that does not fit is told in the table" sh -c "[ $code -eq 2 ] && grep -q 'no number of ranks can run this config' '$tmp/err'"
end_of_tests
