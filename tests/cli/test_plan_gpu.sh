#!/usr/bin/env bash
# test_plan_gpu.sh - `dsc plan` for GPUs on any machine: cards by name and by size, what fits and the way out when not.
# That its rows are a run's is tests/sim/test_plan_rows.c. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export CUDA_VISIBLE_DEVICES=-1 # equal results on machines with a GPU
echo '{"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}' >"$tmp/c.json"

plan() { code=0; timeout 60 "$dsc" plan --config "$tmp/c.json" --model gpt2-xl --world-size 8 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?; }
refused() { [ $code -eq 2 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -qF -- "$1" "$tmp/err"; }
fits() { [ $code -eq 0 ] && [ ! -s "$tmp/err" ] && grep -qE "^fits the GPU: [0-9.]+ MiB of $1 MiB that a rank can have of it\$" "$tmp/out"; }
number() { sed -E "s/.*\"$1\":([0-9]+|true|false|null).*/\1/" "$tmp/out"; }

plan --gpu H100
report "a card of the list" fits 80023.00
report "host memory is told, not judged" grep -q '^host memory: 8 ranks x ' "$tmp/out"
report "bf16 products, whatever this CPU has" grep -q 'matrix products bf16 with fp32 sums' "$tmp/out"
for name in h100 "NVIDIA H100 80GB HBM3" H100-80GB "H100_SXM5"; do
    plan --gpu "$name"
    report "\"$name\" is the same card" fits 80023.00
done
plan --gpu "NVIDIA A100-SXM4-80GB"; report "as nvidia-smi writes it" fits 80384.00
for size in 80GiB "80 gib" 80 80G 81920MiB 0.078125TiB 85.89934592GB "85899.34592 mb" 0.08589934592TB; do
    plan --gpu-memory "$size"
    report "--gpu-memory $size" fits 80384.00
done
plan --device cuda --gpu-memory=80GiB; report "--device cuda beside it" fits 80384.00

# ---- numbers ----
plan --gpu-memory 80GiB --json
device=$(grep -oE '"tier":"device","model_state":[a-z]+,"bytes":[0-9]+' "$tmp/out" | sed 's/.*://' | awk '{s += $1} END {printf "%.0f", s}')
report "gpu_bytes are the rows in device memory" [ "$device" = "$(number gpu_bytes)" ]
report "the rest is the host's" [ $((8 * ($(number total_bytes) - device))) = "$(number all_ranks_bytes)" ]
report "it fits" [ "$(number fits)" = true ]
states() { # P parameters, 8 ranks: bf16 weights in whole, fp32 gradient, master and two moments in slices
    local p most least; p=$(number parameters)
    least=$((2 * p + 16 * p / 8)) most=$((2 * p + 16 * p / 8 + 50 * 8 * 1024 * (2 + 2)))
    [ "$(number model_states_bytes)" -ge $least ] && [ "$(number model_states_bytes)" -le $most ]
}
report "model states by ZeRO's formula" states
overlap() { "$dsc" config explain "$tmp/c.json" >/dev/null && grep -q '"tag":"comm","tier":"device"' "$tmp/out"; }
report "the plan includes communication buffers of GPUs" overlap

# ---- the logits of the head, which the device limits ----
scratch() { # BYTES: of the plan with that limit for logits
    echo "{\"train_micro_batch_size_per_gpu\": 32, \"bf16\": {\"enabled\": true}, \"dsc\": {\"seq_length\": 1024, \"vocab_multiple\": 128, \"head_chunk_bytes\": $1}}" >"$tmp/head.json"
    "$dsc" plan --config "$tmp/head.json" --model gpt2-124m --gpu H100 --json 2>/dev/null |
        sed -E 's/.*"tag":"scratch","tier":"device","model_state":false,"bytes":([0-9]+).*/\1/'
}
row=$((50304 * 2)) gpu=$(scratch 0) cpu=$(scratch 67108864)
norm=$((32768 * (768 * 2 + 8))) one=$(((50257 * 4 + 255) / 256 * 256)) # the norm's output and statistics; logits of one token
report "a GPU takes 4096 rows of logits at once" [ "$gpu" -eq $((4096 * row + norm + one)) ]
report "a limit that is given counts" [ "$gpu:$((cpu < gpu))" = "$(scratch 536870912):1" ]

# ---- recomputation that follows from the memory there is ----
activations() { # RECOMPUTE: its bytes, into out
    sed "s/\"stage\": 2}/&, \"dsc\": {\"recompute\": \"$1\"}/" "$tmp/c.json" >"$tmp/$1.json"
    "$dsc" plan --config "$tmp/$1.json" --model gpt2-xl --world-size 8 --gpu-memory 80GiB --json 2>/dev/null |
        sed -E 's/.*"tag":"activations","tier":"device","model_state":false,"bytes":([0-9]+).*"gpu_bytes":([0-9]+).*/\1 \2/'
}
read -r kept kept_gpu < <(activations kept)
read -r none none_gpu < <(activations none)
read -r selective selective_gpu < <(activations selective)
read -r full full_gpu < <(activations full)
block=$((8 * 1024 * 1600 * 2)) # C numbers of every token; gpt2-xl has 48 blocks
report "kept keeps 2C + I and four numbers for norms more" [ $((kept - none)) -eq $((48 * (6 * block + 4 * 8 * 1024 * 4))) ]
report "selective keeps one I of 48 less 47" [ $((none - selective)) -eq $((47 * 4 * block)) ]
report "full keeps 5C and a log-sum-exp less 47 times more" [ $((selective - full)) -eq $((47 * (5 * block + 8 * 1024 * 25 * 4))) ]
chosen() { # WORD BYTES RESERVED [CONFIG]: what "auto" takes on a GPU that leaves so much to a rank
    "$dsc" plan --config "${4:-$tmp/auto.json}" --model gpt2-xl --world-size 8 --gpu-memory "$((($2 + 1048575) / 1048576 + $3))MiB" >"$tmp/out" 2>/dev/null
    grep -qE "^gpt2-xl: .*ZeRO stage 2$1\$" "$tmp/out"
}
activations auto >/dev/null
reserved=$(($(sed -E 's/.*"gpu_free_bytes":([0-9]+).*/\1/' <("$dsc" plan --config "$tmp/none.json" --model gpt2-xl --world-size 8 --gpu-memory 80GiB --json 2>/dev/null)) / 1048576))
reserved=$((81920 - reserved))
spare=$((kept_gpu / 15 + 1048576)) # a sixteenth of what is free
report "auto: kept where there is room to spare" chosen ", activations kept" "$((kept_gpu + spare))" "$reserved"
report "auto: none where there is room" chosen "" "$none_gpu" "$reserved"
report "auto: none where little is spare" chosen "" "$((kept_gpu + spare / 2))" "$reserved"
report "auto: selective where it is needed" chosen ", recomputation selective" "$selective_gpu" "$reserved"
report "and no less" chosen ", recomputation selective" "$((none_gpu - 1048576))" "$reserved"
report "auto: full where that is" chosen ", recomputation full" "$full_gpu" "$reserved"

report "no dsc.recompute: kept where there is room to spare" chosen ", activations kept" "$((kept_gpu + spare))" "$reserved" "$tmp/c.json"
report "no dsc.recompute: none where little is spare" chosen "" "$((kept_gpu + spare / 2))" "$reserved" "$tmp/c.json"
report "no dsc.recompute: nothing is computed again for memory" chosen "" "$full_gpu" "$reserved" "$tmp/c.json"
report "kept that is asked for may fill the card" chosen ", activations kept" "$kept_gpu" "$reserved" "$tmp/kept.json"
report "none that is asked for stays" chosen "" "$((kept_gpu + spare))" "$reserved" "$tmp/none.json"
on_cpu() { "$dsc" plan --config "$tmp/c.json" --model gpt2-nano --device cpu >"$tmp/out" 2>"$tmp/err" && grep -qE '^gpt2-nano: .*ZeRO stage 2$' "$tmp/out"; }
report "no dsc.recompute on CPUs: none" on_cpu

# ---- a prefetch of modules beyond the bucket gives way to memory ----
sed 's/"stage": 2}/"stage": 3, "stage3_prefetch_bucket_size": BUCKET}, "dsc": {"recompute": "full"}/' "$tmp/c.json" >"$tmp/ahead.json"
for bucket in 0 10000000; do sed "s/BUCKET/$bucket/" "$tmp/ahead.json" >"$tmp/bucket$bucket.json"; done
bytes_of() { "$dsc" plan --config "$tmp/bucket$1.json" --model gpt2-xl --world-size 8 --gpu-memory 80GiB --json 2>/dev/null | sed -E 's/.*"gpu_bytes":([0-9]+).*/\1/'; }
none=$(bytes_of 0) ahead=$(bytes_of 10000000)
report "the window of the next block takes memory" [ "$ahead" -gt $((none + 16777216)) ]
held() { # BYTES WANTED: whether a GPU that leaves so much holds the prefetch back and fits
    "$dsc" plan --config "$tmp/bucket10000000.json" --model gpt2-xl --world-size 8 --gpu-memory "$((($1 + 1048575) / 1048576 + reserved))MiB" >"$tmp/out" 2>"$tmp/err" &&
        [ "$(grep -c '^modules larger than stage3_prefetch_bucket_size are not gathered in advance' "$tmp/out")" -eq "$2" ]
}
report "a plan with room prefetches large modules" held "$ahead" 0
report "a plan without room holds the prefetch back, says so, and fits" held "$((ahead - 8388608))" 1

# ---- what does not fit ----
nofit() { [ $code -eq 3 ] && grep -q '^does not fit the GPU: ' "$tmp/out" && [ "$(wc -l <"$tmp/err")" -eq 1 ] &&
    grep -qE "^dsc: error: memory: 1 rank on this GPU needs [0-9]+ MiB .* are free; use .*$1" "$tmp/err"; }
plan --gpu-memory 16GiB; report "16 GiB are too few: exit 3 and the ways out" nofit 'stage 3'
report "a smaller micro-batch is one" nofit 'smaller train_micro_batch_size_per_gpu'
plan --gpu-memory 16GiB; report "nor would states in host memory help" eval '! grep -q "offload_optimizer" "$tmp/err"'
plan --gpu-memory 19GiB
on_host() { # the numbers are those of the plan that is proposed
    sed 's/"stage": 2/&, "offload_optimizer": {"device": "cpu"}/' "$tmp/c.json" >"$tmp/host.json"
    "$dsc" plan --config "$tmp/host.json" --model gpt2-xl --world-size 8 --gpu-memory 19GiB --json 2>"$tmp/ignored" |
        python3 -c '
import json, re, sys
plan, said = json.load(sys.stdin), open(sys.argv[1]).read()
gpu, host = re.search(r"offload_optimizer on cpu .([0-9.]+) GB of the GPU and ([0-9.]+) GB of the host each", said).groups()
assert abs(float(gpu) - plan["gpu_bytes"] / 1e9) <= 0.05
assert abs(float(host) - (plan["total_bytes"] - plan["gpu_bytes"]) / 1e9) <= 0.05 and float(host) > 1' "$tmp/err"
}
report "states in host memory are one, in numbers" on_host
plan --gpu-memory 16GiB --json; report "fits is false" [ $code:"$(number fits)" = 3:false ]

smaller_chunks() { # MIB: that a GPU lacks; the way out where smaller chunks of the head make up for it
    "$dsc" plan --config "$tmp/head.json" --model gpt2-xl --gpu-memory 80GiB --json >"$tmp/out" 2>/dev/null
    plan_head=("$dsc" plan --config "$tmp/head.json" --model gpt2-xl --gpu-memory "$(($(number gpu_bytes) / 1048576 + reserved - $1))MiB")
    "${plan_head[@]}" 2>&1 >/dev/null | grep -qF '"dsc": {"head_chunk_bytes": 67108864}, '
}
sed 's/"stage": 2}/&, "dsc": {"recompute": "full"}/' "$tmp/c.json" >"$tmp/head.json"
report "smaller chunks of the head are one" smaller_chunks 100
report "the message names smaller chunks only where they suffice" eval '! smaller_chunks 4000'
sed 's/"stage": 2}/&, "dsc": {"recompute": "full", "head_chunk_bytes": 67108864}/' "$tmp/c.json" >"$tmp/head.json"
report "and are not there" eval '! smaller_chunks 100'

# ---- wrong command lines ----
plan --gpu H101
report "an unknown card names those that are known" refused '"H101" is unknown; expected one of A10, A100-40GB'
plan --gpu A100; report "a card of two sizes needs its size" refused '"A100" is unknown; expected one of'
plan --gpu; report "no card" refused "--gpu"
for size in 0 1GB -80GB 80XB abc 1e30GB nan ""; do
    plan --gpu-memory "$size"
    report "--gpu-memory \"$size\" is none" refused "--gpu-memory"
done
plan --gpu-memory; report "--gpu-memory without a size" refused "--gpu-memory"
plan --device gpu; report "an unknown device" refused '"gpu" is unknown; expected auto, cpu or cuda'
plan --device cpu --gpu H100; report "a GPU for a run on CPUs" refused '"cpu", but a GPU is described'
plan --device cuda; report "no GPU here: how to plan for others" refused "for another machine's GPUs: --gpu H100 or --gpu-memory 80GiB"
echo '{"train_micro_batch_size_per_gpu": 8, "dsc": {"device": "cuda"}}' >"$tmp/c.json"
plan; report "the same when the config asks for GPUs" refused "for another machine's GPUs"
plan --device cpu; report "a flag beats the config" grep -q '^does not fit this machine\|^fits this machine' "$tmp/out"
end_of_tests
