#!/usr/bin/env bash
# test_data.sh - `dsc data tokenize` and `show`: golden ids, the same bytes from any number of threads, formats that train reads,
# bad input, nothing left behind. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
golden=$root/tests/golden
run() { code=0; timeout 60 "$dsc" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
fails() { [ $code -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q '^dsc: error: ' "$tmp/err" && grep -qF -- "$1" "$tmp/err"; }
# tokens FILE: the ids of a llm.c or raw uint16 file
tokens() { od -An -v -tu2 -w2 -j "${2:-1024}" "$1" | tr -d ' ' | paste -sd' '; }

text=$golden/tokenizer_text.txt
# gpt2's ids of the golden text, and the separator (id 0)
want="$(sed -n 's/^gpt2 [0-9]* //p' $golden/tokenizer_ids.txt) 0"
run data tokenize --tokenizer $golden/tokenizer_gpt2.json $text -o "$tmp/one.bin"
report "a text file's ids are the golden ones and the separator" eval '[ $code -eq 0 ] && [ "$(tokens $tmp/one.bin)" = "$want" ]'
run data tokenize --tokenizer $golden/tokenizer_gpt2.json $text -o "$tmp/none.bin" --separator none --format raw
report "without a separator, without a header" eval '[ "$(tokens $tmp/none.bin 0) 0" = "$want" ]'
python3 - "$text" "$tmp" <<'END'
import json, sys
text, tmp = open(sys.argv[1], newline="").read(), sys.argv[2]
parts = [text[i:i + 997] for i in range(0, len(text), 997)]
with open(tmp + "/d.jsonl", "w") as f:
    for i, p in enumerate(parts):
        f.write(json.dumps({"id": i, "text": p, "other": [p]}, ensure_ascii=i % 2 == 0) + ("\n\n" if i % 3 == 0 else "\n"))
for i, p in enumerate(parts):
    open(f"{tmp}/part{i:03}.txt", "w", newline="").write(p)
# With places to cut, and a line that has none for 1.6 MB
open(tmp + "/long.txt", "w", newline="").write("".join(f"{text}\nline {i}, it's here\nand there\n" for i in range(160)) + "x y " * 400000 + text)
open(tmp + "/bad.jsonl", "w").write('{"text": "a"}\n{"text": 5}\n')
open(tmp + "/broken.jsonl", "w").write('{"text": "a"}\n{"text": "b"\n')
END
run data tokenize --tokenizer $golden/tokenizer_gpt2.json "$tmp/d.jsonl" -o "$tmp/jsonl.bin"
run data tokenize --tokenizer $golden/tokenizer_gpt2.json "$tmp"/part*.txt -o "$tmp/parts.bin"
report "lines of a jsonl and files of the same texts have the same ids" cmp "$tmp/jsonl.bin" "$tmp/parts.bin"
for style in gpt2 llama2; do
    for threads in 1 2 5; do
        run data tokenize --tokenizer $golden/tokenizer_$style.json "$tmp/long.txt" "$tmp/d.jsonl" -o "$tmp/t$threads.bin" --threads $threads
    done
    report "$style: 1, 2 and 5 threads write the same bytes" eval 'cmp "$tmp/t1.bin" "$tmp/t2.bin" && cmp "$tmp/t1.bin" "$tmp/t5.bin" && [ $(stat -c %s "$tmp/t1.bin") -gt 1000000 ]'
done
run data show --tokenizer $golden/tokenizer_gpt2.json "$tmp/none.bin" --count 1000000
head -c -1 "$tmp/out" >"$tmp/back"
report "show gives the text back" cmp "$tmp/back" $text
run data show --tokenizer $golden/tokenizer_gpt2.json "$tmp/none.bin" --first 1000000000
report "show behind the last token" fails "there are"

run data tokenize --tokenizer $golden/tokenizer_gpt2.json "$tmp"/part*.txt -o "$tmp/mm.bin" --format megatron
python3 - "$tmp" <<'END'
import struct, sys
tmp = sys.argv[1]
idx, data = open(tmp + "/mm.idx", "rb").read(), open(tmp + "/mm.bin", "rb").read()
assert idx[:9] == b"MMIDIDX\0\0" and struct.unpack("<Q", idx[9:17]) == (1,) and idx[17] == 8
n, d = struct.unpack("<QQ", idx[18:34])
lengths = struct.unpack(f"<{n}i", idx[34:34 + 4 * n])
offsets = struct.unpack(f"<{n}q", idx[34 + 4 * n:34 + 12 * n])
starts = struct.unpack(f"<{d}q", idx[34 + 12 * n:])
assert d == n + 1 and starts == tuple(range(d)) and sum(lengths) * 2 == len(data)
assert all(offsets[i] == 2 * sum(lengths[:i]) for i in range(n))
assert all(data[offsets[i] + 2 * lengths[i] - 2:offsets[i] + 2 * lengths[i]] == b"\0\0" for i in range(n))
assert data == open(tmp + "/parts.bin", "rb").read()[1024:]
END
report "megatron: the index says where documents begin" [ $? -eq 0 ]
echo '{"model_type": "gpt2", "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32}' >"$tmp/m.json"
cat >"$tmp/c.json" <<END
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "dsc": {"model": "$tmp/m.json", "seq_length": 32, "steps": 2, "seed": 3}}
END
for data in parts.bin mm.bin mm.idx mm; do
    "$bin/train" --config "$tmp/c.json" --data "$tmp/$data" --log "$tmp/$data.log" >"$tmp/out" 2>&1 </dev/null
    grep -o '"loss":[0-9.]*' "$tmp/$data.log" >"$tmp/$data.losses"
done
report "train learns the same from llm.c's file, PREFIX.bin, PREFIX.idx and PREFIX" eval \
    '[ -s $tmp/parts.bin.losses ] && cmp $tmp/parts.bin.losses $tmp/mm.bin.losses && cmp $tmp/parts.bin.losses $tmp/mm.idx.losses && cmp $tmp/parts.bin.losses $tmp/mm.losses'
weighted() { # WEIGHTS FILE...: steps of an epoch
    sed "s/\"steps\": 2/\"data_weights\": $1, \"steps\": 1/" "$tmp/c.json" >"$tmp/w.json"
    shift
    code=0
    timeout 60 "$bin/train" --config "$tmp/w.json" --data "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
weighted "[2, 0.5]" "$tmp/parts.bin" "$tmp/mm.bin"
report "data_weights: one number for each file" [ $code -eq 0 ]
weighted "[2]" "$tmp/parts.bin" "$tmp/mm.bin"
report "data_weights: fewer than files" fails "1 weights for 2 files"
weighted "[2, 0]" "$tmp/parts.bin" "$tmp/mm.bin"
report "data_weights: 0 is no weight" fails "dsc.data_weights"
run check --kind tokens-mmidx "$tmp/mm.idx" --vocab-size 700
report "check takes the index" [ $code -eq 0 ]
run check --kind tokens-mmidx "$tmp/mm.idx" --vocab-size 600
report "check finds an id outside the vocabulary" fails "outside the model's vocabulary of 600"
truncate -s -2 "$tmp/mm.bin"
run check --kind tokens-mmidx "$tmp/mm.idx"
report "data that are shorter than their index says" fails "its index says"
run check --kind tokenizer $golden/tokenizer_llama3.json
report "check takes a tokenizer" [ $code -eq 0 ]
run check --kind tokenizer $text
report "check refuses a text as a tokenizer" fails "tokenizer_text.txt:1:1"

rm -f "$tmp/x.bin"
for words in "is not there:$tmp/none.txt" "line 2:$tmp/bad.jsonl" "line 2:$tmp/broken.jsonl"; do
    run data tokenize --tokenizer $golden/tokenizer_gpt2.json $text "${words#*:}" -o "$tmp/x.bin" --threads 2
    case "$words" in is*) words="No such file:" ;; esac
    report "refused, nothing left: ${words%%:*}" eval 'fails "${words%%:*}" && [ ! -e "$tmp/x.bin" ] && [ ! -e "$tmp/x.bin.tmp" ]'
done
run data tokenize --tokenizer $golden/tokenizer_gpt2.json $text -o "$tmp/x.bin" --separator "<nope>"
report "a separator that is no token" fails "<nope>"
run data tokenize --tokenizer "$tmp" $text -o "$tmp/x.bin"
report "a folder without a tokenizer.json says how to get one" fails "save_pretrained"
run data tokenize $text -o "$tmp/x.bin"
report "no tokenizer" fails "--tokenizer"

# Tokens of a post-processor around a text: llama3 has one before it, BERT one on each side.
printf '{"text": "one two"}\n{"text": "three"}\n' >"$tmp/two.jsonl"
around() { # STYLE FLAGS...
    run data tokenize --tokenizer $golden/tokenizer_$1.json "$tmp/two.jsonl" -o "$tmp/around.bin" "${@:2}"
    run data show --tokenizer $golden/tokenizer_$1.json "$tmp/around.bin"
    head -c -1 "$tmp/out"
}
report "llama3: a begin token and an end token for each text" \
    [ "$(around llama3)" = "<|begin_of_text|>one two<|end_of_text|><|begin_of_text|>three<|end_of_text|>" ]
report "--begin none: no begin token" [ "$(around llama3 --begin none)" = "one two<|end_of_text|>three<|end_of_text|>" ]
report "--begin TOKEN instead" [ "$(around llama3 --begin '<|end_of_text|>' --separator none)" = "<|end_of_text|>one two<|end_of_text|>three" ]
report "BERT: [SEP] ends a text once" [ "$(around bert | grep -oE '\[[A-Z]*\]' | paste -sd' ')" = "[CLS] [SEP] [CLS] [SEP]" ]
report "gpt2: nothing but the separator" [ "$(around gpt2)" = "one two<|endoftext|>three<|endoftext|>" ]
end_of_tests
