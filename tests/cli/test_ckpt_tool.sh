#!/usr/bin/env bash
# test_ckpt_tool.sh - `dsc ckpt ls|verify|hash` and `dsc check` of `latest` and token files, on checkpoints that `train` wrote.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export OMP_NUM_THREADS=1

run() { code=0; timeout 60 "$dsc" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
fails() { # fails WORDS: exit 2, nothing on stdout, one error line with the words
    [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q '^dsc: error: ' "$tmp/err" &&
        grep -qF -- "$1" "$tmp/err"
}
prints() { [ $code -eq 0 ] && [ ! -s "$tmp/err" ] && grep -qE -- "$1" "$tmp/out"; }
lines() { [ $code -eq 0 ] && [ "$(wc -l <"$tmp/out")" -eq "$1" ]; }
silent() { [ $code -eq 0 ] && [ ! -s "$tmp/out" ] && [ ! -s "$tmp/err" ]; }

train() { # train DIR STEPS STAGE BF16 [ARGS]: saves every step
    local dir=$1 steps=$2
    printf '{"train_micro_batch_size_per_gpu":1,"bf16":{"enabled":%s},"zero_optimization":{"stage":%s},"optimizer":{"type":"AdamW",
        "params":{"lr":0.001}},"dsc":{"model":"gpt2-nano","seq_length":16}}\n' "$4" "$3" >"$tmp/c.json"
    shift 4
    timeout 120 "$bin/train" --config "$tmp/c.json" --data "$tmp/text.txt" --steps "$steps" --save "$dir" --save-every 1 "$@" \
        >"$tmp/train.log" 2>&1 </dev/null || sed 's/^/# train: /' "$tmp/train.log" | tail -n 3
}
seq 1 2000 >"$tmp/text.txt"
code=0; : >"$tmp/out"; : >"$tmp/err"
train "$tmp/run" 11 0 true
train "$tmp/same" 2 2 true
train "$tmp/fp32" 2 0 false

# ---- ls ----
run ckpt ls "$tmp/run"
report "one line a checkpoint" lines 11
in_order() { [ "$(awk '{print $1}' "$tmp/out")" = "$(seq -f step-%.0f 1 11)" ]; }
report "by number: 10 after 9" in_order
report "size, precision, ranks and stage" prints '^step-9 +[0-9.]+ MiB  bf16, 1 rank, ZeRO stage 0, dsc '
only_last() { [ "$(grep -n '(latest)' "$tmp/out" | cut -d: -f1)" = 11 ]; }
report "the latest is marked" only_last
run ckpt ls "$tmp/fp32/step-1"; report "one folder" prints 'step-1 .*fp32'
mkdir "$tmp/empty"; run ckpt ls "$tmp/empty"; report "an empty folder" prints '^no checkpoints$'
run ckpt ls "$tmp/none"; report "no folder" fails "no such checkpoint folder"
run ckpt ls "$tmp/c.json"; report "a file" fails "$tmp/c.json"

# ---- verify and hash ----
run ckpt verify "$tmp/run"; report "the latest is good" prints "/run/step-11: good, step 11, "
run ckpt verify "$tmp/run/step-3"; report "one is good" prints "/run/step-3: good, step 3, "
run ckpt hash "$tmp/run/step-2"; report "64 hex digits" prints '^[0-9a-f]{64}$'
hash=$(cat "$tmp/out")
run ckpt hash "$tmp/same/step-2"; report "stage 2 has the hash of stage 0" prints "^$hash\$"
run ckpt hash "$tmp/same"; report "the folder means its latest" prints "^$hash\$"
differs() { [ $code -eq 0 ] && [ "$(cat "$tmp/out")" != "$hash" ]; }
run ckpt hash "$tmp/run/step-3"; report "another step, another hash" differs
run ckpt hash "$tmp/fp32/step-2"; report "another precision, another hash" differs

# The hash by other hands: DESIGN section 7 from the files alone.
cat >"$tmp/hash.py" <<'END'
import hashlib, json, struct, sys
def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__", None)
    return {k: (v["shape"], data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]]) for k, v in head.items()}
model, state, sha = read(sys.argv[1] + "/model.safetensors"), read(sys.argv[1] + "/optimizer.safetensors"), hashlib.sha256()
for name in sorted(model):
    shape, weights = model[name]
    sha.update(name.encode() + b"\0" + struct.pack("<I%dQ" % len(shape), len(shape), *shape))
    sha.update(state["master." + name][1] if "master." + name in state else weights)
    sha.update(state["exp_avg." + name][1] + state["exp_avg_sq." + name][1])
