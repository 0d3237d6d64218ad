#!/usr/bin/env bash
# test_packed_data.sh - gzip and zstd files give the tokens, losses and checkpoints of the files in them, also on several
# ranks and in a resumed run. Damaged and too large files end in one line and leave nothing. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache
mkdir model
cp "$root/tests/golden/tokenizer_gpt2.json" model/tokenizer.json
echo '{"model_type": "gpt2", "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32}' >model/config.json
python3 - <<'END'
import csv, gzip, io, json, random
rng = random.Random(1)
words = "hello there the model reads an answer, and learns to say it again\n é".split(" ")
text = lambda n: " ".join(rng.choice(words) for _ in range(n))
rows = [text(rng.randrange(5, 60)) for _ in range(300)]
table = io.StringIO()
csv.writer(table).writerows([["id", "text"]] + [[i, t] for i, t in enumerate(rows)])
chat = lambda: {"messages": [{"role": "user", "content": text(6)}, {"role": "assistant", "content": text(8)}]}
files = {"plain.txt": "".join(rows), "docs.jsonl": "".join(json.dumps({"text": t}) + "\n" for t in rows),
         "list.json": json.dumps([{"text": t} for t in rows], indent=1), "table.csv": table.getvalue(),
         "table.tsv": "id\ttext\n" + "".join(f"{i}\t{t}\n" for i, t in enumerate(t.replace("\n", " ") for t in rows)),
         "chat.jsonl": "".join(json.dumps(chat()) + "\n" for _ in range(120)),
         "long.txt": "".join(text(1000) for _ in range(500)), "second.txt": "one more text\n" * 40}
for name, content in files.items():
    data = content.encode()
    open(name, "wb").write(data)
    third = len(data) // 3
    open(name + ".gz", "wb").write(b"".join(gzip.compress(part, 9, mtime=0) for part in (data[:third], data[third:2 * third], data[2 * third:])))
