#!/usr/bin/env bash
# test_dpo.sh - training on preference pairs: forms of rows, what is shown of them, accuracy, resume, and refusals.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache
mkdir model
cp "$root/tests/golden/tokenizer_gpt2.json" model/tokenizer.json
echo '{"model_type": "llama", "vocab_size": 700, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
       "intermediate_size": 48, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "initializer_range": 0.2}' >model/config.json
python3 - <<'END'
import gzip, json, random
rng = random.Random(1)
words = "hello there the model reads an answer and learns to say it again".split()
text = lambda n: " ".join(rng.choice(words) for _ in range(rng.randrange(1, n)))
user, answer = lambda t: {"role": "user", "content": t}, lambda t: {"role": "assistant", "content": t}
forms = {name: [] for name in ("messages", "whole", "question", "answers")}
texts, prefix = [], []
for i in range(24):
    q, good, bad = text(6), "yes " + text(6), "no " + text(6)
    forms["messages"].append({"prompt": [user(q)], "chosen": [answer(good)], "rejected": [answer(bad)]})
    forms["whole"].append({"chosen": [user(q), answer(good)], "rejected": [user(q), answer(bad)], "score": i})
    forms["question"].append({"prompt": q, "chosen": [user(q), answer(good)], "rejected": [user(q), answer(bad)]})
    forms["answers"].append({"prompt": q, "chosen": [answer(good)], "rejected": [answer(bad)]})
    texts.append({"prompt": q + ":", "chosen": " " + good, "rejected": " " + bad})
    prefix.append({"chosen": q + ": " + good, "rejected": q + ": " + bad})
lines = lambda rows: "".join(json.dumps(r) + "\n" for r in rows)
for name, rows in {**forms, "texts": texts, "prefix": prefix}.items():
    open(name + ".jsonl", "w").write(lines(rows))
json.dump(forms["messages"], open("list.json", "w"))
gzip.open("packed.jsonl.gz", "wt").write(lines(forms["messages"]))
open("other.jsonl", "w").write(lines([{**r, "good": r.pop("chosen"), "bad": r.pop("rejected")} for r in map(dict, forms["messages"])]))
open("changed.jsonl", "w").write(lines(forms["messages"]).replace("yes", "yea"))
open("few.jsonl", "w").write(lines(forms["messages"][:20]))
open("sft.jsonl", "w").write(lines([{"prompt": r["prompt"], "completion": r["chosen"]} for r in forms["messages"]]))
long = {"prompt": [user("again " * 200)], "chosen": [answer("yes")], "rejected": [answer("no")]}
open("long.jsonl", "w").write(lines([long] + forms["messages"]))
open("lost.jsonl", "w").write(lines([{"prompt": "who?", "chosen": [user("x"), answer("y")], "rejected": [user("x"), answer("z")]}]))
open("mixed.jsonl", "w").write(lines([{"chosen": "a", "rejected": [answer("b")]}]))
open("half.jsonl", "w").write(lines([{"chosen": "a b", "rejected": "a c"}, {"chosen": "a"}]))
END
# config NAME OWN TOP
config() {
    echo "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}},
           \"dsc\": {\"model\": \"model\", \"seq_length\": 80, \"data\": \"messages.jsonl\", \"threads\": 1, \"seed\": 3, \"steps\": 12,
           \"dpo\": {\"beta\": 0.2} ${2:-}} ${3:-}}" >"$1.json"
}
# run NAME FLAGS...: numbers of the steps in NAME.numbers
run() {
    local name=$1
    shift
    code=0
    timeout 100 "$bin/dsc-launch" --num_gpus="${ranks:-1}" train --config "$name.json" --log "$name.log" "$@" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.]*\|"reward_[a-z]*":[-0-9.e]*' "$name.log" >"$name.numbers" 2>/dev/null
}
refuses() { [ "$code" -ne 0 ] && grep -qF "$1" err; } # TEXT

