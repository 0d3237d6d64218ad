#!/usr/bin/env bash
# test_generate.sh - `dsc generate` on models that train saved: bytes and a tokenizer, seeds, ends of a text, whole characters, bad
# input. tests/unit/test_infer.c holds its tokens against the engine's. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
run() { code=0; timeout 60 "$dsc" generate "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
fails() { [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q '^dsc: error: ' "$tmp/err" && grep -qF -- "$1" "$tmp/err"; }
# trained NAME VOCAB DATA: a tiny model that train saves as NAME/step-2
trained() {
    echo "{\"model_type\": \"gpt2\", \"vocab_size\": $2, \"n_embd\": 16, \"n_head\": 2, \"n_layer\": 1, \"n_positions\": 64, \"initializer_range\": 0.5}" >"$tmp/$1.json"
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}, \"dsc\": {\"model\": \"$tmp/$1.json\", \"seq_length\": 32, \"steps\": 2, \"seed\": 3}}" >"$tmp/c.json"
    timeout 100 "$bin/train" --config "$tmp/c.json" --data "$3" --save "$tmp/$1" >"$tmp/out" 2>"$tmp/err" </dev/null
}
text=$root/tests/golden/tokenizer_text.txt
yes "The quick brown fox." | head -n 40 >"$tmp/t.txt"
trained bytes 256 "$tmp/t.txt"
report "train saves a model of bytes" [ -e "$tmp/bytes/step-2/model.safetensors" ]
run --model "$tmp/bytes/step-2" --prompt "The quick" --max-new-tokens 40 --temperature 1 --seed 5
cp "$tmp/out" "$tmp/first"
report "it continues a text, in whole characters" eval '[ $code -eq 0 ] && [ ! -s "$tmp/err" ] && iconv -f UTF-8 -t UTF-8 "$tmp/out" >/dev/null && [ $(wc -m <"$tmp/out") -gt 20 ]'
run --model "$tmp/bytes/step-2" --prompt "The quick" --max-new-tokens 40 --temperature 1 --seed 5 --threads 1
report "the same seed says the same" cmp "$tmp/first" "$tmp/out"
run --model "$tmp/bytes/step-2" --prompt "The quick" --max-new-tokens 40 --temperature 1 --seed 6
report "another seed does not" eval '[ $code -eq 0 ] && ! cmp -s "$tmp/first" "$tmp/out"'
run --model "$tmp/bytes/step-2" --prompt "The quick" --max_new_tokens 40
cp "$tmp/out" "$tmp/greedy"
run --model "$tmp/bytes/step-2" --prompt "The quick" --max-new-tokens 40 --top-k 1
report "the most likely of one is the most likely" cmp "$tmp/greedy" "$tmp/out"
run --model "$tmp/bytes/step-2" --prompt "The quick" --max-new-tokens 40 --top-p 0.5 --dtype bf16
report "top-p, bf16" [ $code -eq 0 ]
run --model "$tmp/bytes/step-2" --prompt-ids "84, 104,101 32" --max-new-tokens 20 --device cpu
ids=$(cat "$tmp/out")
run --model "$tmp/bytes/step-2" --prompt "The " --max-new-tokens 20
report "tokens as numbers" python3 - "$ids" "$tmp/out" <<'END'
import sys
ids = [int(i) for i in sys.argv[1].split(" ")]
assert len(ids) == 20 and bytes(ids).decode("utf-8", "replace") + "\n" == open(sys.argv[2], newline="", errors="strict").read()
END
run --model "$tmp/bytes/step-2" --prompt-ids 5,x
report "a prompt id that is no number is refused" fails "--prompt-ids"
run --model "$tmp/bytes/step-2" --prompt-ids 5,256 --max-new-tokens 5
report "a token that the model does not have" fails "token 256 at 1"
run --model "$tmp/bytes/step-2" --prompt "x" --max-new-tokens 65
report "more than the model has positions" fails "64 positions"
run --model "$tmp/bytes/step-2" --prompt ""
report "an empty prompt" fails "at least one token"
run --model "$tmp/bytes/step-2" --prompt x --temperature -1
report "a temperature below 0" fails "--temperature"
run --model "$tmp/bytes.json" --prompt x
report "a model without weights" fails "no weights"

"$dsc" data tokenize --tokenizer "$root/tests/golden/tokenizer_gpt2.json" "$text" -o "$tmp/t.bin" >"$tmp/out"
trained words 700 "$tmp/t.bin"
model=$tmp/words/step-2
run --model "$model" --prompt "It's 42"
report "a model of words needs its tokenizer" fails "--tokenizer"
cp "$root/tests/golden/tokenizer_gpt2.json" "$model/tokenizer.json"
run --model "$model" --prompt "It's 42" --max-new-tokens 50 --ignore-eos
cp "$tmp/out" "$tmp/words.txt"
report "with it, it goes on" eval '[ $code -eq 0 ] && iconv -f UTF-8 -t UTF-8 "$tmp/out" >/dev/null && [ $(wc -c <"$tmp/out") -gt 10 ]'
# Whatever token the text begins with ends it: nothing comes.
python3 - "$root/tests/golden/tokenizer_gpt2.json" "$tmp/words.txt" "$model" <<'END'
import json, sys
vocab = json.load(open(sys.argv[1]))["model"]["vocab"]
printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = [b for b in range(256) if b not in printable]
byte = {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
text = open(sys.argv[2], "rb").read()
ends = [i for name, i in vocab.items() if all(c in byte for c in name) and text.startswith(bytes(byte[c] for c in name))]
assert 0 < len(ends) <= 16
json.dump({"eos_token_id": ends}, open(sys.argv[3] + "/generation_config.json", "w"))
END
run --model "$model" --prompt "It's 42" --max-new-tokens 50
report "an end of the text ends it" eval '[ $code -eq 0 ] && [ $(wc -c <"$tmp/out") -eq 1 ]'
run --model "$model" --prompt "It's 42" --max-new-tokens 50 --ignore-eos
report "unless it is to be ignored" cmp "$tmp/out" "$tmp/words.txt"
echo '{' >"$model/generation_config.json"
run --model "$model" --prompt "It's 42"
report "a broken generation_config.json" fails "generation_config.json:"
end_of_tests
