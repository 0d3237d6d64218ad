#!/usr/bin/env bash
# test_sft_train.sh - training on instruction data: the same run from messages and from their tokens with labels, packed
# or not, on one rank or two; over-long examples, kept samples, evaluation, hostile data. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache
for family in tiny_gpt2 tiny_llama; do
    mkdir $family
    cp "$root/tests/golden/tokenizer_gpt2.json" $family/tokenizer.json
done
echo '{"model_type": "gpt2", "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 128, "initializer_range": 0.2}' >tiny_gpt2/config.json
echo '{"model_type": "llama", "vocab_size": 700, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
       "intermediate_size": 48, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "initializer_range": 0.2}' >tiny_llama/config.json
python3 - <<'END'
import json, random
rng = random.Random(1)
words = "hello there the model reads an answer and learns to say it again".split()
text = lambda n: " ".join(rng.choice(words) for _ in range(rng.randrange(1, n)))
with open("chat.jsonl", "w") as f:
    for i in range(40):
        turns = [m for _ in range(1 + i % 2) for m in ({"role": "user", "content": text(6)}, {"role": "assistant", "content": text(8)})]
        f.write(json.dumps({"messages": turns}) + "\n")
open("bad.jsonl", "w").write(json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}) + "\n{broken\n")
END
# config NAME MODEL OWN TOP
config() {
    echo "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}, \"dsc\": {\"model\": \"$2\", \"seq_length\": 128, \"steps\": 3,
           \"data\": \"chat.jsonl\", \"eval_data\": \"chat.jsonl\", \"threads\": 1, \"seed\": 3 $3} ${4:-}}" >"$1.json"
}
# run NAME FLAGS...: losses of the steps in NAME.losses, the loss of the evaluation in NAME.eval
run() {
    local name=$1
    shift
    code=0
    timeout 100 "$bin/dsc-launch" --num_gpus="${ranks:-1}" train --config "$name.json" --log "$name.log" "$@" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.]*' "$name.log" >"$name.losses" 2>/dev/null
    grep -ohE 'validation loss [0-9.]+' out err | head -1 >"$name.eval"
}
near() { # FILE FILE: numbers within 2e-5
    python3 - "$@" <<'END'
import re, sys
a, b = ([float(x) for x in re.findall(r"[0-9]+\.[0-9]+", open(p).read())] for p in sys.argv[1:])
sys.exit(not (a and len(a) == len(b) and all(abs(x - y) <= 2e-5 * abs(y) for x, y in zip(a, b))))
END
}
kept() { grep -c 'its tokens are made' out; }

# Each line of a log has the time that the step waited for data, which is part of the step's own.
waits_known() { # LOG
    python3 - "$1" <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(not (rows and all(0 <= row["data_wait_ms"] <= row["step_ms"] for row in rows)))
END
}

for family in tiny_gpt2 tiny_llama; do
    config messages $family ''
    run messages
    report "$family trains on messages; the format and counts are told" eval \
        '[ $code -eq 0 ] && [ $(wc -l <messages.losses) -eq 3 ] && grep -q "chat.jsonl: format messages.*40 examples in [0-9]* samples of 128 tokens" out'
    report "$family: the log has the time that each step waited for data" waits_known messages.log
    "$dsc" data render --model $family chat.jsonl 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps({"input_ids": row["tokens"], "labels": [t if m else -100 for t, m in zip(row["tokens"], row["mask"])]}))' >tokens.jsonl
    config tokens $family ''
    run tokens --data tokens.jsonl --eval-data tokens.jsonl
    report "$family: input_ids and labels of dsc data render train to the same bits" eval \
        '[ $code -eq 0 ] && cmp messages.losses tokens.losses && cmp messages.eval tokens.eval'
    # No learning: the loss of the evaluation is a mean over the counted tokens of the same examples.
    for packing in true false; do
        config packing_$packing $family ", \"sft\": {\"packing\": $packing}" ', "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0, "warmup_min_lr": 0}}'
        run packing_$packing
    done
    report "$family: examples that share samples have the loss of examples alone" eval \
        '[ $code -eq 0 ] && near packing_true.eval packing_false.eval && grep -q "40 samples" out'
done

config two tiny_llama ''
ranks=2 run two
report "two ranks: the losses of one" near two.losses messages.losses
config again tiny_llama ''
run again
report "the next run finds the samples" eval '[ $code -eq 0 ] && [ $(kept) -eq 0 ] && cmp again.losses messages.losses && grep -q "40 examples in" out'
config whole tiny_llama ''
run whole --steps 6
config half tiny_llama ''
run half --save saved
run half --load saved --steps 6 # its log goes on
report "a resumed run has the losses of a whole one" eval '[ $code -eq 0 ] && [ $(wc -l <half.losses) -eq 6 ] && cmp half.losses whole.losses'
config short tiny_llama ', "sft": {"over_long": "drop"}'
run short --seq-len 48
report "over-long examples are dropped, and counted" eval '[ $code -eq 0 ] && [ $(kept) -ge 1 ] && grep -q "over-long examples dropped" out'
config cut tiny_llama ''
run cut --seq-len 48
report "or truncated, and counted" eval '[ $code -eq 0 ] && grep -q "examples truncated" out'
printf '%s' "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}" >tiny_llama/chat_template.jinja
run again
report "a template in the model folder makes other samples" eval '[ $code -eq 0 ] && [ $(kept) -ge 1 ] && ! cmp -s again.losses messages.losses'
config bad tiny_llama ''
run bad --data bad.jsonl
report "bad data: exit 2 with file and line, no samples are kept" eval \
    '[ $code -eq 2 ] && [ $(cat out err | grep -c "^dsc: error: ") -eq 1 ] && cat out err | grep -q "bad.jsonl, line 2" && [ -z "$(ls cache/dsc | grep "^bad.*samples")" ]'
config unused tiny_llama ', "sft": {}'
run unused --data "$root/README.md" --eval-data "$root/README.md"
report "a section without instruction data: exit 2" eval '[ $code -eq 2 ] && cat out err | grep -q "dsc.sft: no data file has JSON objects"'
config bytes tiny_llama ', "tokenizer": "none"'
run bytes
report "no tokenizer: exit 2" eval '[ $code -eq 2 ] && cat out err | grep -q "instruction data needs a tokenizer"'
python=${DSC_TEST_PYTHON:-python3}
if [ -e "${DSC_LIB:?}/dsc/libdsc_parquet.so" ] && "$python" -c 'import pyarrow.parquet' 2>/dev/null; then
    "$python" -c 'import json, pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.Table.from_pylist([json.loads(line) for line in open("chat.jsonl")]), "chat.parquet", row_group_size=9)'
    config lines tiny_gpt2 ""
    run lines
    config parquet tiny_gpt2 ""
    run parquet --data chat.parquet
    report "a Parquet file trains as its JSON lines do" eval '[ $code -eq 0 ] && [ -s lines.losses ] && cmp lines.losses parquet.losses'
else
    skip "a Parquet file trains as its JSON lines do" "no libdsc_parquet.so, or pyarrow is not installed for $python"
fi
end_of_tests