config first
run first --steps 12
report "the first loss is log 2, and accuracy and margin rise" python3 - first.log <<'END'
import json, math, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
first, last = rows[0], rows[-1]
good = len(rows) == 12 and first["loss"] == math.log(2) and first["reward_margin"] == 0 and first["reward_accuracy"] == 0
good = good and last["reward_accuracy"] == 1 and last["reward_margin"] > 1 and last["loss"] < 0.4
good = good and all(abs(r["reward_chosen"] - r["reward_rejected"] - r["reward_margin"]) < 1e-12 for r in rows)
sys.exit(not good)
END
report "the line of a step has accuracy, margin and rewards" grep -qE '^step 12/12  loss 0\.[0-9]+  accuracy 1\.000  margin [0-9.]+  rewards [-0-9.]+ [-0-9.]+  lr' out
report "the data's pairs are counted" grep -q 'messages.jsonl: format preference.*24 pairs in 48 samples of 80 tokens' out

code=0
OMP_NUM_THREADS=1 timeout 100 "$bin/train" --config "$root/configs/ds_config_dpo.json" --model model --data messages.jsonl --seq-len 80 --steps 2 >out 2>err </dev/null || code=$?
report "configs/ds_config_dpo.json trains" eval '[ $code -eq 0 ] && grep -q "^step 1/2  loss 0.693" out'

# ---- forms of rows ----
for name in whole question answers list.json packed.jsonl.gz; do
    file=$name
    [ -e "$file" ] || file=$name.jsonl
    config form
    run form --data "$file"
    report "$file: the same run as from a prompt and two answers" eval '[ $code -eq 0 ] && cmp form.numbers first.numbers'
done
for name in texts prefix; do
    config "$name"
    run "$name" --data $name.jsonl
done
report "texts whose prompt is what they share: the same run as with a prompt" eval '[ -s texts.numbers ] && cmp texts.numbers prefix.numbers'
config named ', "sft": {"columns": {"chosen": "good", "rejected": "bad"}}'
run named --data other.jsonl
report "columns of other names" eval '[ $code -eq 0 ] && cmp named.numbers first.numbers'

# ---- what is shown ----
"$dsc" data render --config first.json --count 2 whole.jsonl >render 2>err
report "dsc data render prints both sides of a row" python3 - render <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sides = [(r["line"], r["side"]) for r in rows]
good = sides == [(1, "chosen"), (1, "rejected"), (2, "chosen"), (2, "rejected")]
for a, b in (rows[:2], rows[2:]):
    shared = a["mask"].index(1)
    good = good and a["tokens"][:shared] == b["tokens"][:shared] and "yes" in a["text"] and "no" in b["text"] and sum(b["mask"]) > 1
sys.exit(not good)
END
"$dsc" data show --sample 3 --tokenizer model --config first.json whole.jsonl >show 2>err
report "dsc data show prints both samples of a pair" eval '[ "$(grep -c "^chosen$\|^rejected$" show)" -eq 2 ] && [ "$(grep -c "fill the sample" show)" -eq 2 ]'
samples=$(find cache -name 'whole*.samples' | head -1)
"$dsc" data show --sample 3 --tokenizer model "$samples" >again 2>err
report "a file of samples shows the same" cmp show again
code=0
"$dsc" data show --sample 24 --tokenizer model --config first.json whole.jsonl >out 2>err || code=$?
report "the number of a pair that is not there" refuses "24 pairs of samples of 80 tokens"

# ---- over-long ----
config long ', "sft": {"over_long": "drop"}'
run long --data long.jsonl
report "an over-long pair is dropped whole" eval '[ $code -eq 0 ] && grep -q "24 pairs in 48 samples.*1 over-long examples dropped" out && cmp long.numbers first.numbers'
config cut
run cut --data long.jsonl
report "a pair without room for its answers is left out" eval '[ $code -eq 0 ] && grep -q "24 pairs in 48.*1 examples without a counted token left out" out'

# ---- ranks, stages, resume ----
for ranks in 1 2; do
    for stage in 0 2 3; do
        config "bits$ranks$stage" ', "reproducible": "world_size", "eval_data": "messages.jsonl", "eval_every": 4' \
            ", \"zero_optimization\": {\"stage\": $stage}"
        sed -i "s/\"gradient_accumulation_steps\": 2/\"gradient_accumulation_steps\": $((2 / ranks))/" "bits$ranks$stage.json"
        run "bits$ranks$stage"
        grep -ohE 'validation loss [0-9.]+|evaluation: .*' out err >>"bits$ranks$stage.numbers"
    done