whole = open("long.txt.gz", "rb").read()
open("cut.txt.gz", "wb").write(whole[:-len(whole) // 5])
open("flip.jsonl.gz", "wb").write((d := bytearray(open("docs.jsonl.gz", "rb").read())) and (d.__setitem__(len(d) // 2, d[len(d) // 2] ^ 255) or bytes(d)))
open("bomb.jsonl.gz", "wb").write(gzip.compress((b'{"text": "' + b"a b " * 100 + b'"}\n') * 1000000, 9))
open("parquet.gz", "wb").write(gzip.compress(b"PAR1" + bytes(rng.randrange(256) for _ in range(3000))))
END
if command -v zstd >/dev/null; then
    for file in plain.txt docs.jsonl list.json table.csv table.tsv chat.jsonl second.txt; do
        half=$(($(wc -c <"$file") / 2))
        { head -c $half "$file" | zstd -qc; tail -c +$((half + 1)) "$file" | zstd -qc; } >"$file.zst"
    done
    endings="gz zst"
else
    endings=gz
fi
run() { code=0; timeout 60 "$@" >out 2>err </dev/null || code=$?; }
refused() { [ "$code" -eq 2 ] && [ "$(grep -c '^dsc: error: ' err)" -eq 1 ] && grep -qF -- "$1" err; }
tokenize() { run "$dsc" data tokenize --tokenizer model --decompress --field text "$@"; }
# train NAME RANKS STEPS DATA FLAGS...: losses in NAME.losses, the checkpoint's hash in NAME.hash
train() {
    local name=$1 ranks=$2 steps=$3 data=$4
    shift 4
    echo "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}, \"dsc\": {\"model\": \"${model:-model}\", \"seq_length\": 32, \"steps\": $steps, \"seed\": 3, \"threads\": 1, \"data_field\": \"text\", \"data\": \"$data\"}}" >c.json
    run "$bin/dsc-launch" --num_gpus="$ranks" train --config c.json --log "$name.log" --save "$name.save" "$@"
    grep -o '"loss":[0-9.]*' "$name.log" >"$name.losses" 2>/dev/null
    "$dsc" ckpt hash "$name.save/step-$steps" 2>&1 | sed 's/ .*//' >"$name.hash"
}
same() { [ -s want.losses ] && cmp want.losses got.losses && [ -s want.hash ] && ! grep -q error want.hash && cmp want.hash got.hash; }
fresh() { rm -rf got.log got.save want.log want.save; }

for file in plain.txt docs.jsonl list.json table.csv table.tsv; do
    tokenize $file second.txt -o want.bin
    for ending in $endings; do
        tokenize $file.$ending second.txt.$ending -o got.bin
        report "tokenize $file.$ending: the tokens of $file" cmp want.bin got.bin
    done
done
"$dsc" data render --model model chat.jsonl >want.rows 2>/dev/null
"$dsc" data show --tokenizer model --seq-len 32 --sample 1 chat.jsonl >want.show 2>/dev/null
for ending in $endings; do
    "$dsc" data render --model model chat.jsonl.$ending >got.rows 2>/dev/null
    report "data render chat.jsonl.$ending" eval '[ -s want.rows ] && cmp want.rows got.rows'
    "$dsc" data show --tokenizer model --seq-len 32 --sample 1 chat.jsonl.$ending 2>/dev/null >got.show
    report "data show --sample of chat.jsonl.$ending" eval '[ -s want.show ] && cmp want.show got.show'
done
cp docs.jsonl.gz renamed.txt
tokenize docs.jsonl -o want.bin
tokenize renamed.txt -o got.bin
report "the content decides, not the name" cmp want.bin got.bin

# By day each kind of file has some of the numbers of ranks, text all of them; samples are resumed from text and chats.
declare -A some_ranks=([plain.txt]="1 2 4" [docs.jsonl]=2 [table.csv]=4 [chat.jsonl]="1 2") is_resumed=([plain.txt]=1 [chat.jsonl]=1)
for file in plain.txt docs.jsonl table.csv chat.jsonl; do
    for ranks in $([ "${DSC_TEST_NIGHT:-0}" = 1 ] && echo 1 2 4 || echo "${some_ranks[$file]}"); do
        fresh
        train want $ranks 4 $file
        for ending in $endings; do
            rm -rf got.log got.save
            train got $ranks 4 $file.$ending
            report "$file.$ending on $ranks ranks: losses and checkpoint of $file" same
        done
    done
    [ -n "${is_resumed[$file]:-}" ] || [ "${DSC_TEST_NIGHT:-0}" = 1 ] || continue
    fresh
    train want 2 2 $file
    train want 1 4 $file --resume want.save/step-2
    for ending in $endings; do
        rm -rf got.log got.save
        train got 2 2 $file.$ending
        train got 1 4 $file.$ending --resume got.save/step-2
        report "$file.$ending, resumed on another number of ranks" same
    done
done
model=gpt2-nano
for ranks in 1 2; do
    fresh
    train want $ranks 3 plain.txt --tokenizer none
    train got $ranks 3 plain.txt.gz --tokenizer none
    report "bytes as tokens on $ranks ranks: the run of the plain file" same
done
report "they are decompressed once" eval '[ "$(ls cache/dsc | grep -c "^plain.txt.gz.*\.txt$")" -eq 1 ]'
train no 1 3 cut.txt.gz --tokenizer none
report "bytes as tokens: a truncated file leaves none" eval 'refused "stream is truncated at byte" && ! ls cache/dsc/cut* 2>/dev/null | grep -v lock'
train no 1 3 docs.jsonl.gz --tokenizer none
report "bytes as tokens: documents need a tokenizer" refused "documents need a tokenizer"
model=model

refusal() { # FILE WORDS
    local packed=$1 words="$1: $2"
    tokenize second.txt "$1" -o no.bin
    report "tokenize $1: one line, and no file" eval 'refused "$words" && [ ! -e no.bin ] && [ ! -e no.bin.tmp ]'
    train no 1 2 "$1"
    report "train on $1: one line, and nothing kept" eval 'refused "$words" && ! ls cache/dsc/"$packed"* 2>/dev/null | grep -v lock'
}
refusal cut.txt.gz "the gzip stream is truncated at byte $(wc -c <cut.txt.gz)"
refusal flip.jsonl.gz "the gzip stream is damaged at byte"
refusal parquet.gz "the content is a compressed file of Parquet"
code=0
# Shadow memory of a sanitizer is address space.
([ -n "${DSC_SAN:-}" ] || ulimit -v 1048576; timeout 60 "$dsc" data tokenize --tokenizer model --decompress --threads 1 bomb.jsonl.gz -o no.bin) >out 2>err </dev/null || code=$?
report "400 MB of one line over and over are refused" eval 'refused "256 for each byte, and 16 MiB" && [ ! -e no.bin ]'
printf '%s\n' '#define _GNU_SOURCE' '#include <dlfcn.h>' '#include <string.h>' \
    'void *dlopen(const char *name, int flags) {' \
    '    if (name != NULL && (strstr(name, "libz.so") || strstr(name, "libzstd.so"))) return NULL;' \
    '    return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(name, flags); }' >none.c
if [ -n "${DSC_SAN:-}" ]; then
    skip "without zlib: the package and the command are named" "nothing is preloaded into a sanitized program"
elif ${CC:-cc} -shared -fPIC -w none.c -o none.so 2>/dev/null; then
    run env LD_PRELOAD="${LD_PRELOAD:-} $tmp/none.so" "$dsc" data tokenize --decompress --tokenizer model docs.jsonl.gz -o no.bin
    report "without zlib: the package and the command are named" eval '[ $code -ne 0 ] && grep -q "zlib1g" err && grep -q "gunzip -k FILE" err && [ $(wc -l <err) -eq 1 ]'
fi
end_of_tests
