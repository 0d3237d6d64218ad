#!/usr/bin/env bash
# test_spikes.sh - a run of train that goes back after a loss spike: the samples that it names, the steps that it makes again,
# and a resume on another number of ranks. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1
python3 - <<'TEXT' # 8 samples of 32 bytes a step; four samples of step 31 are of bytes that the text does not have
import random
drawn = random.Random(3)
words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "sleeps", "until", "noon"]
text = " ".join(drawn.choice(words) for _ in range(20000))[:8 * 32 * 200]
at = 8 * 32 * 30 + 3 * 32
strange = "".join(drawn.choice("~^`|{}#@%&*$\x01\x02\x03\x04\x05\x06\x0e\x0f") for _ in range(4 * 32))
open("text.txt", "w").write(text[:at] + strange + text[at + len(strange):])
TEXT
config() { # POLICY NAME
    cat >"$2.json" <<END
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 2e-3}},
 "zero_optimization": {"stage": 2}, "dsc": {"model": "gpt2-nano", "data": "text.txt", "shuffle": false, "seq_length": 32,
 "steps": 40, "save": "$2", "save_every": 10, "reproducible": "world_size", "spikes": {"policy": "$1", "window": 8, "z_score": 4,
 "loss_ratio": 1.4, "norm_ratio": 0, "rewind_steps": 5, "skip_batches": 3}}, "train_micro_batch_size_per_gpu": 2}
END
}
losses() { python3 -c 'import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    print(r["step"], r["loss"])' "$1"; }

config rewind back
"$bin/dsc-launch" --num_gpus=2 train --config back.json --curve --log back.jsonl >out 2>&1; rc=$?
report "a run that goes back ends with 0" test $rc -eq 0
report "it names the samples of the spike" grep -Eq 'step 31 is a spike: .* largest losses: 24[3-6] \(loss [0-9.]+, text.txt, tokens 7[0-9]+ to 7[0-9]+\)' out
report "it says where it goes back to" grep -q 'goes back from step 31 to step 20, and leaves out batches 21 to 31' out
report "steps since the checkpoint are made again" test "$(grep -c '"step":25,' back.jsonl)" = 2
report "the log marks the spike" grep -q '"step":31,.*"spike":true' back.jsonl
report "the last step is the one asked for" test "$(losses back.jsonl | tail -n 1 | cut -d' ' -f1)" = 40
report "all checkpoints are good" "$dsc" ckpt verify back/step-30
"$bin/train" --config back.json --load back/step-30 --save resumed --log resumed.jsonl >out 2>&1; rc=$?
report "a resume on one rank ends with 0" test $rc -eq 0
losses back.jsonl | tail -n 10 >expected; losses resumed.jsonl >got
report "and has the losses of the run that went on" cmp expected got

config warn warned
"$bin/dsc-launch" --num_gpus=2 train --config warned.json --log warned.jsonl >out 2>&1; rc=$?
report "a run that warns ends with 0" test $rc -eq 0
report "it makes each step once" test "$(wc -l <warned.jsonl)" = 40
report "it warns of the spike" grep -q 'step 31 is a spike' out
report "several ranks have a slowest one" grep -q '"slowest_rank":[01],"slowest_share":' warned.jsonl
end_of_tests
