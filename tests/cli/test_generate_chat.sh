#!/usr/bin/env bash
# test_generate_chat.sh - `dsc generate --chat` with a model of bytes that learned two answers: its ends, its context beside
# `dsc data render`, long conversations, settings of the model folder, refusals. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
here=$root/tests/cli
chat() { code=0; timeout 60 "$dsc" generate --model model --chat "$@" >out 2>err </dev/null || code=$?; }
lines() { local text=$1; shift; code=0; printf '%b' "$text" | timeout 60 "$dsc" generate --model model --chat "$@" >out 2>err || code=$?; }
fails() { [ $code -eq 2 ] && [ ! -s out ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
says() { [ $code -eq 0 ] && [ "$(cat out)" = "$1" ]; }
settings() { echo "$1" >model/generation_config.json; }

python3 "$here/chat_model.py" chat
python3 - <<'END_OF_ROWS'
import json
turns = [("say hello", "hello there"), ("say bye", "good bye")]
with open("rows.jsonl", "w") as file:
    for question, answer in turns * 40:
        file.write(json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}) + "\n")
END_OF_ROWS
"$dsc" data render --model chat rows.jsonl 2>err | python3 "$here/chat_model.py" tokens 48 rows.bin
echo '{"model_type": "gpt2", "vocab_size": 259, "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 192}' >model.json
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "dsc": {"model": "model.json", "seq_length": 48, "steps": 100, "seed": 3}}' >c.json
timeout 100 "$bin/train" --config c.json --data rows.bin --save run >out 2>err </dev/null
mv run/step-100 model
chat --prompt "say hello"
report "a folder without a tokenizer is refused" fails "no tokenizer.json is here"
cp chat/tokenizer.json model/
chat --prompt "say hello"
report "a folder without a template is refused with the files that are expected" eval \
    'fails "chat_template.jinja" && grep -q "tokenizer_config.json" err && grep -q -- "--chat-template" err'
cp chat/tokenizer_config.json model/

chat --prompt "say hello"
report "one question: the answer up to its end token" eval 'says "hello there" && [ ! -s err ]'
chat --prompt "say bye"
report "another question, another answer" says "good bye"
lines 'say hello\n\nsay bye\r\nsay hello' --show-context --max-new-tokens 24
report "lines of standard input: three questions in one conversation" eval \
    '[ $code -eq 0 ] && [ "$(head -n 1 out)" = "hello there" ] && [ "$(grep -c "^{" err)" -eq 3 ]'
grep '^{' err >contexts
lines 'say hello\ncaf\303\251 <|im_end|> \377\n"\\\t\n' --show-context --max-new-tokens 24 --system 'be "kind"'
grep '^{' err >>contexts
# The messages of each context with a further answer, as data: up to that answer the tokens are those of the context.
python3 - "$dsc" >why 2>&1 <<'END_OF_CHECK'
import json, subprocess, sys
contexts = [json.loads(line) for line in open("contexts", encoding="utf-8")]
assert len(contexts) == 6
assert [m["role"] for m in contexts[-1]["messages"]] == ["system", "user", "assistant", "user", "assistant", "user"]
assert contexts[4]["messages"][3]["content"] == "caf\u00e9 <|im_end|> \ufffd"
assert contexts[2]["messages"][:2] == [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "hello there"}]
assert contexts[2]["messages"][2]["content"] == "say bye"
with open("same.jsonl", "w", encoding="utf-8") as file:
    for context in contexts:
        file.write(json.dumps({"messages": context["messages"] + [{"role": "assistant", "content": "yes"}]}) + "\n")
out = subprocess.run([sys.argv[1], "data", "render", "--model", "model", "same.jsonl"], stdout=subprocess.PIPE, check=True).stdout
for context, line in zip(contexts, out.decode().split("\n")):
    row, count = json.loads(line), len(context["tokens"])
    assert row["tokens"][:count] == context["tokens"], (row["tokens"], context["tokens"])
    assert row["tokens"][count:] == [*b"yes", 257, 10] and row["mask"][count:] == [1, 1, 1, 1, 0]
