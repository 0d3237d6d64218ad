#!/usr/bin/env bash
# test_errors_doc.sh - the common errors in docs/errors.md are the programs' messages, word for word.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export DSC_PLUGIN_DIR=$tmp/no_plugins # Parquet is refused without its plugin
export OMP_WAIT_POLICY=passive
told=0
says() { # WORDS COMMAND...: the program fails with these words, which the page has
    local words=$1
    shift
    told=$((told + 1))
    timeout 60 "$@" >out 2>err </dev/null && { fail "it ended well"; return 1; }
    grep -qF -- "$words" err || fail "it does not say: $words" || return 1
    grep -qF -- "\`$words\`" "$root/docs/errors.md" || fail "docs/errors.md does not have: $words"
}
config() { printf '%s\n' "$2" >"$1.json"; } # NAME TEXT
check() { says "$1" "$dsc" config check "$2.json" --world-size 3; } # WORDS NAME
train() { local words=$1; shift; says "$words" "$bin/train" --config run.json "$@"; } # WORDS FLAGS

yes 'one line after another' | head -n 400 >text.txt
config run '{"train_batch_size": 2, "dsc": {"model": "gpt2-nano", "data": "text.txt", "steps": 1, "seq_length": 16, "threads": 1}}'
config triad '{"train_batch_size": 64, "gradient_accumulation_steps": 8}'
config none '{"gradient_accumulation_steps": 8}'
config near '{"train_batch_size": 6, "zero_optimisation": {"stage": 2}}'
config ddp '{"train_batch_size": 6, "zero_optimization": {"stage": 2, "find_unused_parameters": true}}'
config nvme '{"train_batch_size": 6, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}'
config decay '{"train_batch_size": 6, "scheduler": {"type": "WarmupDecayLR", "params": {}}}'
config amp '{"train_batch_size": 6, "amp": {"enabled": true}}'
config block '{"train_batch_size": 6, "aio": {"block_size": 4608}}'
mkdir pickle
echo '{"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 256, "n_positions": 64}' >pickle/config.json
head -c 100 /dev/zero >pickle/pytorch_model.bin

report "a batch that does not come out" check "world sizes that work: 1, 2, 4, 8" triad
report "no batch size" check "one of them is needed" none
report "a key that is nearly one" check "unknown key; did you mean" near
report "a key of DDP" check "a key of DDP, not of ZeRO" ddp
report "nvme without a folder" check "needs zero_optimization.offload_param.nvme_path" nvme
report "a decay without an end" check "needs total_num_steps" decay
report "a block that direct I/O cannot have" check "is not a multiple of 4096 bytes" block
report "an unsupported feature" says "is not supported in this version" "$bin/train" --config amp.json
config own '{"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 256, "n_positions": 64}'
config nodata '{"train_batch_size": 1, "dsc": {"model": "own.json", "steps": 1}}'
report "an own model without data" says "no data is given for the model" "$bin/train" --config nodata.json
for beside in '"eval_data": "text.txt"' '"tokenizer": "none"' '"document_end": 0' '"data_weights": [1]'; do
    config beside "{\"train_batch_size\": 1, \"dsc\": {\"model\": \"gpt2-nano\", \"steps\": 1, $beside}}"
    code=0
    timeout 60 "$bin/train" --config beside.json >out 2>err </dev/null || code=$?
    report "no data beside $beside" eval '[ $code = 2 ] && grep -q "no data is given beside dsc" err'
done
config both '{"model_type": "llama", "is_causal": false}'
{ printf 'PAR1'; head -c 99 /dev/zero; } >data.parquet
printf 'caf\351 au lait\n' >latin1.txt
echo '{"text": "words"}' >data.jsonl
mkdir pictures && python3 -B "$root/tests/cli/image_files.py" "$tmp/pictures"
vit='"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16, "patch_size": 4'
config vit "{$vit}" && config named "{$vit, \"id2label\": {\"0\": \"cat\", \"1\": \"bird\"}}"
look() { says "$1" "$bin/train" --model "$2.json" --data "$3" --steps 1; } # WORDS MODEL DATA
report "a class of pictures that the model does not know" look "is unknown to the model" named pictures/train
mkdir -p large/a damaged/a void/a && cp pictures/broken/bomb.png large/a && cp pictures/broken/crc.png damaged/a
report "a class without a picture" look "the class has no picture" vit void
if python3 -c 'import ctypes; ctypes.CDLL("libpng16.so.16")' 2>/dev/null; then
    report "a picture that is too large" look "dsc.images.pixels_max allows" vit large
    report "a damaged picture" look "the PNG file is broken" vit damaged
