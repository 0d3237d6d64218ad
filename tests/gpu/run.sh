#!/usr/bin/env bash
# run.sh [--simulate] [--nccl DIR] [--seconds N] [--results DIR] PROGRAM... - every test of the GPU backend in one call.
#
# Parts on this machine's GPU: checkkern, then the engine's tests by one rank. With --nccl (the folder of a libnccl.so.2
# of 2.30 or newer) follow 2 to 4 ranks as threads that share the GPU. A run as users start it follows, then
# compute-sanitizer if installed. The most informative parts come first, and a part that does not fit into N seconds
# (540) is named and not run. The last lines also go
# to --results DIR/DATE-CARD-test.md. Exit 77 with one line where there is no GPU that can be used; 1 when a part
# failed. --simulate: the same script on simulated GPUs, with programs that have the simulator in them.
# SPDX-License-Identifier: Apache-2.0
set -u
nccl='' results='' simulated=0 seconds=540
while [ $# -gt 0 ]; do
    case $1 in
    --simulate) simulated=1; shift ;;
    --nccl) nccl=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --results) results=$2; shift 2 ;;
    --*) echo "test-gpu: unknown flag $1" >&2; exit 2 ;;
    *) break ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
dsc=${DSC_BIN:-bin}/dsc train=${DSC_BIN:-bin}/train
export CK_DEVICE=cuda # checkkern: the GPU's kernels
[ $simulated -eq 1 ] || export DSC_PLUGIN_DIR=${DSC_LIB:-lib}/dsc
gpu=$("$dsc" doctor | grep -E '^ +GPU' | head -n 1)
case $gpu in
*", sm_"*) ;; # "is sm_75; sm_80 or newer is needed" cannot be used
*) echo "test-gpu: skipped:$gpu"; exit 77 ;;
esac
start=$SECONDS failed=0
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
summary=$work/summary
say() { echo "test-gpu: $*" | tee -a "$summary"; }
left() { echo $((seconds - (SECONDS - start))); }
say "$(sed -E 's/^ +//; s/ +/ /g' <<<"$gpu")"

part() { # part NAME MOST_SECONDS COMMAND...: one line of the summary; its own lines above it when it failed
    local name=$1 most=$2 rc begin=$SECONDS
    shift 2
    if [ "$(left)" -lt 10 ]; then say "$name: not run, the $seconds s are over"; return; fi
    [ "$most" -lt "$(left)" ] || most=$(left)
    timeout --kill-after=5 "$most" "$@" >"$work/log" 2>&1 </dev/null; rc=$?
    local counts
    counts=$(grep -aE '[0-9]+ passed, [0-9]+ failed|ERROR SUMMARY|RACECHECK SUMMARY' "$work/log" | tail -n 1 | sed -E 's/^=+ //')
    case $rc in
    0) say "$name: ok, $((SECONDS - begin)) s${counts:+ ($counts)}" ;;
    77) say "$name: skipped: $(tail -n 1 "$work/log")" ;;
    124 | 137) say "$name: not whole, stopped after $most s"; failed=1; tail -n 20 "$work/log" | sed 's/^/    /' ;;
    *) say "$name: FAILED (exit $rc)${counts:+ ($counts)}"; failed=1; tail -n 60 "$work/log" | sed 's/^/    /' ;;
    esac
}
tests=(env DSC_TEST_TIMEOUT=300 "$here/../run" gpu)

echo '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "dsc": {"device": "cuda", "seq_length": 64}}' >"$work/config.json"
seq 1 20000 >"$work/text.txt"
steps=20; [ $simulated -eq 0 ] || steps=1
kernels='' engine=()
for program in "$@"; do
    case $program in */checkkern) kernels=$program ;; *) engine+=("$program") ;; esac
done
[ -z "$kernels" ] || part "every kernel against its reference" 180 "${tests[@]}" "$kernels"
part "the engine, one rank" 240 env DSC_TEST_RANKS_MAX=1 "${tests[@]}" "${engine[@]}"
part "train, $steps steps" 120 "$train" --config "$work/config.json" --model gpt2-nano --data "$work/text.txt" --steps $steps

if [ -n "$nccl" ] || [ $simulated -eq 1 ]; then
    # All ranks' kernels must be on the GPU at once, no launch may wait for another rank's, and none for a lazy load.
    [ -z "$nccl" ] || export LD_LIBRARY_PATH=$nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    for n in 2 4; do
        part "the engine, $n ranks that share the GPU" 150 env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=$((32 / n)) \
            CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER DSC_TEST_RANKS_MAX=$n "${tests[@]}" "${engine[@]}"
    done
else
    say "several ranks: not run, no --nccl DIR (NCCL 2.30 or newer)"
fi

# Small programs first: what is slow under a sanitizer must not keep the rest from being looked at.
if [ $simulated -eq 1 ]; then
    say "compute-sanitizer: not for simulated GPUs, which check every access themselves"
elif command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        part "compute-sanitizer $tool, training" 120 env DSC_TEST_RANKS_MAX=1 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$train" --config "$work/config.json" --model gpt2-nano --data "$work/text.txt" --steps 1
        [ -z "$kernels" ] || part "compute-sanitizer $tool, every kernel" 200 compute-sanitizer --tool $tool --error-exitcode 9 "$kernels"
    done
else
    say "compute-sanitizer: not installed"
fi
say "$([ $failed -eq 0 ] && echo "no part failed" || echo "FAILED"), $((SECONDS - start)) s"

if [ -n "$results" ]; then
    card=$(sed -E 's/^ *GPU [0-9]+ +//; s/,.*//; s/[^A-Za-z0-9]+/-/g' <<<"$gpu")
    file=$results/$(date +%F)-$card-test.md
    mkdir -p "$results"
    {
        echo "# Tests on $card"
        echo
        echo "Commit ${DSC_COMMIT:-$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)}, $(date -u +'%F %H:%M UTC'), \`make test-gpu\`."
        echo
        sed 's/^/    /' "$summary"
    } >"$file"
    echo "test-gpu: written to $file"
fi
exit $failed