sha.update(struct.pack("<Q", int(sys.argv[2])))
print(sha.hexdigest())
END
if command -v python3 >/dev/null; then
    for dir in same fp32; do
        run ckpt hash "$tmp/$dir/step-2"
        report "python computes the same hash: $dir" prints "^$(python3 "$tmp/hash.py" "$tmp/$dir/step-2" 2)\$"
    done
else
    skip "python computes the same hash" "no python3"
fi

# ---- diff ----
run ckpt diff "$tmp/run/step-2" "$tmp/same/step-2"
report "the same tensors of two stages" prints '^the same tensors$'
report "and how the runs differ" prints '^zero_stage: 0 and 2$'
run ckpt diff "$tmp/run/step-2" "$tmp/run/step-3"
differ() { [ $code -eq 1 ] && grep -qE "$1" "$tmp/out" && [ ! -s "$tmp/err" ]; }
report "another step differs" differ '^transformer.wte.weight: exp_avg_sq: [0-9]+ elements differ, by at most [0-9]'
report "in every master, m and v" differ "^156 differences\$"

# ---- merge: of parts, tests/cli/launch/hosts_saves.py ----
run ckpt merge; report "merge: of nothing" fails "PART is missing"
run ckpt merge "$tmp/same"; report "merge: to nowhere" fails "--out FOLDER is missing"
run ckpt merge "$tmp/same" --out "$tmp/whole"; report "merge: of what is whole" fails "is not a part: it holds the whole checkpoint"
run ckpt merge --fast "$tmp/same" --out "$tmp/whole"; report "merge: another flag" fails "--fast"
nothing_made() { [ ! -e "$tmp/whole" ] && [ ! -e "$tmp/whole.tmp" ]; }
report "merge: nothing was made" nothing_made

# ---- export ----
cat >"$tmp/export.py" <<'END'
import json, os, struct, sys
def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    assert head.pop("__metadata__") == {"format": "pt"}
    return {k: (v["dtype"], v["shape"], data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]]) for k, v in head.items()}
def fp32(tensor):
    dtype, _, data = tensor
    return data if dtype == "F32" else b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
folder, step, dtype, master = sys.argv[1:5]
names = [n for n in os.listdir(folder) if n.endswith(".safetensors")]
out = {}
for name in names:
    out.update(read(folder + "/" + name))
if len(names) > 1:
    index = json.load(open(folder + "/model.safetensors.index.json"))
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in out.values())
    assert {k: k in read(folder + "/" + f) for k, f in index["weight_map"].items()} == {k: True for k in out}
model, state = read(step + "/model.safetensors"), read(step + "/optimizer.safetensors")
assert set(out) == set(model)
for name, tensor in out.items():
    assert tensor[0] == dtype and tensor[1] == model[name][1], name
    source = state["master." + name] if master == "master" else model[name]
    if dtype == "F32" or source[0] == "BF16":
        assert fp32(tensor) == fp32(source), name
print(len(names))
END
exports() { # FILES STEP DTYPE master|weights ARGS...: the folder has the tensors, the config, and nothing else
    local files=$1 step=$2 dtype=$3 master=$4
    shift 4
    rm -rf "$tmp/hf"
    run ckpt export "$step" --out "$tmp/hf" "$@"
    [ $code -eq 0 ] && cmp -s <(sed -E 's/"torch_dtype": "[a-z0-9]*"//' "$tmp/hf/config.json") \
        <(sed -E 's/"torch_dtype": "[a-z0-9]*"//' "$step/config.json") &&
        grep -q "\"torch_dtype\": \"$([ "$dtype" = F32 ] && echo float32 || echo bfloat16)\"" "$tmp/hf/config.json" &&
        [ "$(python3 "$tmp/export.py" "$tmp/hf" "$step" "$dtype" "$master" 2>&1 | tee -a "$tmp/err")" = "$files" ]
}
if command -v python3 >/dev/null; then
    report "export: the bf16 weights" exports 1 "$tmp/same/step-2" BF16 weights
    report "export: the master weights" exports 1 "$tmp/same/step-2" F32 master --dtype fp32
    report "export: shards" exports 2 "$tmp/same/step-2" BF16 weights --shard-size 900KB
    report "export: shards by binary units" exports 2 "$tmp/same/step-2" BF16 weights --shard-size 879KiB
    report "export: each tensor a shard" exports 52 "$tmp/same/step-2" F32 master --dtype=fp32 --shard-size=1
    report "export: an fp32 run" exports 1 "$tmp/fp32/step-2" F32 weights
    report "export: an fp32 run rounded" exports 1 "$tmp/fp32/step-2" BF16 weights --dtype bf16