fi
report "weights in 4 bits without adapters" train "the model has no adapters, and weights in 4 bits are not trained" --load_in_4bit
report "data in a binary format" train "the content is Parquet" --data data.parquet
python3 - <<'END'
import gzip
words = gzip.compress(b"one line after another\n" * 400)
open("cut.gz", "wb").write(words[:-9])
open("damaged.gz", "wb").write(words[:-8] + bytes(8))
open("bomb.gz", "wb").write(gzip.compress(b"one line after another\n" * 2000000))
END
report "a compressed text that is cut off" train "stream is truncated" --data cut.gz
report "a compressed text with other bytes" train "stream is damaged" --data damaged.gz
report "a compressed text of one line over and over" train "at most 256 for each byte" --data bomb.gz
report "text in another encoding" train "is not UTF-8 text" --data latin1.txt
printf 'id,text\n1,words\n' >table.csv
tokenize() { local words=$1; shift; says "$words" "$dsc" data tokenize --tokenizer "$root/tests/golden/tokenizer_gpt2.json" -o tokens.bin "$@"; }
report "a table of documents without the name of a column" tokenize "name the one with the text" table.csv
python3 -c 'import gzip; open("words.gz", "wb").write(gzip.compress(b"one line after another"))'
report "a compressed file without a request" tokenize "the file is compressed" words.gz
report "documents without a tokenizer" train "documents need a tokenizer" --data data.jsonl
echo '{"question": "a", "answer": "b"}' >rows.jsonl
echo '{"prompt": "a", "completion": "b"}' >examples.jsonl
report "instruction data without a tokenizer" train "instruction data needs a tokenizer" --data examples.jsonl
report "rows of no known format" train "columns without a known format" --data rows.jsonl --tokenizer "$root/tests/golden/tokenizer_gpt2.json"
mkdir tiny
cp "$root/tests/golden/tokenizer_gpt2.json" tiny/tokenizer.json
echo '{"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 700, "n_positions": 32}' >tiny/config.json
echo '{"prompt": "a", "chosen": " b", "rejected": " c"}' >pairs.jsonl
report "pairs without their section" train "add the section dsc.dpo" --data pairs.jsonl --model tiny
config dpo '{"train_batch_size": 2, "dsc": {"model": "tiny", "data": "pairs.jsonl", "steps": 1, "threads": 1, "dpo": {}}}'
report "half a pair" says "a pair is two of them" "$bin/train" --config dpo.json --batch-size 3
"$bin/train" --config run.json --data examples.jsonl --model tiny --save answers >out 2>err </dev/null
report "a checkpoint of another kind of run" says "is no checkpoint of a run with dsc.dpo" "$bin/train" --config dpo.json --load answers
report "a log over the data" train "the output is the input" --log text.txt
report "attention in both directions" train 'is_causal" must be true' --model both.json
config mamba '{"model_type": "mamba"}'
report "a model of no known family" train "is not built; what exists" --model mamba.json
sizes='"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 256'
config llava "{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"llama\", $sizes}}"
config adapted '{"train_batch_size": 2, "dsc": {"model": "llava", "data": "text.txt", "steps": 1, "lora": {"r": 2}}}'
mkdir llava && cp llava.json llava/config.json
python3 - "$root/tests/cli" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import tensors, json
tensors.write("llava", "model.safetensors", json.load(open("llava.json")), {"language_model.model.embed_tokens.weight": ([256, 64], [0.0] * 16384)})
END
report "adapters beside the text part of other names" says "adapters are not built for the text part" "$bin/train" --config adapted.json
report "a path without a file" says "cannot open: No such file or directory" "$bin/train" --config nothing.json
report "no such model" train "is not a built-in model, folder or file" --model gpt2-nanoo
report "samples that are too long" train "the model has 256 positions" --seq-len 4096
report "a pickle" train "only *.safetensors are read" --model pickle
report "more than the machine has" train "are free; use" --model llama-3.1-8b --batch-size 100000
report "no such checkpoint" train "no such checkpoint folder" --load nowhere
"$bin/train" --config run.json --save run >out 2>err </dev/null
report "a save in the way" train "exists already and this run did not resume from it" --save run
"$dsc" ckpt export run --out codes --nf4 double >out 2>err </dev/null
config codes '{"train_batch_size": 2, "dsc": {"model": "codes", "data": "text.txt", "steps": 1, "seq_length": 16, "threads": 1, "lora": {"r": 2, "modules_to_save": ["c_fc"]}}}'
report "a matrix in 4 bits that would be trained" says "is in 4 bits and would be trained whole" "$bin/train" --config codes.json
config bloom '{"model_type": "bloom", "vocab_size": 256, "hidden_size": 64, "n_layer": 1, "n_head": 2}'
"$bin/train" --config run.json --model bloom.json --save bloom >out 2>err </dev/null
report "a family that is not written in 4 bits" says "weights in 4 bits are written for llama" "$dsc" ckpt export bloom --out packed --nf4 double
config moe "{\"model_type\": \"mixtral\", \"num_local_experts\": 2, \"num_experts_per_tok\": 1, \"num_key_value_heads\": 2, $sizes}"
experts() { # NAME LORA: a run on experts, with adapters or without
    config "$1" "{\"train_batch_size\": 2, \"dsc\": {\"model\": \"moe.json\", \"data\": \"text.txt\", \"steps\": 1, \"seq_length\": 16, \"threads\": 1$2}}"
}
experts whole ''; "$bin/train" --config whole.json --save whole >out 2>err </dev/null
report "experts in 4 bits" says "whose experts are parameters" "$dsc" ckpt export whole --out packed --nf4 double
experts named ', "lora": {"target_parameters": ["experts.w1"]}'
report "a parameter that is none" says "is no parameter of" "$bin/train" --config named.json
experts dropped ', "lora": {"target_parameters": ["experts.down_proj"], "dropout": 0.1}'
report "adapters of experts with dropout" says "adapters of parameters" "$bin/train" --config dropped.json
experts half ', "lora": {"target_modules": ["w1"]}'
report "one matrix of a tensor" says "both lie in one tensor" "$bin/train" --config half.json
stray='{"train_batch_size": 2, "dsc": {"model": "gpt2-nano", "data": "text.txt", "steps": 1, "threads": 1, "comm_timeout_s": 1}}'
config stray "$stray"
report "one rank of several" says "or unset both to run alone" env RANK=0 WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 20000)) \
    "$bin/train" --config stray.json
