#!/usr/bin/env bash
# test_zeropp.sh - ZeRO++ on real text, through the launcher: packed weights and packed gradients come to the same loss
# within 1 %, and a step's bytes on the wire are half and a quarter of what they were. The text is the demo's where its
# package is installed, else a licence of the system. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
if command -v bible >/dev/null; then bible -f gen1:1-gen50:26 | sed 's/^[^ ]* //' >text.txt
else cp /usr/share/common-licenses/GPL-3 text.txt; fi
steps=70
config() { # NAME MEMBERS
    cat >"$1.json" <<END
{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.95], "weight_decay": 0.1}}, "zero_optimization": {"stage": 3$2},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_type": "linear", "warmup_max_lr": 0.001}},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 64, "steps": $steps, "threads": 1}}
END
}
trains() { # NAME
    timeout 120 "$bin/dsc-launch" --num_gpus=2 train --config "$1.json" --log "$1.log" >out 2>err </dev/null
}
near() { # NAME: the mean of the last ten losses is the plain run's within 1 %, and not the same
    python3 - plain.log "$1.log" >why <<'END'
import json, sys
runs = [[json.loads(line)["loss"] for line in open(name)] for name in sys.argv[1:]]
a, b = (sum(losses[-10:]) / 10 for losses in runs)
print(f"last ten losses: plain {a:.4f}, packed {b:.4f}, {100 * (b / a - 1):+.2f} %; started at {runs[0][0]:.4f}")
sys.exit(not (a < 0.5 * runs[0][0] and abs(b / a - 1) < 0.01 and runs[0] != runs[1]))
END
    local rc=$?
    sed 's/^/# /' why
    return $rc
}
wire() { "$dsc" plan --config "$1.json" --model gpt2-nano --world-size 2 --json | # NAME: bytes of a step
    python3 -c 'import json, sys; print(json.load(sys.stdin)["per_step"]["wire_bytes"])'; }
less() { # NAME FROM TO: its share of the plain run's bytes
    local share
    share=$(python3 -c "print($(wire "$1") / $(wire plain))")
    python3 -c "import sys; sys.exit(not $2 <= $share <= $3)" || fail "$1 moves $share of the plain run's bytes"
}

config plain ""
config weights ', "zero_quantized_weights": true'
config gradients ', "zero_quantized_gradients": true'
config both ', "zero_quantized_weights": true, "zero_quantized_gradients": true'
report "the plain run" trains plain
report "packed weights and gradients" trains both
report "come to the same loss" near both
# Of the plain run's bytes a third are gradients: one gather for forward, one for backward, one reduction. The largest
# group stays whole there and is gathered once, so that its gathers and gradients are as many.
report "packed gradients save three quarters of theirs" less gradients 0.5 0.8
report "packed weights and gradients move less" less both 0.3 0.5
# Four ranks as if two of them shared a host: the loss is the same, to the last digit.
steps=4
losses() { timeout 120 "$bin/dsc-launch" --num_gpus=4 train --config "$1.json" --log "$1.log" --comm "$2" >out 2>err </dev/null && grep -o '"loss":[0-9.]*' "$1.log" >"$1.$2"; } # NAME TRANSPORT
config four ""
config pairs ', "zero_hpz_partition_size": 2, "overlap_comm": true'
same_losses() { losses pairs "$1" && cmp four.shm "pairs.$1"; } # TRANSPORT
report "four ranks" losses four shm
report "pairs keep parameters among themselves: the same losses" same_losses shm
report "over tcp too" same_losses tcp
end_of_tests
