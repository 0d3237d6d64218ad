#!/usr/bin/env bash
# test_masked.sh - BERT from a config.json on bytes of text: equal losses on one rank and on two, validation too. Further
# the choice of the mask token, text through BERT's tokenizer, and refusals. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
golden=$root/tests/golden
mkdir "$tmp/bert"
echo '{"model_type": "bert", "vocab_size": 259, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48,
       "max_position_embeddings": 64, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.1}' >"$tmp/bert/config.json"
head -c 6145 "$root/README.md" >"$tmp/t.txt" # 192 samples: whole micro-batches on two ranks too
# run NAME RANKS STAGE MLM
run() {
    echo "{\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},
           \"zero_optimization\": {\"stage\": $3}, \"dsc\": {\"model\": \"$tmp/bert\", \"seq_length\": 32, \"steps\": 60, \"seed\": 5,
           \"reproducible\": \"world_size\", \"threads\": 1 $4}}" >"$tmp/c.json"
    code=0
    timeout 100 "$bin/dsc-launch" --num_gpus="$2" train --config "$tmp/c.json" --data "$tmp/t.txt" --eval-data "$tmp/t.txt" --log "$tmp/$1.log" \
        --save "$tmp/$1" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    grep -o 'validation loss [0-9.]*' "$tmp/out" >"$tmp/$1.validation"
}
mask=', "mlm": {"mask_token": 256, "special_tokens": [10]}'
run one 1 0 "$mask"
report "60 steps on one rank" [ $code -eq 0 ]
run two 2 3 "$mask"
report "and on two at stage 3" [ $code -eq 0 ]
numbers() { sed -E 's/"(step_ms|tokens_per_s|[a-z_]*(ms|bytes|tflops|mfu))": ?[^,}]*,?//g' "$1" | grep -oE '"(step|loss|grad_norm|eval_loss)": ?[0-9.e+-]+'; }
report "with the same losses and norms" cmp -s <(numbers "$tmp/one.log") <(numbers "$tmp/two.log")
report "and validation loss" [ "$(cat "$tmp/one.validation")" = "$(cat "$tmp/two.validation")" -a -s "$tmp/one.validation" ]
learns() { python3 -c 'import json, sys; l = [json.loads(x)["loss"] for x in open(sys.argv[1])]; sys.exit(not (len(l) == 60 and sum(l[-10:]) / 10 < sum(l[:5]) / 5 - 0.8))' "$tmp/one.log"; }
report "which become lower" learns
report "the checkpoints are one" cmp -s <("$dsc" ckpt hash "$tmp/one/step-60") <("$dsc" ckpt hash "$tmp/two/step-60")
run none 1 0 ""
report "no mask token is known" grep -q 'dsc: error: .*dsc.mlm.mask_token: .* is a masked language model, and neither' "$tmp/err"
run high 1 0 ', "mlm": {"mask_token": 259}'
report "one that the model does not have" grep -q 'dsc: error: .*259 is not a token of the model' "$tmp/err"
echo '{"added_tokens": [{"id": 257, "content": "[MASK]", "special": true}]}' >"$tmp/bert/tokenizer.json"
run found 1 0 ', "tokenizer": "none", "mlm": {"mask_token": 256, "special_tokens": [10]}'
report "with a tokenizer in the folder, and another mask token in the config" cmp -s <(numbers "$tmp/one.log") <(numbers "$tmp/found.log")
rm "$tmp/bert/tokenizer.json"
mkdir "$tmp/words"
sed 's/"vocab_size": 259/"vocab_size": 700/' "$tmp/bert/config.json" >"$tmp/words/config.json"
cp "$golden/tokenizer_bert.json" "$tmp/words/tokenizer.json"
"$dsc" data tokenize --tokenizer "$tmp/words" "$tmp/t.txt" -o "$tmp/words.bin" >"$tmp/out" 2>"$tmp/err"; code=$?
report "dsc data tokenize with BERT's tokenizer" [ $code -eq 0 ]
"$dsc" data show --tokenizer "$tmp/words" "$tmp/words.bin" --count 9999 >"$tmp/shown" 2>"$tmp/err"
report "its tokens are the text in small letters, and [SEP] ends it" grep -q 'a zero - sharded training engine in plain c\..*\[SEP\]$' "$tmp/shown"
words() { # NAME DATA: a run of 4 steps
    echo "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"dsc\": {\"model\": \"$tmp/words\", \"seq_length\": 32, \"threads\": 1}}" >"$tmp/c.json"
    XDG_CACHE_HOME=$tmp timeout 60 "$bin/train" --config "$tmp/c.json" --data "$2" --steps 4 --log "$tmp/$1.log" >"$tmp/out" 2>"$tmp/err" </dev/null
}
words tokens "$tmp/words.bin"
words text "$tmp/t.txt"
report "train --data TEXT with it: the losses of the tokenized file" [ -s "$tmp/text.log" -a "$(numbers "$tmp/tokens.log")" = "$(numbers "$tmp/text.log")" ]
run documents 1 0 "$mask, \"document_end\": 10"
report "documents in a sample" grep -q 'dsc: error: .*document_end is not built for a model whose tokens see both sides' "$tmp/err"
"$dsc" generate --model "$tmp/one/step-60" --prompt a >"$tmp/out" 2>"$tmp/err"; code=$?
report "dsc generate says that it does not continue a text" grep -q 'dsc: error: .*masked language model (as BERT is).* does not continue a text' "$tmp/err"
report "with exit code 2" [ $code -eq 2 ]
sed -i 's/"model": "[^"]*"/"model": "gpt2-nano"/' "$tmp/c.json"
sed -i 's/, "document_end": 10//' "$tmp/c.json"
code=0
timeout 60 "$bin/train" --config "$tmp/c.json" --data "$tmp/t.txt" >"$tmp/out" 2>"$tmp/err" || code=$?
report "dsc.mlm beside another model" grep -q 'dsc: error: .*dsc.mlm: model gpt2-nano .* is not a masked language model' "$tmp/err"
end_of_tests
