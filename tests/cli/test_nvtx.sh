#!/usr/bin/env bash
# test_nvtx.sh - ranges for NVIDIA's tools. A tool of this test, loaded by NVTX like NVIDIA's own, receives the begin and
# end of every module of every micro-step, in order. Without the plugin a run goes on; if the config asks for ranges, an
# error names the missing plugin.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
cd "$tmp" || exit 1
for folder in /usr/include /usr/local/cuda/include "$root/deps/cuda/nvidia/cu13/include"; do
    [ -e "$folder/nvtx3/nvToolsExt.h" ] && include=$folder && break
done
plugins=${DSC_LIB:-$root/lib}/dsc
if [ -z "${include:-}" ] || [ ! -e "$plugins/libdsc_nvtx.so" ]; then
    skip "ranges for NVIDIA's tools" "no nvtx3/nvToolsExt.h (make deps-cuda)"
    end_of_tests
fi
${CC:-cc} -std=c17 -Wall -Wextra -Wno-unused-parameter -O1 -shared -fPIC -isystem "$include" -o tool.so "$root/tests/cli/nvtx_tool.c" 2>why
report "the tool compiles" [ ! -s why ]
for i in $(seq 300); do echo "line $i of a text that is long enough"; done >text.txt
config() { # OWN_MEMBERS
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}},
           \"dsc\": {\"model\": \"gpt2-nano\", \"data\": \"text.txt\", \"seq_length\": 16, \"threads\": 1, \"steps\": 3$1}}" >config.json
}
train() { code=0; timeout 60 "$bin/train" --config config.json --log "$1.log" --save "$1.save" >out 2>err </dev/null || code=$?; return $code; } # NAME
losses() { grep -o '"loss":[0-9.]*' "$1.log"; }
config ""
train plain
export NVTX_INJECTION64_PATH=$tmp/tool.so NVTX_LOG=$tmp/ranges
report "a run that a tool has started" train watched
report "learns the same" [ "$(losses plain)" = "$(losses watched)" ]
# 3 steps of 2 micro-steps: each of the modules forward and, but for the last, backward; the update after them.
in_order() {
    awk 'BEGIN { depth = 0 }
         NR == 1 { if ($0 != "domain dsc") bad = 1; next }
         $1 == "push" { depth++; n[$0]++; if (depth > most) most = depth; if ($NF == "update") updates = updates NR " "; next }
         $1 == "pop" { if (--depth < 0) bad = 1; next }
         $0 == "end 1" { ended = NR; next }
         { bad = 1 }
         END { exit !(!bad && depth == 0 && most == 1 && ended == NR && n["push h.0 forward"] == 6 && n["push h.0 backward"] == 6 &&
                      n["push embedding forward"] == 6 && n["push head forward"] == 6 && n["push wait for data"] == 6 && !n["push head backward"] && n["push update"] == 3 && n["push save"] >= 1) }' ranges ||
        fail "$(sort ranges | uniq -c | sort -rn | head -20)"
}
report "which sees every range begin and end" in_order
mkdir none
export DSC_PLUGIN_DIR=$tmp/none
report "without the plugin the run goes on" train alone
config ', "nvtx": true'
train asked
report "but not where the config asks" eval '[ $code -eq 2 ] && grep -q "^dsc: error: dsc.nvtx: this installation has no libdsc_nvtx.so; install the CUDA toolkit" err'
unset NVTX_INJECTION64_PATH DSC_PLUGIN_DIR
report "asked for, and no tool: nothing happens" train unseen
end_of_tests
