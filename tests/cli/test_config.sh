#!/usr/bin/env bash
# test_config.sh - `dsc config check|explain|lr`, `dsc check --kind config` and the dispatcher, as users and programs call them.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"

seconds=10
[ -z "${DSC_TEST_STRICT:-}" ] || seconds=2 # tests/README.md
# run ARGS...: exit code, stdout and stderr of dsc, within $seconds and 256 MiB
run() {
    code=0
    if [ -n "${DSC_SAN:-}" ]; then # shadow memory is address space
        timeout 60 "$dsc" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    else
        (ulimit -v 262144; exec timeout "$seconds" "$dsc" "$@") >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    fi
}
# fails WORDS: exit 2, nothing on stdout, one error line with the words
fails() { [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q '^dsc: error: ' "$tmp/err" && grep -qF -- "$1" "$tmp/err"; }
prints() { [ $code -eq 0 ] && grep -qF -- "$1" "$tmp/out"; }
quiet() { [ $code -eq 0 ] && [ ! -s "$tmp/err" ]; }
json() { [ $code -eq 0 ] && python3 -c "import json,sys; d=json.load(open('$tmp/out')); sys.exit(not ($1))"; }

guide=$tmp/guide.json
cat >"$guide" <<'END'
{
  "train_batch_size": 64,
  "gradient_accumulation_steps": 8,
  "optimizer": {
    "type": "Adam",
    "params": {
      "lr": 0.00015
    }
  },
  "zero_optimization": {
    "stage": 2
  }
}
END

# ---- check ----
for pair in 1:8 2:4 4:2 8:1; do
    run config check "$guide" --world-size "${pair%:*}" --json
    report "the guides' smallest config at W = ${pair%:*}" json "d['train_micro_batch_size_per_gpu'] == ${pair#*:} and d['warnings'] == []"
done
run config check "$guide" --world-size 3
report "W = 3 ends with the equation and what works" fails "$guide:2:23: train_batch_size 64 is not train_micro_batch_size_per_gpu 2 (inferred) * gradient_accumulation_steps 8 * world size 3 = 48; world sizes that work: 1, 2, 4, 8"
run config check --world-size=16 "$guide" --json
report "W = 16 likewise" fails "world sizes that work: 1, 2, 4, 8"
run config check "$guide" --json
report "without a world size its part is left to the run" json "d == {'zero_stage': 2, 'offload_optimizer': 'none', 'offload_param': 'none', 'precision': 'fp32', 'train_batch_size': 64, 'train_micro_batch_size_per_gpu': 'auto', 'gradient_accumulation_steps': 8, 'optimizer': 'Adam', 'scheduler': None, 'gradient_clipping': 0, 'warnings': [], 'notes': d['notes']}"
run config check "$guide"
report "check says what was resolved" prints "zero stage         2"
cat >"$tmp/auto.json" <<'END'
{ // what the Trainer's users have
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto", "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
}
END
run config check "$tmp/auto.json" --json --world-size 2
report "values left to the run are auto" json "d['precision'] == d['train_batch_size'] == d['train_micro_batch_size_per_gpu'] == d['gradient_accumulation_steps'] == d['gradient_clipping'] == 'auto' and d['zero_stage'] == 3 and d['offload_optimizer'] == 'cpu' and d['scheduler'] == 'WarmupLR' and d['optimizer'] is None"
echo '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}' >"$tmp/c.json"
"$dsc" config check "$tmp/c.json" --json >"$tmp/out" 2>"$tmp/err"
report "a device without effect at this stage is named, as DeepSpeed's class has it, with a warning" json "d['offload_param'] == 'cpu' and 'offload_param.device (line 1): no effect at stage 2' in str(d['warnings'])"
printf '{"train_batch_size": 8, "odd_key": 1, "zero_optimization": {"stage": 1, "round_robin_gradients": true}}' >"$tmp/warn.json"
run config check "$tmp/warn.json" --json
report "warnings are listed" json "len(d['warnings']) == 2 and 'odd_key' in d['warnings'][0] and 'round_robin_gradients' in d['warnings'][1]"
run config check "$tmp/warn.json"
report "warnings go to stderr" grep -q "^dsc: warning: $tmp/warn.json: odd_key (line 1): unknown key" "$tmp/err"
run config check "$tmp/warn.json" --strict
report "--strict makes them errors" fails "odd_key: unknown key"
printf '{"train_batch_size": 8, "zero_optimization": {"stage": 3,\n "zeropp_loco_param": 8}, "optimizer": {"type": "MuAdam"}}' >"$tmp/later.json"
run config check "$tmp/later.json" --json
report "unsupported values are parsed with warnings" json "d['zero_stage'] == 3 and d['optimizer'] == 'MuAdam' and len(d['warnings']) == 2 and 'zeropp_loco_param (line 2): 8 is not supported in this version' in d['warnings'][1]"
run config check "$tmp/later.json"
report "and said" prints "not run by this version: optimizer.type"
run config check "$tmp/later.json" --strict
report "and an error for --strict" fails "later.json:2:49: optimizer.type"
code=0; "${dsc%/dsc}/train" --config "$tmp/later.json" --model gpt2-nano --data "$0" >"$tmp/out" 2>"$tmp/err" || code=$?
report "train refuses it by name, with the place" fails "later.json:2:49: optimizer.type: \"MuAdam\" is not supported in this version"
run plan --config "$tmp/later.json" --model gpt2-nano
report "so does plan" fails "optimizer.type"
run config check "$root/configs/training_config.yaml" --world-size 24 --json
report "YAML of the same schema" json "d['zero_stage'] == 2 and d['precision'] == 'bf16' and d['train_batch_size'] == 192 and d['scheduler'] == 'WarmupCosineLR' and d['warnings'] == []"
printf 'train_batch_size: 8\nzero_optimization:\n  stage: 2\n  stages: 3\n' >"$tmp/near.yml"
run config check "$tmp/near.yml"
report "its errors have places too" fails "near.yml:4:11: zero_optimization.stages: unknown key; did you mean"
printf 'train_batch_size: 8\nbf16: &x {enabled: true}\nfp16: *x\n' >"$tmp/alias.yaml"
run config check "$tmp/alias.yaml"
report "and what of YAML is no data is refused" fails "alias.yaml:2:7: anchors"
python3 -c "print('a: &a [x,x]\n' + ''.join(f'{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n' for p, c in zip('abcdefgh', 'bcdefghi')))" >"$tmp/laughs.yaml"
run config check "$tmp/laughs.yaml"
report "before it grows" fails "laughs.yaml:1:4: anchors"
run config check "$tmp/no such.json"
report "a missing file" fails "no such.json"
run config check "$tmp"
report "a folder" fails "$tmp"
run config check
report "no file" fails "FILE is missing"
run config check "$guide" --world-size 0
report "world size 0" fails '"0" is too small; expected 1'
run config check "$guide" --world-size
report "a flag without its value" fails "--world-size: needs a value"
run config check "$guide" --frob
report "an unknown flag" fails "unknown flag"
run config frob "$guide"
report "an unknown verb" fails "unknown"
for f in "$root"/configs/*.json "$root"/configs/*.yaml; do
    for w in 1 2 4 8; do run config check "$f" --world-size $w; [ $code -eq 0 ] || break; done
    report "preset $(basename "$f") at 1, 2, 4 and 8 ranks" [ $code -eq 0 ]
done

# ---- lr ----
printf '{"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}, "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 2, "warmup_type": "linear"}}}' >"$tmp/lr.json"
run config lr "$tmp/lr.json" --steps 5
report "one rate a line, also without batch sizes" [ "$(head -3 "$tmp/out" | tr '\n' ' ')" = "0 0 0.25 " ]
run config lr "$guide" --steps 3
report "a constant rate" [ "$(cat "$tmp/out")" = $'0.00015\n0.00015\n0.00015' ]
run config lr "$guide"
report "lr without --steps" fails "--steps N is missing"
run config lr "$guide" --steps 99999999999
report "too many steps" fails "is more than the limit of 100000000"

# ---- convert ----
cat >"$tmp/fsdp.yaml" <<'END'
# the output of `accelerate config`
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: true
  fsdp_activation_checkpointing: true
  fsdp_odd: 5
END
run config convert "$tmp/fsdp.yaml"
report "accelerate's FSDP" json "d == {'bf16': {'enabled': True}, 'dsc': {'recompute': 'full'}, 'train_micro_batch_size_per_gpu': 'auto', 'gradient_accumulation_steps': 'auto', 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}}}"
report "an FSDP key without a counterpart is reported" grep -q "fsdp.yaml:11:13: fsdp_odd: nothing here corresponds to it" "$tmp/err"
cp "$tmp/out" "$tmp/converted.json"
run config check "$tmp/converted.json" --world-size 8 --json
report "the result is a config" json "d['zero_stage'] == 2 and d['precision'] == 'bf16' and d['offload_optimizer'] == 'cpu'"
for pair in FULL_SHARD:3 SHARD_GRAD_OP:2 NO_SHARD:0 HYBRID_SHARD:3 1:3 2:2 3:0; do
    printf 'distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: %s\n  fsdp_state_dict_type: FULL_STATE_DICT\n' "${pair%:*}" >"$tmp/shard.yaml"
    run config convert "$tmp/shard.yaml"
    report "${pair%:*} is stage ${pair#*:}" json "d['zero_optimization']['stage'] == ${pair#*:} and ('stage3_gather_16bit_weights_on_model_save' in d['zero_optimization']) == (${pair#*:} == 3)"
done
printf 'distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n' >"$tmp/two.yaml"
run config convert "$tmp/two.yaml"
report "FSDP 2" json "d['zero_optimization']['stage'] == 2"
printf 'distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_param_device: nvme, offload_param_nvme_path: /tmp, gradient_clipping: 0.5}\n' >"$tmp/ds.yaml"
run config convert "$tmp/ds.yaml"
report "its DeepSpeed section" json "d['gradient_clipping'] == 0.5 and d['zero_optimization']['offload_param'] == {'device': 'nvme', 'nvme_path': '/tmp'}"
printf 'distributed_type: FSDP\nmixed_precision: fp8\n' >"$tmp/fp8.yaml"
run config convert "$tmp/fp8.yaml"
report "an untranslatable precision is an error" fails 'fp8.yaml:2:18: mixed_precision: "fp8"'
run config convert "$guide"
report "another file" fails "no config of accelerate"
run config convert horovodrun -np 8 --fusion-threshold-mb 32 python train.py --batch-size 16 --base-lr=0.5 --batches-per-allreduce 2 --momentum 0.9 --epochs 3
report "horovodrun's flags and its scripts'" json "d['train_micro_batch_size_per_gpu'] == 16 and d['optimizer'] == {'type': 'SGD', 'params': {'lr': 1, 'momentum': 0.9}} and d['dsc'] == {'lr_scaling': 'linear', 'epochs': 3} and d['gradient_accumulation_steps'] == 2 and d['zero_optimization'] == {'reduce_bucket_size': 8388608, 'stage': 0}"
run config convert horovodrun --use-adasum
report "another algorithm" fails "--use-adasum is another algorithm"
run config convert horovodrun --base-lr fast
report "a flag that is no number" fails '--base-lr: "fast" is not a number'
run config convert
report "nothing to convert" fails "is missing"

# ---- explain and the documentation ----
run config explain "$guide" --json
report "explain as JSON has every value" json "d['values']['optimizer.params.lr'] == 0.00015 and d['values']['zero_optimization.stage'] == 2 and d['zero_stage'] == 2"
run config explain "$guide"
report "explain shows value, origin, range and meaning" grep -qE '^optimizer.params.lr +0.00015 +line 7 +0..1e9; learning rate$' "$tmp/out"
report "defaults are called so" grep -qE '^optimizer.params.eps +1e-08 +' "$tmp/out"
run config explain "$tmp/auto.json" --json --world-size 2
report "so are values that were left open" json "d['origins']['gradient_clipping'] == 'line 3 (auto)' and d['origins']['zero_optimization.stage'] == 'line 4' and d['origins']['zero_optimization.sub_group_size'] == 'default'"
run config explain zero_optimization.stage
report "explain one key" prints "default  0"
run config explain --markdown
report "docs/config.md is current (bin/dsc config explain --markdown > docs/config.md)" cmp -s "$tmp/out" "$root/docs/config.md"

# ---- check --kind ----
run check --kind config "$guide"
report "check --kind config is quiet" quiet
run check --kind config "$tmp/later.json"
report "check --kind config reads as a run would" fails "optimizer.type"
run check --kind=config "$guide" extra
report "check takes one file" fails "one file"
run check --kind frob "$guide"
report "an unknown kind" fails "no such kind"
run check "$guide"
report "check without a kind" fails "--kind KIND is missing"

# ---- hostile files ----
python3 - "$tmp" <<'END'
import sys
def put(name, data): open(f"{sys.argv[1]}/{name}", "wb").write(data)
put("deep.json", b'{"a":' * 100000 + b"1" + b"}" * 100000)
put("deep_list.json", b"[" * 900000)
put("huge.json", b'{"a":"' + b"x" * 50_000_000 + b'"}')
put("members.json", b"{" + b",".join(b'"k%d":1' % i for i in range(20000)) + b"}")
put("longkey.json", b'{"' + b"k" * 900000 + b'":1}')
put("longvalue.json", b'{"train_batch_size":1,"dsc":{"model":"' + b"m" * 900000 + b'"}}')
put("twice.json", b'{"train_batch_size":1,\n"train_batch_size":2}')
put("latin1.json", b'{"train_batch_size":1,"a":"\xe9"}')
put("nul.json", b'{"train_batch_size":1}\0')
put("bom.json", b'\xef\xbb\xbf{"train_batch_size":1}')
put("number.json", b'{"train_batch_size":1e99999}')
put("digits.json", b'{"train_batch_size":' + b"9" * 900000 + b"}")
put("empty.json", b"")
put("escape.json", b'{"train_batch_size":1,"optimizer":{"type":"\\u001b]0;x\\u0007"}}')
put("near.json", b'{"train_batch_size":1,' + b",".join(b'"zero_optimizatio_%d":1' % i for i in range(9900)) + b"}")
END
for name in deep deep_list huge members longkey longvalue twice latin1 nul bom number digits empty escape; do
    run config check "$tmp/$name.json"
    report "hostile: $name" fails "$tmp/$name.json"
done
report "no control character reaches the terminal" [ -z "$(tr -d '\12\40-\176' <"$tmp/err")" ]
run config check "$tmp/near.json" --json
report "thousands of unknown keys take no time" json "len(d['warnings']) == 64"
run config check /dev/zero
report "a device is not a file" fails "/dev/zero"

# ---- the dispatcher ----
run --help
report "dsc --help" prints "config check|explain|lr|convert"
run --version
report "dsc --version" prints "dsc "
run confg
report "a misspelled command" fails "did you mean \"dsc config\""
run
report "no command" fails "no command"
run doctor
report "dsc doctor" prints "cores"
code=0; "$dsc" config explain --markdown >/dev/full 2>"$tmp/err" || code=$?
report "a full disk is an error" [ $code -eq 1 ]
end_of_tests
