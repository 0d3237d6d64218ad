#!/usr/bin/env bash
# test_demo_chat.sh - the data of `make demo-chat`: equal bytes at each run, held-out questions that are in no conversation of the
# training data, and tokens that the model folder has. Both trainings take their configs. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
make_data() { python3 -B "$root/scripts/demo_chat_data.py" "$1" >out 2>err; } # DIR
make_data one && make_data two || code=$?
report "two runs make the same files" eval '[ $code -eq 0 ] && diff -r one two'
report "at least 300 conversations; held-out questions are not in the training data" python3 - <<'END_OF_CHECK'
import json
def questions(name):
    rows = [json.loads(line)["messages"] for line in open("one/" + name, encoding="utf-8")]
    return len(rows), {m["content"] for row in rows for m in row if m["role"] == "user"}
(count, train), (held_count, held_out) = questions("train.jsonl"), questions("held_out.jsonl")
assert count >= 300 and held_count >= 50 and len(held_out) == held_count, (count, held_count)
assert not train & held_out
END_OF_CHECK
for name in train held_out; do
    "$dsc" data render --model one/model one/$name.jsonl >$name.out 2>err || code=$?
    report "$name.jsonl: each answer and its end token count" python3 - $name.out <<'END_OF_CHECK'
import json, sys
tokenizer = json.load(open("one/model/tokenizer.json", encoding="utf-8"))
config = json.load(open("one/model/config.json", encoding="utf-8"))
ends = 0
for line in open(sys.argv[1], encoding="utf-8"):
    row = json.loads(line)
    assert max(row["tokens"]) < len(tokenizer["model"]["vocab"]) <= config["vocab_size"]
    counted = [t for t, m in zip(row["tokens"], row["mask"]) if m]
    assert counted.count(2) == row["text"].count("<|im_start|>assistant") and counted[-1] == 2
    ends += 1
assert ends > 0
END_OF_CHECK
done
train() { "$bin/train" --config "$1" --model one/model --data "$2" --steps 1 >out 2>err; } # CONFIG DATA
train one/facts.json one/facts.txt || code=$?
report "the demo's first training takes its config and its text" [ $code -eq 0 ]
train "$root/configs/ds_config_chat.json" one/train.jsonl || code=$?
report "its second training takes its config and its conversations" [ $code -eq 0 ]
end_of_tests
