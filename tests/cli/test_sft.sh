#!/usr/bin/env bash
# test_sft.sh - instruction data: `dsc data render` on each format, and beside jinja2 (sft_test.py; DSC_TEST_PYTHON names
# a Python that has jinja2). SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
golden=$root/tests/golden
cd "$tmp" || exit 1
mkdir model
cp "$golden/tokenizer_gpt2.json" model/tokenizer.json
python3 - <<'END'
import json
turn = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello there"}]
def lines(name, rows): open(name, "w").writelines(json.dumps(r) + "\n" for r in rows)
lines("messages.jsonl", [{"messages": turn}] * 3)
json.dump([{"messages": turn}] * 3, open("list.json", "w"), indent=1)
lines("noname", [{"messages": turn}] * 3)
lines("sharegpt.jsonl", [{"conversations": [{"from": "human", "value": "say hello"}, {"from": "gpt", "value": "hello there"}]}] * 3)
lines("prompt.jsonl", [{"prompt": "say hello: ", "completion": "hello there"}])
json.dump([{"instruction": "say", "input": "hello", "output": "hello there"}], open("alpaca_data.json", "w"))
lines("bad.jsonl", [{"messages": turn}, {"messages": [{"role": "nobody", "content": "x"}]}])
open("alpaca.csv", "w").write('instruction,input,output\nsay,"hello",hello there\n')
open("prompt.tsv", "w").write("prompt\tcompletion\nsay hello: \thello there\n")
lines("columns.jsonl", [{"dialog": turn}])
json.dump({"train_micro_batch_size_per_gpu": 1, "dsc": {"model": "model", "sft": {"columns": {"messages": "dialog"}, "system": "be kind"}}}, open("c.json", "w"))
END
# render FLAGS FILE: out, err and code
render() {
    code=0
    timeout 60 "$dsc" data render "$@" >out 2>err </dev/null || code=$?
}
# counted: the text of the tokens that count in the first example
counted() {
    python3 - <<'END'
import json
table = {chr(b): b for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}
table.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if chr(b) not in table)})
tokenizer = json.load(open("model/tokenizer.json"))
spelled = {i: bytes(table[c] for c in name) for name, i in tokenizer["model"]["vocab"].items()}
spelled.update({a["id"]: a["content"].encode() for a in tokenizer["added_tokens"]})
row = json.loads(open("out").readline())
print(b"".join(spelled[t] for t, m in zip(row["tokens"], row["mask"]) if m).decode())
END
}

render --model model messages.jsonl
report "messages: the answer and its end count, and the format is told" eval \
    '[ $code -eq 0 ] && [ "$(counted)" = " hello there<|endoftext|>" ] && grep -q "format messages.*3 examples" err'
cp out want
for file in list.json noname sharegpt.jsonl; do
    render --model model $file
    report "$file gives the same examples" eval '[ $code -eq 0 ] && [ "$(sed "s/\"line\":[0-9]*//" out)" = "$(sed "s/\"line\":[0-9]*//" want)" ]'
done
render --model model --count 1 messages.jsonl
report "--count 1: one example" eval '[ $code -eq 0 ] && [ $(wc -l <out) -eq 1 ]'
render --model model prompt.jsonl
report "prompt and completion: no template" eval \
    '[ $code -eq 0 ] && [ "$(counted)" = "hello there<|endoftext|>" ] && grep -q "\"text\":\"say hello: hello there\"" out'
render --model model alpaca_data.json
report "alpaca columns" eval '[ $code -eq 0 ] && [ "$(counted)" = "hello there<|endoftext|>" ] && grep -q "### Input:" out'
cp out want
render --model model alpaca.csv
report "alpaca columns of a CSV file" eval '[ $code -eq 0 ] && [ "$(sed "s/\"line\":[0-9]*//" out)" = "$(sed "s/\"line\":[0-9]*//" want)" ]'
render --model model prompt.tsv
report "prompt and completion of a TSV file" eval '[ $code -eq 0 ] && [ "$(counted)" = "hello there<|endoftext|>" ] && grep -q "prompt_completion" err'
render --config c.json columns.jsonl
report "settings of a config" eval '[ $code -eq 0 ] && grep -q "be kind" out'
render --model model bad.jsonl
report "a bad row: exit 2 and its line" eval '[ $code -eq 2 ] && [ $(grep -c error: err) -eq 1 ] && grep -q "bad.jsonl, line 2: message 1 has the role" err'
show() {
    code=0
    timeout 60 "$dsc" data show --tokenizer model "$@" >out 2>err </dev/null || code=$?
}
show --sample 0 --seq-len 80 messages.jsonl
report "show --sample: whole examples, their counted tokens, and what fills the sample" eval \
    '[ $code -eq 0 ] && [ $(grep -c "^     0 " out) -eq 2 ] && [ $(grep -c " 1  \"<|endoftext|>\"" out) -eq 2 ] && grep -q "fill the sample" out'
show --sample 1 --seq-len 80 messages.jsonl
report "the next sample has the rest" eval '[ $code -eq 0 ] && [ $(grep -c "^     0 " out) -eq 1 ]'
show --sample 2 --seq-len 80 messages.jsonl
report "there is no third: exit 2" eval '[ $code -eq 2 ] && grep -q "has 2 samples of 80 tokens" err'
render messages.jsonl
report "no model: exit 2" eval '[ $code -eq 2 ] && grep -q -- "--model" err'
python=${DSC_TEST_PYTHON:-python3}
if "$python" -c 'import jinja2; assert jinja2.__version__ >= "3.1"' 2>/dev/null; then
    code=0
    "$python" -B "$root/tests/cli/sft_test.py" "$dsc" "$golden/tokenizer_gpt2.json" >out 2>&1 || code=$?
    report "texts and masks of golden templates beside jinja2" test $code -eq 0
else
    skip "texts and masks of golden templates beside jinja2" "jinja2 3.1 is not installed for $python"
fi
end_of_tests
