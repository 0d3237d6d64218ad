#!/usr/bin/env bash
# test_zeropp.sh - ZeRO++, gradient compression, 1-bit Adam, 0/1 Adam and 1-bit LAMB on real text, through the launcher.
# Every recipe reaches the plain run's loss within 1 %, and its collectives count the bytes of the papers' formats. The
# text is the demo's if its package is installed, else a licence of the system. DSC_TEST_NIGHT=1 runs each recipe on four
# ranks for four times the steps. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
export OMP_WAIT_POLICY=passive
if command -v bible >/dev/null; then bible -f gen1:1-gen50:26 | sed 's/^[^ ]* //' >text.txt
else cp /usr/share/common-licenses/GPL-3 text.txt; fi
[ "${DSC_TEST_NIGHT:-0}" = 1 ] && night=1 ranks=4 steps=280 || night= ranks=2 steps=98
stage=3 optimizer=AdamW rate=0.001 params=
config() { # NAME ZERO DSC: members, each preceded by a comma
    cat >"$1.json" <<END
{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "gradient_clipping": 1.0, "comms_logger": {"enabled": true},
 "optimizer": {"type": "$optimizer", "params": {"lr": $rate, "betas": [0.9, 0.95], "weight_decay": 0.1$params}}, "zero_optimization": {"stage": $stage$2},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_type": "linear", "warmup_max_lr": $rate}},
 "dsc": {"model": "gpt2-nano", "data": "$tmp/text.txt", "seq_length": 64, "steps": $steps, "threads": 1$3}}
END
}
trains() { # NAME
    timeout 300 "$bin/dsc-launch" --num_gpus=$ranks train --config "$1.json" --log "$1.log" >"$1.out" 2>err </dev/null
}
planned() { "$dsc" plan --config "$1.json" --model gpt2-nano --world-size $ranks --json | # NAME: bytes of a step on the wire
    python3 -c 'import json, sys; print(json.load(sys.stdin)["per_step"]["wire_bytes"])'; }
# The mean of the last losses is the plain run's within 1 %, the plain run has learnt, and the runs differ. A recipe
# gathers and reduces the given shares of the plain run's counted bytes, and all shares equal the plan. A share of "any"
# changes during the run.
as_good() { # NAME GATHERED REDUCED
    python3 - "$@" "$(planned "$1")" >why <<'END'
import json, re, sys
name, *expected, planned = sys.argv[1], *sys.argv[2:4], float(sys.argv[4])
def losses(run): return [json.loads(line)["loss"] for line in open(run + ".log")]
def mean(run): return sum(losses(run)[-len(losses(run)) // 7:]) / (len(losses(run)) // 7)
def counted(run, *operations):
    rows = re.findall(r"^  (\w+) +(\d+) +(\d+) ", open(run + ".out").read(), re.M)
    return sum(int(each) * int(calls) for operation, each, calls in rows if operation in operations)
a, b, first = mean("plain"), mean(name), losses("plain")[0]
kinds = ["all_gather"], ["reduce_scatter", "all_to_all"]
shares = [counted(name, *what) / counted("plain", *what) for what in kinds]
each_step = counted(name, *sum(kinds, [])) / len(losses(name))
print(f"{name}: last losses {b:.4f}, plain {a:.4f} ({100 * (b / a - 1):+.2f} %), first {first:.4f}; "
      f"gathers {shares[0]:.3f} and reduces {shares[1]:.3f} of the plain run's bytes; "
      f"{each_step:.0f} bytes a step, planned {planned:.0f}")
sys.exit(not (a < 0.5 * first and abs(b / a - 1) < 0.01 and losses(name) != losses("plain") and
              (expected == ["any", "any"] or abs(each_step / planned - 1) < 0.02 and
               all(abs(share / float(e) - 1) < 0.02 for share, e in zip(shares, expected)))))
END
    local rc=$?
    sed 's/^/# /' why
    return $rc
}
recipe() { # NAME ZERO DSC GATHERED REDUCED
    config "$1" "$2" "$3"
    report "$1" trains "$1"
    report "$1: as good, in fewer bytes" as_good "$1" "$4" "$5"
}

weights=', "zero_quantized_weights": true' gradients=', "zero_quantized_gradients": true'
config plain "" ""
report "the plain run" trains plain
# Two bytes an element become one, or a half, and two for each 128 of them.
recipe weights-and-gradients "$weights$gradients" "" 0.508 0.258
recipe int8-with-errors "" ', "gradient_compression": "int8"' 1 0.508
if [ -n "$night" ]; then
    recipe weights "$weights" "" 0.508 1
    recipe gradients "$gradients" "" 1 0.258
    recipe int4-with-errors "" ', "gradient_compression": "int4"' 1 0.258
    recipe bf16-with-errors "" ', "gradient_compression": "bf16"' 1 1
    recipe fp16-with-errors "" ', "gradient_compression": "fp16"' 1 1
    # Every stage has the same bits, so the plain run is AdamW's at stage 0 too.
    stage=0 optimizer=OneBitAdam params=', "freeze_step": 100'
    recipe momentum-as-signs "" "" any any
    optimizer=ZeroOneAdam params=', "var_freeze_step": 100, "local_step_scaler": 60, "local_step_clipper": 4'
    recipe ranks-on-their-own "" "" any any
    optimizer=OneBitLamb rate=0.01 params=', "freeze_step": 100'
    recipe frozen-coefficients "" "" any any
    stage=3 optimizer=AdamW rate=0.001 params=
    # Further gathers inside pairs are not packed; they receive two thirds of the bytes of four ranks.
    recipe all-of-zeropp "$weights$gradients, \"zero_hpz_partition_size\": 2" "" 0.577 0.258
fi
# Four ranks as if two of them shared a host: the loss is the same, to the last digit.
steps=4
losses() { timeout 120 "$bin/dsc-launch" --num_gpus=4 train --config "$1.json" --log "$1.log" --comm "$2" >out 2>err </dev/null && grep -o '"loss":[0-9.]*' "$1.log" >"$1.$2"; } # NAME TRANSPORT
config four "" ""
config pairs ', "zero_hpz_partition_size": 2, "overlap_comm": true' ""
same_losses() { losses pairs "$1" && cmp four.shm "pairs.$1"; } # TRANSPORT
report "four ranks" losses four shm
report "pairs keep parameters among themselves: the same losses" same_losses shm
report "over tcp too" same_losses tcp
end_of_tests