config lion8 '{"train_batch_size": 6, "optimizer": {"type": "Lion"}, "dsc": {"moments": "8bit"}}'
config rewind '{"train_batch_size": 6, "dsc": {"spikes": {"policy": "rewind"}}}'
report "a rewind without saves" check "rewind goes back to a checkpoint" rewind
config kept '{"train_batch_size": 6, "dsc": {"spikes": {"policy": "rewind"}, "save": "run", "save_every": 10, "keep_last": 2}}'
report "a rewind to what is removed" check "rewind needs a checkpoint that is" kept
config power '{"train_batch_size": 2, "zero_optimization": {"stage": 1}, "dsc": {"model": "gpt2-nano", "data": "text.txt", "steps": 1, "seq_length": 16, "threads": 1, "communication_hook": {"type": "powersgd"}}}'
report "PowerSGD above stage 0" says "every rank needs the sums of whole matrices" "$bin/train" --config power.json
report "an optimizer without 8-bit moments" check "only Adam and AdamW have 8-bit moments" lion8
config run8 '{"train_batch_size": 2, "dsc": {"model": "gpt2-nano", "data": "text.txt", "steps": 2, "seq_length": 16, "threads": 1, "moments": "8bit"}}'
report "other moments than the saved ones" says "which are not converted" "$bin/train" --config run8.json --load run
cat >dies.sh <<'END'
[ "$RANK" = 1 ] && { until [ -s steps ]; do sleep 0.1; done; kill -9 $$; } &
exec "$0" --config mirrors.json --steps 100000 --log steps
END
config mirrors '{"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "dsc": {"model": "gpt2-nano", "data": "text.txt", "seq_length": 16, "threads": 1, "quota": "even", "elastic": {"mirror_every": 1}}}'
report "too few ranks" says "and no other came" "$bin/dsc-launch" -np 2 --min_np 2 --reset_limit 0 \
    sh -c ". ./dies.sh" "$bin/train"
report "no such program" says "nor in PATH" "$bin/dsc-launch" --num_gpus=2 nosuch
rows() { [ "$(grep -c '^| `' "$root/docs/errors.md")" = "$told" ] || fail "the page has other rows than these $told"; }
report "every row was tried" rows
end_of_tests
