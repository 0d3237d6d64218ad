#!/usr/bin/env bash
# test_export.sh - trained models are usable as they are: checkpoints, exports, merged models and adapters have the tokenizer, the
# chat template and the settings of generation, and config.json names the dtype. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache OMP_NUM_THREADS=1
golden=$root/tests/golden
mkdir base other
cp "$golden/tokenizer_gpt2.json" base/tokenizer.json
cp "$golden/tokenizer_llama3.json" other/tokenizer.json
echo '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32, "task": {"dtype": "x", "torch_dtype": "y"}, "torch_dtype": "float32", "last": "}\""}' >base/config.json
echo '{"eos_token_id": [0, 5]}' >base/generation_config.json
echo '{"chat_template": "x"}' >base/tokenizer_config.json
echo '{"eos_token": "<|endoftext|>"}' >base/special_tokens_map.json
echo '{{ messages }}' >base/chat_template.jinja
echo 'ours' >other/tokenizer_config.json
ln -s "$tmp/base/chat_template.jinja" base/chat_template.json # a cache of models holds links
echo 'not a file of a model' >base/notes.txt
files="chat_template.jinja chat_template.json generation_config.json special_tokens_map.json tokenizer.json tokenizer_config.json"
for i in 1 2 3 4 5 6 7 8 9; do echo '{"text": "some words of a text that is longer than a sample has tokens, and some more of them"}'; done >d.jsonl
# train NAME OWN FLAGS...
train() {
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},
           \"dsc\": {\"model\": \"base\", \"data\": \"d.jsonl\", \"seq_length\": 32, \"steps\": 2, \"save\": \"$1\" $2}}" >c.json
    code=0
    timeout 60 "$bin/dsc-launch" --num_gpus "${ranks:-1}" train --config c.json "${@:3}" >out 2>err </dev/null || code=$?
}
run() { code=0; timeout 60 "$dsc" "$@" >out 2>err </dev/null || code=$?; }
has_files() { # FOLDER: all files, with base's bytes, and no other
    local name
    for name in $files; do cmp "base/$name" "$1/$name" || return 1; done
    [ ! -e "$1/notes.txt" ]
}
dtype_is() { # FOLDER DTYPE: in the model's own member, once
    python3 -c 'import json, sys; c = json.load(open(sys.argv[1] + "/config.json")); a = json.load(open("base/config.json"))
assert c.pop("torch_dtype") == sys.argv[2]; a.pop("torch_dtype"); assert c == a, c' "$1" "$2"
}

ranks=2 train run ""
report "a checkpoint has the files of the model's folder" has_files run/step-2
run ckpt verify run/step-2
report "and is whole" [ $code -eq 0 ]
report "its config.json names the dtype of its weights" dtype_is run/step-2 bfloat16
report "sha256sum knows its hashes of them" eval '(cd run/step-2 && sha256sum --check --strict companions.sha256 >../../out 2>&1) && [ $(wc -l <out) -eq 6 ]'
damaged() { # WORDS COMMAND...: dsc ckpt verify refuses a copy that the command changed
    rm -rf hurt && mkdir hurt && cp -r run/step-2 hurt/step-2
    (cd hurt/step-2 && eval "$2")
    run ckpt verify hurt/step-2
    [ $code -eq 2 ] && grep -qF "$1" err
}
report "verify: a companion that was edited" damaged 'tokenizer_config.json: is damaged or was edited: its SHA-256 differs from that in companions.sha256' \
    'echo x >>tokenizer_config.json'
