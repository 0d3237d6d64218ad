#!/usr/bin/env bash
# test_documents.sh - dsc.document_end: samples of three documents train as the three documents alone do. Checked in
# every kind of model, on the CPU and on a simulated GPU; without the key the results differ. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
gpu=${DSC_SIM:-$root/build/gcc-release/tests/sim}/bin/train
# 40 documents of 7 tokens and the one that ends them, 0.
python3 - "$tmp/t.bin" <<'END'
import array, random, sys
r = random.Random(4)
array.array("H", [r.randrange(1, 61) if i % 8 < 7 else 0 for i in range(320)] + [5]).tofile(open(sys.argv[1], "wb"))
END
# 40 documents of 8 tokens that nothing ends but Megatron's index: empty ones too, and some of several sequences.
python3 - "$tmp/i" <<'END'
import array, random, struct, sys
r = random.Random(5)
array.array("H", [r.randrange(1, 60) for _ in range(321)]).tofile(open(sys.argv[1] + ".bin", "wb"))
lengths, documents = [], [0]
for d in range(40):
    lengths += [3, 5] if d % 3 == 0 else [8]
    documents += [len(lengths)] * (1 + (d % 7 == 0))
lengths.append(1)
documents.append(len(lengths))
offsets = [2 * sum(lengths[:i]) for i in range(len(lengths))]
with open(sys.argv[1] + ".idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents)))
    f.write(array.array("i", lengths).tobytes() + array.array("q", offsets).tobytes() + array.array("q", documents).tobytes())
END
data=$tmp/t.bin
# losses NAME PROGRAM SEQUENCE BATCH EXTRA: of 6 steps of $tmp/m.json
losses() {
    echo "{\"train_micro_batch_size_per_gpu\": $4, \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": 1},
           \"dsc\": {\"model\": \"$tmp/m.json\", \"seq_length\": $3, \"steps\": 6, \"seed\": 3, \"shuffle\": false $5}}" >"$tmp/c.json"
    rm -f "$tmp/$1.log"
    timeout 100 "$2" --config "$tmp/c.json" --data "$data" --log "$tmp/$1.log" >"$tmp/out" 2>"$tmp/err" </dev/null
}
# near A B: six losses each, within rounding (or not: `far`)
near() {
    python3 - "$tmp/$1.log" "$tmp/$2.log" "${3:-near}" <<'END'
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(path)] for path in sys.argv[1:3])
off = max(abs(x - y) for x, y in zip(a, b))
sys.exit(not (len(a) == len(b) == 6 and (off < 2e-5 if sys.argv[3] == "near" else off > 1e-3)))
END
}
like='"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.3'
check() { # check NAME CONFIG
    echo "$2" >"$tmp/m.json"
    losses alone "$bin/train" 8 3 ""
    losses packed "$bin/train" 24 1 ', "document_end": 0'
    report "$1: documents in one sample train as they do alone" near alone packed
    losses crossed "$bin/train" 24 1 ""
    report "$1: without the key they see each other" near alone crossed far
    [ -x "$gpu" ] || return 0
    losses gpu "$gpu" 24 1 ', "document_end": 0, "device": "cuda"'
    report "$1: on a simulated GPU" near alone gpu
}
echo "{\"model_type\": \"qwen3\", \"head_dim\": 8, \"num_key_value_heads\": 2, $like}" >"$tmp/m.json"
data=$tmp/i.bin
losses alone "$bin/train" 8 3 ""
losses packed "$bin/train" 24 1 ', "document_end": 60' # which no text has
report "documents that only Megatron's index ends train as they do alone" near alone packed
losses crossed "$bin/train" 24 1 ""
report "without the key its documents see each other" near alone crossed far
data=$tmp/t.bin
check gpt2 '{"model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64, "initializer_range": 0.3}'
check opt '{"model_type": "opt", "vocab_size": 61, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32, "init_std": 0.3}'
check gpt_neox "{\"model_type\": \"gpt_neox\", $like}"
check qwen3 "{\"model_type\": \"qwen3\", \"head_dim\": 8, \"num_key_value_heads\": 2, $like}"
check gpt_oss "{\"model_type\": \"gpt_oss\", \"head_dim\": 8, \"num_key_value_heads\": 2, \"num_local_experts\": 6, \"num_experts_per_tok\": 2, \"sliding_window\": 5, ${like/0.3/0.1}}"
# A run that goes on without the key that it was saved with, or with another token.
save() { # EXTRA FLAG...
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}, \"dsc\": {\"model\": \"$tmp/m.json\", \"seq_length\": 24 $1}}" >"$tmp/c.json"
    timeout 100 "$bin/train" --config "$tmp/c.json" --data "$tmp/t.bin" "${@:2}" >"$tmp/out" 2>"$tmp/err" </dev/null
}
other_ends() {
    save ', "document_end": 0' --save "$tmp/run" --steps 1 || return 1
    save ', "document_end": 0' --load "$tmp/run" --steps 2 && ! grep document_end "$tmp/err" || return 1
    save '' --load "$tmp/run" --steps 2 && grep -q 'resume: dsc.document_end was 0 in the saved run and is -1' "$tmp/err" || return 1
    save ', "document_end": 7' --load "$tmp/run" --steps 2 && grep -q 'resume: dsc.document_end was 0 in the saved run and is 7' "$tmp/err"
}
report "a run that goes on with another document_end says so" other_ends
losses refused "$bin/train" 24 1 ', "document_end": 61'
report "a token that the model does not have" grep -q '^dsc: error: .*dsc.document_end: 61 is not a token' "$tmp/err"
end_of_tests
