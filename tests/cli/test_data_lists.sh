#!/usr/bin/env bash
# test_data_lists.sh - lists of many data files: patterns, more files than may be open, files shorter than a sample, empty
# ones, and tokenizers that do not fit the model. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache
mkdir model shards short pairs
cp "$root/tests/golden/tokenizer_gpt2.json" model/tokenizer.json
echo '{"model_type": "gpt2", "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32}' >model/config.json
python3 - <<'END'
import json, random, struct
random.seed(1)
whole = b""
for i in range(1, 1101):
    tokens = struct.pack("<65H", *[random.randrange(256) for _ in range(65)])
    open(f"shards/s{i:05d}.bin", "wb").write(struct.pack("<256i", 20240520, 1, 65, *[0] * 253) + tokens)
parts = [bytes(random.choice(b"abcdefgh ") for _ in range(random.randint(1, 32))) for _ in range(60)]
for i, part in enumerate(parts):
    open(f"short/{i:02d}.txt", "wb").write(part)
open("joined.txt", "wb").write(b"".join(parts))
open("long.txt", "wb").write(bytes(random.choice(b"abcdefgh ") for _ in range(2000)))
open("docs.jsonl", "w").writelines(json.dumps({"text": f"some words of text {i} and more of them to fill a sample"}) + "\n" for i in range(40))
t = json.load(open("model/tokenizer.json"))
size = max(t["model"]["vocab"].values()) + 1
size = max([size] + [a["id"] + 1 for a in t["added_tokens"]])
for i, text in enumerate(("<|im_start|>", "<|im_end|>")):
    t["added_tokens"].append({"id": 700 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
import os
os.makedirs("more", exist_ok=True)
json.dump(t, open("more/tokenizer.json", "w"))
json.dump(json.load(open("model/config.json")), open("more/config.json", "w"))
open("chat.jsonl", "w").writelines(json.dumps({"text": f"<|im_start|>user\nsome words {i} and more of them<|im_end|>"}) + "\n" for i in range(40))
END
: >empty.txt
: >empty.jsonl
# train NAME OWN FLAGS...: losses in NAME.losses
train() {
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}, \"dsc\": {\"seq_length\": 32, \"steps\": 8, \"seed\": 3, \"threads\": 1 $2}}" >c.json
    code=0
    timeout 60 "$bin/train" --config c.json --log "$1.log" "${@:3}" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.]*' "$1.log" >"$1.losses" 2>/dev/null
}
same() { [ -s "$1.losses" ] && cmp "$1.losses" "$2.losses"; }
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }

train list "" --data shards/*.bin
report "1100 files on the command line" [ $code -eq 0 ]
train quoted "" --data 'shards/*.bin'
report "a pattern in quotes: the same files" same list quoted
train config ', "data": "shards/s*[0-9].bin"'
report "a pattern in the config" same list config
ls shards | sed 's,.*,"shards/&",' | paste -sd, >names
train named ", \"data\": [$(cat names)]"
report "1100 names in the config" same list named
(ulimit -n 300 && train few "" --data 'shards/*.bin'; echo $code >code)
report "with 300 descriptors" eval '[ "$(cat code)" = 0 ] && same list few'
train none "" --data 'shards/*.txt'
report "nothing fits a pattern" refused "shards/*.txt: no file fits this pattern"
cp long.txt 'a*b.txt'
train starred "" --data 'a*b.txt'
report "a file with a star in its name" [ $code -eq 0 ]
"$dsc" data tokenize --tokenizer model docs.jsonl -o pairs/d.bin --format megatron >/dev/null
train pairs ', "model": "model"' --data 'pairs/*'
train pair ', "model": "model"' --data pairs/d.bin
report "a pattern with Megatron's pair reads it once" same pairs pair
train weights ', "data_weights": [1, 0.5]' --data long.txt 'shards/s0000?.bin'
report "a weight for each name, also of a pattern" [ $code -eq 0 ]
python3 -c 'print("[" + ",".join(["\"x\""] * 5000) + "]")' >many
train many ", \"data\": $(cat many)"
report "more names than a list may have: the limit and the way out" eval 'refused "at most 4096" && grep -qF "folder/*.bin" err'

train joined "" --data joined.txt
train parts "" --data 'short/*.txt'
report "files shorter than a sample are joined" same joined parts
report "and a line says so" grep -qF '60 data files (short/00.txt, ...) are shorter than a sample, and joined to one text; a sample has 32 tokens' out
train before "" --data long.txt joined.txt
train between "" --data long.txt 'short/*.txt'
report "beside a long one" same before between
train weighted ', "data_weights": [1, 2]' --data long.txt joined.txt
train apart ', "data_weights": [1, 2]' --data long.txt 'short/*.txt'
report "with a weight" same weighted apart
train alone "" --data long.txt
train with "" --data long.txt short/03.txt empty.txt
report "one short and one empty file are left out" same alone with
report "with a warning for each" eval 'grep -qF "warning: 1 data file (short/03.txt) is too short for a sample" err && grep -qF "warning: 1 data file (empty.txt) is empty" err'
train two "" --data short/03.txt empty.txt
report "nothing but short files: the user's file is named" refused "short/03.txt: this file and the 1 others have fewer tokens than one sample of 32"
train docs ', "model": "model"' --data docs.jsonl
train and_empty ', "model": "model"' --data docs.jsonl empty.jsonl
report "an empty *.jsonl among documents" same docs and_empty
echo '{"text": "a b"}' >tiny.jsonl
train tiny ', "model": "model"' --data tiny.jsonl
report "a short text with a tokenizer: its own name" refused "error: tiny.jsonl: "
train ends ', "model": "model", "document_end": 0' --data docs.jsonl 'tiny.jsonl' empty.jsonl
report "documents in positions" [ $code -eq 0 ]

train larger ', "model": "more"' --data docs.jsonl
report "a tokenizer with more tokens than rows: a warning with both sizes and the tokens" eval \
    '[ $code -eq 0 ] && grep -qF "has 702 tokens and the model 700 rows" err && grep -qF "700 \"<|im_start|>\" to 701 \"<|im_end|>\"" err'
train beyond ', "model": "more"' --data chat.jsonl
report "a text with such a token: the text is named, not the cache" eval 'refused "chat.jsonl: token 700" && ! grep -q "error: .*cache" err'
train evaluated ', "model": "more"' --data long.txt --eval-data chat.jsonl
report "in evaluation too" refused "chat.jsonl: token 700"

# Instruction data: 40 files of two conversations each, and files of samples.
mkdir talks samples
python3 - <<'END'
import json
for i in range(40):
    rows = [{"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"{i} said {j}"}]} for j in range(2)]
    open(f"talks/{i:02d}.jsonl", "w").writelines(json.dumps(r) + "\n" for r in rows)
END
train talks ', "model": "model"' --data talks/*.jsonl --eval-data talks/00.jsonl
train talks_pattern ', "model": "model"' --data 'talks/*.jsonl' --eval-data 'talks/0[0].jsonl'
report "a pattern of instruction files: the same run" eval '[ $code -eq 0 ] && same talks talks_pattern'
report "and a line for each file" grep -q "talks/07.jsonl: format messages.* 2 examples in [12] sample" out
train evaluated_talks ', "model": "model"' --data long.txt --eval-data 'talks/0?.jsonl'
report "a pattern of instruction files in the evaluation alone" [ $code -eq 0 ]
train mixed ', "model": "model", "data_weights": [1, 2, 1]' --data docs.jsonl 'talks/0?.jsonl' tiny.jsonl
report "the short text beside instruction files is left out, by its name" grep -qF "warning: 1 data file (tiny.jsonl) is too short for a sample" err
train mixed_named ", \"model\": \"model\", \"data_weights\": [1$(printf ', 2%.0s' {1..10}), 1]" --data docs.jsonl talks/0?.jsonl tiny.jsonl
report "documents, instruction files and a short text in one list" eval '[ $code -eq 0 ] && same mixed mixed_named'
kept=(cache/dsc/*.samples)
for i in {0..299}; do cp "${kept[i % ${#kept[@]}]}" samples/$i.samples; done
train kept ', "model": "model"' --data 'samples/*.samples'
report "300 files of samples" [ $code -eq 0 ]
(ulimit -n 290 && train few_kept ', "model": "model"' --data 'samples/*.samples'; echo $code >code)
report "with 290 descriptors" eval '[ "$(cat code)" = 0 ] && same kept few_kept'
train kept_other ', "model": "model"' --seq-len 16 --data samples/7.samples
report "samples of another length: their name and both lengths" refused "samples/7.samples: has samples of 32 tokens, and the run has 16"
end_of_tests
