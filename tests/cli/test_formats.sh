#!/usr/bin/env bash
# test_formats.sh - data by its content: binary formats are refused by name, JSON and tables are read under any name, and
# no output replaces an input. This holds in `dsc data tokenize`, training and evaluation. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export DSC_PLUGIN_DIR=$tmp/no_plugins # Parquet is refused without its plugin
export XDG_CACHE_HOME=$tmp/cache
mkdir model
cp "$root/tests/golden/tokenizer_gpt2.json" model/tokenizer.json
echo '{"model_type": "gpt2", "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32}' >model/config.json
python3 - <<'END'
import csv, gzip, json, random
random.seed(1)
noise = bytes(random.randrange(256) for _ in range(3000))
texts = [f'document {i}, "quoted"\nwith a second line and a tab\t.' for i in range(60)]
lines = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts))
for name in ("d.jsonl", "corpus.json", "a.ndjson", "a.jsonlines", "A.JSONL", "noname", "wrong.txt"):
    open(name, "w").write(lines)
json.dump([{"id": i, "text": t} for i, t in enumerate(texts)], open("list.json", "w"), indent=1)
json.dump([{"text": t} for t in texts], open("list.txt", "w"))
for name, delimiter in (("t.csv", ","), ("t.tsv", "\t"), ("semicolon.csv", ";"), ("table", ",")):
    with open(name, "w", newline="") as f:
        csv.writer(f, delimiter=delimiter).writerows([["id", "text"]] + [[i, t] for i, t in enumerate(texts)])
with open("body.csv", "w", newline="") as f:
    csv.writer(f).writerows([["body", "id"]] + [[t, i] for i, t in enumerate(texts)])
open("part.parquet", "wb").write(b"PAR1" + noise + b"PAR1")
open("renamed.txt", "wb").write(b"PAR1" + noise)
open("raw.bin", "wb").write(b"PAR1" + noise)
open("a.jsonl.gz", "wb").write(gzip.compress(lines.encode()))
open("a.bz2", "wb").write(b"BZh9" + noise)
open("a.arrow", "wb").write(b"ARROW1\0\0" + noise)
open("latin1.txt", "wb").write("déjà vu, naïve café\n".encode("latin-1") * 20)
open("late.txt", "wb").write(b"plain words and more of them\n" * 9000 + b"\xff\n")
END
run() { code=0; timeout 60 "$@" >out 2>err </dev/null || code=$?; }
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
tokenize() { run "$dsc" data tokenize --tokenizer model "$@"; }
named= # ', "data_field": "NAME"', or nothing
train() { # NAME FLAGS...
    echo '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "dsc": {"seq_length": 32, "steps": 2, "seed": 3, "threads": 1'"$named"'}}' >c.json
    run "$bin/train" --config c.json --log "$1.log" "${@:2}"
    grep -o '"loss":[0-9.]*' "$1.log" >"$1.losses" 2>/dev/null
}

tokenize d.jsonl -o want.bin
train want --model model --data d.jsonl
for file in corpus.json a.ndjson a.jsonlines A.JSONL noname wrong.txt a.jsonl.gz list.json list.txt t.csv t.tsv semicolon.csv table; do
    flags=()
    case $file in
    *.gz) flags=(--decompress) ;;
    t.* | semicolon.csv | table)
        tokenize "$file" -o no.bin
        report "tokenize $file: a table without the name of a column is refused" eval 'refused "a table with the columns id, text: name the one with the text" && [ ! -e no.bin ]'
        train no --model model --data "$file"
        report "train on $file: likewise" refused "a table with the columns id, text: name the one with the text"
        flags=(--field text) named=', "data_field": "text"'
        ;;
    esac
    rm -f got.bin
    tokenize "$file" -o got.bin "${flags[@]}"
    report "tokenize $file: the documents of d.jsonl" cmp want.bin got.bin
    train got --model model --data "$file"
    report "train on $file: the losses of d.jsonl" eval '[ -s want.losses ] && cmp want.losses got.losses'
    named=
done
tokenize a.jsonl.gz -o no.bin
report "tokenize refuses a compressed file without --decompress" eval 'refused "the file is compressed; add --decompress" && [ ! -e no.bin ]'
tokenize t.csv -o no.bin --field body
report "the columns are named where none has the name" refused 'without a column "body"; its columns are id, text'
tokenize body.csv -o got.bin --field body
report "a table with the text in another column" cmp want.bin got.bin
tokenize body.csv -o no.bin
report "the columns are named where none is asked for" refused "a table with the columns body, id"
report "and nothing is written" [ ! -e no.bin ]

for file in part.parquet renamed.txt a.bz2 a.arrow latin1.txt late.txt; do
    case $file in
    part.parquet | renamed.txt) words="is Parquet" ;;
    *.bz2) words="bzip2 -dc 'a.bz2' > 'a'" ;;
    *.arrow) words="is Arrow" ;;
    latin1.txt) words="byte 1 is not UTF-8" ;;
    late.txt) words="byte 261000 is not UTF-8" ;;
    esac
    tokenize d.jsonl "$file" -o no.bin
    report "tokenize refuses $file" eval 'refused "$words" && [ ! -e no.bin ] && [ ! -e no.bin.tmp ]'
    train no --model model --data d.jsonl "$file"
    report "train refuses $file" refused "$words"
    train no --model model --data d.jsonl --eval-data "$file"
    report "evaluation refuses $file" refused "$words"
done
train no --model gpt2-nano --data renamed.txt
report "bytes as tokens: a binary format is refused too" refused "is Parquet"
train no --model gpt2-nano --data raw.bin
report "a token file that is a binary format" refused "is Parquet"
for file in noname list.txt t.csv table; do
    train no --model gpt2-nano --data "$file"
    report "bytes as tokens: $file needs a tokenizer" refused "documents need a tokenizer"
done

ln -s d.jsonl link
ln d.jsonl hard
cp d.jsonl keep
for out in d.jsonl ./d.jsonl link hard; do
    tokenize d.jsonl -o $out
    report "-o $out is the input" eval 'refused "the output is the input d.jsonl" && cmp d.jsonl keep'
done
ln -s "$tmp/d.jsonl" o.bin.tmp
tokenize d.jsonl -o o.bin
report "nor is it written through the temporary name" eval 'refused "the output is the input" && cmp d.jsonl keep'
rm o.bin.tmp
cp d.jsonl m.idx
tokenize m.idx -o m.bin --format megatron
report "nor through the index" eval 'refused "the output is the input m.idx" && cmp m.idx keep'
cp model/tokenizer.json t.json
tokenize d.jsonl -o model/tokenizer.json
report "the tokenizer is an input" eval 'refused "the output is the input" && cmp model/tokenizer.json t.json'
train d.jsonl --model model --data d.jsonl
mv d.jsonl.log d.log 2>/dev/null
cp keep run.log
train run --model model --data run.log
report "train --log over its data" eval 'refused "the output is the input run.log" && cmp run.log keep'
cp d.log plot.log
run "$dsc" plot plot.log -o plot.log
report "dsc plot -o over its log" eval 'refused "the output is the input plot.log" && cmp plot.log d.log'
: >empty.jsonl
tokenize d.jsonl empty.jsonl -o got.bin
report "an empty file has no document, and a note says so" eval '[ $code -eq 0 ] && cmp want.bin got.bin && grep -q "note: empty.jsonl is empty" err'
end_of_tests