report "verify: one that is missing" damaged 'tokenizer.json: is missing, and companions.sha256 lists it' 'rm tokenizer.json'
report "verify: one that is a link" damaged 'tokenizer.json: is a symbolic link' "mv tokenizer.json x; ln -s x tokenizer.json"
report "verify: their hashes were edited" damaged 'companions.sha256: is damaged or was edited' 'sed -i s/^./0/ companions.sha256'
report "verify: their hashes are missing" damaged 'companions.sha256: cannot open' 'rm companions.sha256'
rm -rf hurt && mkdir hurt && cp -r run/step-2 hurt/step-2 && rm hurt/step-2/tokenizer.json
train resumed ', "load": "hurt/step-2"' --steps 3
report "a run loads it all the same" [ $code -eq 0 ]
run generate --model run/step-2 --prompt "some words" --max-new-tokens 3
report "it continues a text as it is" [ $code -eq 0 ]
for dtype in bf16:bfloat16 fp16:float16 fp32:float32; do
    run ckpt export run/step-2 --out "exp-${dtype%:*}" --dtype "${dtype%:*}"
    report "an export in ${dtype%:*}" eval 'has_files "exp-${dtype%:*}" && dtype_is "exp-${dtype%:*}" "${dtype#*:}"'
done
run generate --model exp-bf16 --prompt "some words" --max-new-tokens 3
report "the export continues a text as it is" [ $code -eq 0 ]
train again "" --model exp-bf16
report "a run on the export passes the files on" has_files again/step-2
run ckpt export again/step-2 --out exp-again
report "and its export as well" has_files exp-again
train async ', "save_async": true'
report "a save in the background" has_files async/step-2

train lora ', "lora": {"r": 2}'
run ckpt export lora/step-2 --out peft
report "adapters" eval 'has_files peft && [ -e peft/adapter_config.json ] && [ ! -e peft/config.json ]'
run ckpt export lora/step-2 --out merged --merge
report "a merged model" eval 'has_files merged && dtype_is merged bfloat16'

train given ', "tokenizer": "other"' --model base/config.json
report "dsc.tokenizer: a folder" eval 'cmp given/step-2/tokenizer.json other/tokenizer.json && cmp given/step-2/tokenizer_config.json other/tokenizer_config.json && [ ! -e given/step-2/chat_template.jinja ]'
cp other/tokenizer.json alone.json
train alone ', "tokenizer": "alone.json"'
report "a file of another name, and the model's settings of generation" eval 'cmp alone/step-2/tokenizer.json alone.json && cmp alone/step-2/generation_config.json base/generation_config.json && [ ! -e alone/step-2/tokenizer_config.json ]'
cp README.md t.txt 2>/dev/null || head -c 3000 "$root/README.md" >t.txt
train bytes ', "tokenizer": "none"' --data t.txt
report "bytes as tokens: no tokenizer" eval '[ -e bytes/step-2/generation_config.json ] && [ ! -e bytes/step-2/tokenizer.json ]'

sed 's/"torch_dtype": "float32"/"dtype": "float32"/' base/config.json >c2.json && cp c2.json other/config.json
sed 's/"dtype": "float32"/"dtype": "float32", "torch_dtype": "float16"/' c2.json >c3.json
train newer "" --model other
run ckpt export newer/step-2 --out exp-newer
report "config.json with \"dtype\"" grep -q '"dtype": "bfloat16"' exp-newer/config.json
sed 's/, "torch_dtype": "float32"//' base/config.json >other/config.json
train without "" --model other
run ckpt export without/step-2 --out exp-without
report "config.json without a dtype gets one" python3 -c 'import json; assert json.load(open("exp-without/config.json"))["torch_dtype"] == "bfloat16"'
cp c3.json other/config.json
train both "" --model other
report "config.json with two dtypes has the right ones in the checkpoint" python3 -c 'import json; c = json.load(open("both/step-2/config.json")); assert c["torch_dtype"] == c["dtype"] == "bfloat16", c'
code=0
timeout 20 "$bin/train" --config none.json >out 2>err || code=$?
report "a missing file: where it was looked for" eval '[ $code -eq 2 ] && grep -qF "none.json: cannot open: No such file or directory; give a file that is there, by its path from $tmp or from /" err'
end_of_tests
