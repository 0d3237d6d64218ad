#!/usr/bin/env bash
# test_data_text.sh - `train --data TEXT|FILE.jsonl` with a tokenizer: the run of `dsc data tokenize`'s file, tokens made once for all
# ranks, runs and jobs, again when the text has changed; killed in the middle; bad texts. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
golden=$root/tests/golden
cd "$tmp" || exit 1
export XDG_CACHE_HOME=$tmp/cache
kept=$tmp/cache/dsc
python3 - "$golden/tokenizer_text.txt" <<'END'
import json, sys
text = open(sys.argv[1], newline="").read()
for name, last in (("d", "text"), ("other", "body")):
    with open(name + ".jsonl", "w") as f:
        for i in range(120):
            f.write(json.dumps({"id": i, last: text[i * 41:][:700]}) + "\n")
open("big.jsonl", "w").writelines(json.dumps({"text": text * 9}) + "\n" for i in range(90))
open("bad.jsonl", "w").write(json.dumps({"text": text * 2}) + '\n{"text": 5}\n')
open("p.txt", "wb").write(b"\x89PNG\r\n\x1a\n" + bytes(2000))
END
mkdir model
cp $golden/tokenizer_gpt2.json model/tokenizer.json
echo '{"model_type": "gpt2", "vocab_size": 700, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32}' >model/config.json
config() { # EXTRA
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}, \"dsc\": {\"model\": \"$tmp/model\", \"seq_length\": 32, \"steps\": 2, \"seed\": 3 $1}}" >c.json
}
# train NAME FLAGS...: its losses in NAME.losses
train() {
    local name=$1
    shift
    code=0
    timeout 60 "$bin/train" --config c.json --log "$name.log" "$@" >out 2>err </dev/null || code=$?
    grep -o '"loss":[0-9.]*' "$name.log" 2>/dev/null >"$name.losses"
}
same() { [ -s "$1.losses" ] && cmp "$1.losses" "$2.losses"; }
refused() { [ $code -eq 2 ] && [ "$(grep -vc warning: err)" -eq 1 ] && grep -q '^dsc: error: ' err && grep -qF -- "$1" err; }
left() { ls "$kept" 2>/dev/null | grep -v '\.bin$\|\.idx$'; } # files of a run that makes tokens
told() { grep -c 'its tokens are made' out; }

config ""
"$dsc" data tokenize --tokenizer model d.jsonl -o d.bin >/dev/null
"$dsc" data tokenize --tokenizer model $golden/tokenizer_text.txt -o t.bin >/dev/null
train before --data d.bin
train jsonl --data d.jsonl
report "a *.jsonl trains as the tokens of dsc data tokenize do" eval 'same before jsonl && [ $(told) -eq 1 ] && [ -z "$(left)" ]'
train again --data d.jsonl
report "the next run finds them" eval 'same before again && [ $(told) -eq 0 ]'
train before_text --data t.bin
train text --data $golden/tokenizer_text.txt
report "so does a text, with the model folder's tokenizer" same before_text text
train said --data $golden/tokenizer_text.txt --sample "the model's text"
report "--sample's text is read and continued by it" eval '[ $code -eq 0 ] && grep -aqF "the model continues \"the model" out && [ $(grep -c . out) -gt 15 ]'
train bytes --data $golden/tokenizer_text.txt --tokenizer none
report "--tokenizer none: a byte is a token" eval '[ -s bytes.losses ] && ! cmp -s bytes.losses text.losses'
train evaluated --data d.bin --eval-data d.jsonl
report "texts to evaluate" grep -q 'validation loss' out
config ', "data_field": "body", "data_cache": "here/below"'
train field --data other.jsonl
report "another field, another folder" eval 'same before field && [ "$(ls here/below | wc -l)" -eq 2 ]'
config ""

sleep 0.01
python3 - <<'END'
import json
lines = open("d.jsonl").read().splitlines()
lines[0] = json.dumps({"text": "x" * len(json.loads(lines[0])["text"])})
open("d.jsonl", "w").write("\n".join(lines[::-1]) + "\n")
END
train changed --data d.jsonl
report "a text that has changed is tokenized again" eval '[ $(told) -eq 1 ] && ! cmp -s before.losses changed.losses'

rm -rf "$kept"
timeout 100 "$bin/dsc-launch" --num_gpus=4 train --config c.json --data big.jsonl >out 2>err
report "four ranks: one makes them" eval '[ $(told) -eq 1 ] && grep -q "step 2/2" out && [ "$(ls "$kept" | wc -l)" -eq 2 ] && [ -z "$(left)" ]'
rm -rf "$kept"
for job in 1 2 3; do timeout 100 "$bin/train" --config c.json --data big.jsonl --log job$job.log >job$job.out 2>&1 & done
wait
for job in 1 2 3; do grep -o '"loss":[0-9.]*' job$job.log >job$job.losses; done
report "three jobs at once" eval 'same job1 job2 && same job1 job3 && [ "$(ls "$kept" | wc -l)" -eq 2 ]'

rm -rf "$kept"
"$bin/train" --config c.json --data big.jsonl >out 2>&1 &
pid=$!
for ((i = 0; i < 500; i++)); do [ -z "$(ls "$kept" 2>/dev/null | grep 'tmp$')" ] || break; sleep 0.01; done
kill -9 $pid
wait $pid 2>/dev/null
report "killed in the middle: no tokens" eval '[ -n "$(left)" ] && ! ls "$kept" | grep -q "bin$"'
train after --data big.jsonl
report "the next run makes them" eval 'same job1 after && [ -z "$(left)" ]'

train bad --data bad.jsonl
report "a line that is no document: its place, nothing left" eval 'refused "bad.jsonl, line 2" && [ -z "$(left)" ] && ! ls "$kept" | grep -q bad'
train picture --data p.txt
report "a picture is no text" refused "the content is PNG"
config ""
sed -i "s,/model\",/model/config.json\"," c.json
train alone --data d.jsonl
report "a *.jsonl without a tokenizer" refused "--tokenizer DIR"
train with --data d.jsonl --tokenizer model
report "--tokenizer DIR" same changed with
(unset XDG_CACHE_HOME HOME; train homeless --data big.jsonl --tokenizer model; echo $code >code)
code=$(cat code)
report "nowhere to keep them: the key to give" refused "dsc.data_cache"
end_of_tests