END_OF_CHECK
report "the context has the tokens of dsc data render" test $? -eq 0

sed -i 's/"eos_token": "<|im_end|>"/"eos_token": "<|endoftext|>"/' model/tokenizer_config.json
chat --prompt "say hello"
report "the token that the template puts behind an answer ends it" says "hello there"
settings '{"eos_token_id": 32}'
chat --prompt "say hello"
report "eos_token_id of generation_config.json" says "hello"
settings '{"eos_token_id": [257, 108]}'
chat --prompt "say hello"
report "a list of end tokens" says "he"
rm model/generation_config.json
cp model/config.json config.json
sed -i 's/{/{"eos_token_id": [32],/' model/config.json
chat --prompt "say hello"
report "eos_token_id of config.json" says "hello"
cp config.json model/config.json
chat --prompt "say hello" --max-new-tokens 3
report "--max-new-tokens cuts an answer, and a note tells" eval 'says "hel" && grep -q "without an end token" err'

lines 'say hello\nsay bye\nsay hello\nsay bye\n' --system kind --context 100 --max-new-tokens 20 --show-context
grep '^{' err >contexts
report "a long conversation loses its oldest questions, not the system prompt" eval \
    '[ $code -eq 0 ] && grep -q "oldest questions and answers are left out" err && python3 - <<END_OF_CHECK
import json
rows = [json.loads(line) for line in open("contexts", encoding="utf-8")]
assert [len(row["tokens"]) <= 80 for row in rows] == [True] * 4
assert all([m["role"] for m in row["messages"]][:2] == ["system", "user"] and row["messages"][-1]["role"] == "user" for row in rows)
assert len(rows[3]["messages"]) < 8
END_OF_CHECK'
chat --prompt "$(printf 'x%.0s' {1..200})"
report "a question that is longer than the context" fails "the question alone"
chat --prompt x --context 193
report "a context longer than the model's positions" fails "192 positions"
chat --prompt x --max-new-tokens 192
report "no room for a question" fails "leaves no room"
lines "$(printf 'x%.0s' {1..1100000})"
report "a line that is too long" fails "a line has more than"

chat --prompt "say what" --temperature 3 --top-k 7 --top-p 0.9 --repetition-penalty 1.3 --max-new-tokens 12
cp out want
settings '{"do_sample": true, "temperature": 3.0, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.3, "max_new_tokens": 12}'
chat --prompt "say what"
report "settings of generation_config.json are those of the flags" cmp out want
chat --prompt "say what" --temperature 0 --repetition-penalty 1
cp out want
settings '{"temperature": 3.0, "top_k": 7, "max_new_tokens": 12}'
chat --prompt "say what"
report "flags win; without do_sample nothing is drawn" cmp out want
settings '{"num_beams": 4, "min_p": 0.1, "typical_p": 1.0, "bad_words_ids": null, "transformers_version": "4.5"}'
chat --prompt "say hello"
report "one warning names settings that are not supported" eval \
    'says "hello there" && [ "$(wc -l <err)" -eq 1 ] && grep -q "warning: model/generation_config.json: num_beams, min_p change" err'
for bad in '{"do_sample": true, "top_p": 2}' '{"do_sample": 1}' '{"repetition_penalty": 0}' '{"do_sample": true, "top_k": 1.5}' '{"eos_token_id": "x"}'; do
    settings "$bad"
    chat --prompt "say hello"
    report "refused: $bad" fails "generation_config.json:1:"
done
rm model/generation_config.json

echo '{{ raise_exception("no") }}' >refusing.jinja
chat --prompt x --chat-template refusing.jinja
report "a template that refuses the conversation" fails "refusing.jinja: chat template:1:"
code=0
timeout 60 "$dsc" generate --model model --system x --prompt y >out 2>err || code=$?
report "--system without --chat" fails "--system: needs --chat"
chat --prompt-ids 5
report "--chat beside --prompt-ids" fails "--prompt-ids"
chat --ignore-eos
report "--chat beside --ignore-eos" fails "--ignore-eos"
end_of_tests