done
unset ranks
report "ranks and stages have the same losses, rewards and evaluations" eval \
    '[ "$(grep -c "evaluation: accuracy" bits10.numbers)" -ge 3 ] && for n in 12 13 20 22 23; do cmp bits10.numbers bits$n.numbers || exit 1; done'
config resumed
run resumed --steps 6 --save saved
run resumed --load saved
report "a run that resumes has the reference of its beginning" eval '[ $code -eq 0 ] && cmp resumed.numbers first.numbers'
run resumed --load saved --data few.jsonl
report "resume: fewer pairs are refused" refuses "its reference has seen 24 pairs, and the data has 20"
run resumed --load saved --data changed.jsonl
report "resume: changed pairs are refused" refuses "is not the one that the run's reference has seen"
cp -r saved broken
python3 -c '
path = "broken/step-6/dpo_reference.bin"
data = bytearray(open(path, "rb").read()); data[100] ^= 1; open(path, "wb").write(data)'
run resumed --load broken
report "resume: a damaged reference is refused" refuses "dpo_reference.bin: is damaged"
head -c 100 saved/step-6/dpo_reference.bin >broken/step-6/dpo_reference.bin
run resumed --load broken
report "resume: a truncated reference is refused" refuses "is not a whole file of references"
rm broken/step-6/dpo_reference.bin
run resumed --load broken
report "resume: a checkpoint of another kind of run is refused" refuses "is no checkpoint of a run with dsc.dpo"

# ---- adapters ----
config adapters ', "lora": {"r": 4, "target_modules": "all-linear"}'
run adapters --save lora
report "adapters: the reference of fresh ones is the base model" eval '[ $code -eq 0 ] && head -1 adapters.numbers | grep -q 0.6931471805'
"$dsc" ckpt export lora --out adapter >out 2>err
config goes_on ', "lora": {"adapter": "adapter"}'
run goes_on
report "adapters that go on: the reference is where they begin" eval '[ $code -eq 0 ] && head -1 goes_on.numbers | grep -q 0.6931471805 && ! cmp -s goes_on.numbers adapters.numbers'

# ---- refusals ----
config odd
sed -i 's/"train_micro_batch_size_per_gpu": 4/"train_micro_batch_size_per_gpu": 3/' odd.json
run odd
report "half a pair in a micro-batch is refused" refuses "3 is odd; with dsc.dpo it counts sequences, and a pair is two of them"
config plain
sed -i 's/"dpo": {"beta": 0.2}/"steps": 2/; s/"steps": 12,//' plain.json
run plain
report "pairs without dsc.dpo are refused" refuses "has preference pairs (chosen and rejected); add the section dsc.dpo"
config other
run other --data sft.jsonl
report "rows without pairs are refused" refuses "the row has the columns prompt, completion; with dsc.dpo expected chosen and rejected"
echo "a text" >plain.txt
run other --data plain.txt
report "a text is refused" refuses "has no preference pairs; with dsc.dpo expected JSON objects"
run other --data lost.jsonl
report "a prompt that is no message of the conversations is refused" refuses '"prompt" is a text that is no user message of both conversations'
run other --data mixed.jsonl
report "sides of two types are refused" refuses '"rejected" is of another type; expected a text or a list of messages, as the other one is'
run other --data half.jsonl
report "a row without its rejected side is refused" refuses 'half.jsonl, line 2: "rejected" is missing'
config packed ', "sft": {"packing": true}'
run packed
report "packing is refused by name" refuses "pairs are not packed"
config documents ', "document_end": 0'
run documents
report "document ends are refused" refuses "a sample of a pair is one text"
config format ', "sft": {"format": "text"}'
run format
report "a format without pairs is refused" refuses '"text" has no pairs; with dsc.dpo expected "auto" or "preference"'
config smooth
sed -i 's/"beta": 0.2/"label_smoothing": 0.5/' smooth.json
run smooth
report "a label smoothing of a half is refused" refuses "dsc.dpo.label_smoothing"
end_of_tests
