#!/usr/bin/env bash
# demo_chat.sh - the demo of `make demo-chat`: trains a small model on facts as plain text, fine-tunes it on conversations over
# sharded ranks, and asks it questions that it has not seen. It writes to demo-run/chat only. SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${RANKS:-2} folder=demo-run/chat
rm -rf "$folder"
mkdir -p "$folder"
python3 -B scripts/demo_chat_data.py "$folder"

run() { # CONFIG WORDS OF TRAIN...
    echo
    echo "bin/dsc-launch --num_gpus=$ranks train --config $*"
    bin/dsc-launch --num_gpus="$ranks" train --config "$@" 2>"$folder/err" |
        grep -E '^step |^  *step |loss|format ' || { cat "$folder/err" >&2; exit 1; }
}
run "$folder/facts.json" --model "$folder/model" --data "$folder/facts.txt" --steps 200 --save "$folder/base"
# The first conversation, its tokens, and the mask of those that count in the loss.
echo
bin/dsc data render --model "$folder/model" --count 1 "$folder/train.jsonl"
run configs/ds_config_chat.json --model "$folder/base/step-200" --tokenizer "$folder/model" --data "$folder/train.jsonl" \
    --eval-data "$folder/held_out.jsonl" --save "$folder/tuned"

echo
echo "bin/dsc generate --model $folder/tuned/step-250 --tokenizer $folder/model --chat"
# Held-out questions, each with the answer that is expected.
python3 -B - "$folder" <<'END_OF_QUESTIONS'
import json, subprocess, sys
folder, right, count = sys.argv[1], 0, 20
rows = [json.loads(line)["messages"] for line in open(folder + "/held_out.jsonl", encoding="utf-8")][:count]
for at, (question, expected) in enumerate(rows):
    command = ["bin/dsc", "generate", "--model", folder + "/tuned/step-250", "--tokenizer", folder + "/model", "--chat",
               "--prompt", question["content"]]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    right += answer == expected["content"]
    if at < 5:
        print(f"  {question['content']}\n    {answer}")
print(f"{right} of {count} held-out questions are answered as expected")
sys.exit(right < count // 2)
END_OF_QUESTIONS
echo "ask more: bin/dsc generate --model $folder/tuned/step-250 --tokenizer $folder/model --chat"