else
    skip "export" "no python3"
fi
rm -rf "$tmp/hf"
run ckpt export "$tmp/same/step-2" --out "$tmp/hf/" --dtype fp32 --shard-size 1MB
takes() { # a run starts from the folder's weights
    sed 's#"gpt2-nano"#"'"$tmp/hf"'"#' "$tmp/c.json" >"$tmp/hf.json"
    timeout 60 "$bin/train" --config "$tmp/hf.json" --data "$tmp/text.txt" --steps 1 --seq-len 16 >"$tmp/out" 2>"$tmp/err" </dev/null &&
        ! grep -q afresh "$tmp/err"
}
report "export: train takes the folder as its model" takes
run ckpt export "$tmp/same/step-2" --out "$tmp/hf"; report "export: an existing folder stays" fails "exists already"

# ---- damage ----
damage() { cp -r "$tmp/same/step-2" "$tmp/bad"; }
restore() { rm -rf "$tmp/bad"; }
flip() { # flip FILE OFFSET: the lowest bit of one byte
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
for file in model optimizer; do
    damage; flip "$tmp/bad/$file.safetensors" $(($(stat -c %s "$tmp/bad/$file.safetensors") - 1000))
    run ckpt verify "$tmp/bad"; report "one bit of $file.safetensors" fails "is damaged"
    restore
done
damage; flip "$tmp/bad/manifest.json" 100
run ckpt verify "$tmp/bad"; report "one bit of the manifest" fails "manifest.json"
run ckpt ls "$tmp/bad"; report "ls says so too" prints "does not load: "
restore
damage; truncate -s -1 "$tmp/bad/optimizer.safetensors"
run ckpt verify "$tmp/bad"; report "a cut file" fails "the manifest says"
run ckpt hash "$tmp/bad"; report "has no hash" fails "the manifest says"
restore
damage; rm "$tmp/bad/model.safetensors"
run ckpt verify "$tmp/bad"; report "a missing file" fails "model.safetensors"
restore
damage; rm "$tmp/bad/manifest.json"
run ckpt verify "$tmp/bad"; report "no manifest, no checkpoint" fails "no checkpoint here"
restore

mkdir -p "$tmp/run/step-12.tmp" "$tmp/run/step-x" "$tmp/run/step-13"
run ckpt ls "$tmp/run"
report "unfinished ones are counted" prints '^1 unfinished'
report "a folder without a manifest does not load" prints '^step-13 +does not load: '
one_more() { [ "$(grep -c '^step-' "$tmp/out")" -eq 12 ]; }
report "other names are not listed" one_more
echo step-77 >"$tmp/run/latest"
run ckpt ls "$tmp/run"; report "latest names nothing" prints '^latest: names step-77, which is not there'
run ckpt verify "$tmp/run"; report "and cannot be verified" fails "step-77"
echo ../../etc >"$tmp/run/latest"
run ckpt ls "$tmp/run"; report "latest that leaves its folder" prints '^latest: .*not of the form step-N'
run ckpt hash "$tmp/run"; report "is not followed" fails "not of the form step-N"

# ---- what stays ----
steps() { (cd "$1" && echo step-*); }
train "$tmp/kept" 7 1 true --keep-last 2 --keep-every 3
keeps() { [ "$(steps "$tmp/kept")" = "$1" ]; }
report "train --keep-last 2 --keep-every 3" keeps "step-3 step-6 step-7"
mkdir "$tmp/kept/step-9.tmp"
run ckpt prune "$tmp/kept" --keep-last 1 --dry-run; report "prune: told first" prints '^would remove step-6$'
report "prune: and not done" keeps "step-3 step-6 step-7 step-9.tmp"
run ckpt prune "$tmp/kept" --keep-last 1 --keep-every 2; report "prune: what goes" prints '^removed step-3$'
report "prune: what stays" keeps "step-6 step-7 step-9.tmp"
run ckpt prune --unfinished "$tmp/kept"; report "prune: rests" prints '^removed step-9.tmp$'
run ckpt prune "$tmp/kept" --keep-last=9; report "prune: nothing" prints '^nothing to remove$'
report "prune: as before" keeps "step-6 step-7"
rm "$tmp/kept/latest"
run ckpt prune "$tmp/kept" --keep-last 1; report "prune: no latest" fails "latest"

# ---- wrong command lines ----
run ckpt; report "no verb" fails "ls, verify, hash, diff, prune, export or merge is missing"
run ckpt list "$tmp/run"; report "an unknown verb" fails "list"
run ckpt export "$tmp/run"; report "export: nowhere to" fails "--out FOLDER is missing"
run ckpt export "$tmp/run" --out "$tmp/x" --dtype int8
report "export: a dtype that is none" fails "\"int8\" is unknown; expected fp32, bf16 or fp16"
run ckpt export "$tmp/run" --out "$tmp/x" --shard-size 5XB
report "export: no size" fails "\"5XB\" is not a size; expected a number of bytes"
run ckpt export "$tmp/run" --out "$tmp/x" --nf4 fp4
report "export: scales that are none" fails "\"fp4\" is unknown; expected double or single"
run ckpt diff "$tmp/same"; report "diff: one folder" fails "dsc ckpt diff: DIR/step-N is missing"
run ckpt prune "$tmp/same"; report "prune: nothing said" fails "neither --keep-last N nor --unfinished is given"
run ckpt prune "$tmp/same" --keep-last 0; report "prune: none" fails '"0" is too small; expected 1'
run ckpt prune --keep-last 2; report "prune: no folder" fails "DIR is missing"
run ckpt ls; report "no folder given" fails "DIR is missing"
run ckpt hash "$tmp/run" "$tmp/same"; report "two folders" fails "one folder at a time"
run ckpt verify --all "$tmp/run"; report "an unknown flag" fails "--all"
run ckpt verify ""; report "an empty name" fails "DIR is missing"

# ---- dsc check ----
kind() { run check --kind "$1" "$tmp/file"; }
printf 'step-12\n' >"$tmp/file"; kind latest; report "latest: good" silent
printf 'step-12' >"$tmp/file"; kind latest; report "latest: no newline" silent
printf 'step-12\nstep-13\n' >"$tmp/file"; kind latest; report "latest: two lines" fails "$tmp/file"
printf 'step-1\0002\n' >"$tmp/file"; kind latest; report "latest: a NUL byte" fails "$tmp/file"
for text in '' 'step-' 'step-1a' ' step-1' 'step--1' 'global_step10' '../step-1' 'step-1/..'; do
    printf '%s\n' "$text" >"$tmp/file"; kind latest; report "latest: \"$text\"" fails "$tmp/file"
done
head -c 100 /dev/zero >"$tmp/file"; kind latest; report "latest: 100 zeros" fails "$tmp/file"

printf '\1\0\2\0' >"$tmp/file"; kind tokens-raw; report "tokens-raw: two ids" silent
printf '\1\0\2' >"$tmp/file"; kind tokens-raw; report "tokens-raw: half an id" fails "3 bytes"
: >"$tmp/file"; kind tokens-raw; report "tokens-raw: empty" fails "0 tokens"
printf '\1\0' >"$tmp/file"; kind tokens-raw; report "tokens-raw: a token without a target" fails "1 tokens"
llmc() { # llmc VERSION COUNT: magic 20240520 and 256 words of header, then three ids
    printf "\\x88\\xd8\\x34\\x01\\x$(printf %02x "$1")\\0\\0\\0\\x$(printf %02x "$2")\\0\\0\\0"; head -c 1012 /dev/zero; printf '\1\0\2\0\3\0'
}
llmc 1 3 >"$tmp/file"; kind tokens-llmc; report "tokens-llmc: three ids" silent
llmc 1 4 >"$tmp/file"; kind tokens-llmc; report "tokens-llmc: an id is missing" fails "header says 4 tokens"
llmc 1 2 >"$tmp/file"; kind tokens-llmc; report "tokens-llmc: an id too many" fails "after the 2 tokens"
llmc 9 3 >"$tmp/file"; kind tokens-llmc; report "tokens-llmc: another version" fails "version 9"
head -c 100 /dev/zero >"$tmp/file"; kind tokens-llmc; report "tokens-llmc: no header" fails "magic number 0"
for k in latest tokens-raw tokens-llmc; do
    run check --kind $k "$tmp/nowhere"; report "$k: no file" fails "$tmp/nowhere"
    run check --kind $k "$tmp"; report "$k: a folder" fails "$tmp"
done
end_of_tests
