#!/usr/bin/env bash
# test_conv2d_cudnn.sh - convolutions by the simulator's cuDNN in training: where they are taken, what a run without them
# does, and what a checkpoint keeps. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/../cli/tap.sh"
sim=${DSC_SIM:-$root/build/gcc-release/tests/sim}
cd "$tmp" || exit 1
. "$root/tests/cli/vision.sh"
mkdir cnn
echo '{"architecture": "basic_cnn", "num_classes": 3, "pretrained_cfg": {"input_size": [3, 12, 12]}}' >cnn/config.json

# trains NAME CUDNN BF16 MEMBERS...: CUDNN is a cusim_cudnn, the rest is inside of "dsc", each from a comma on
trains() {
    local name=$1 cudnn=$2 bf16=$3
    shift 3
    cat >"$name.json" <<EOF2
{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": $bf16}, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
 "zero_optimization": {"stage": 1},
 "dsc": {"model": "$tmp/cnn", "data": "$tmp/train.pictures", "steps": ${steps:-2}, "device": "cuda", "threads": 1, "save": "$tmp/$name.save"$*}}
EOF2
    CUSIM_CUDNN=$cudnn timeout 200 "$sim/bin/train" --config "$name.json" --log "$name.log" >out 2>err </dev/null || { code=$?; return 1; }
    cat out err >"$name.said"
}
says() { grep -qF -- "$2" "$1.said" || { grep cuDNN "$1.said" >why; return 1; }; } # NAME WORDS
silent() { [ -e "$1.said" ] && ! grep cuDNN "$1.said" >why; }
hash() { "$dsc" ckpt hash "$1.save/step-2"; }
same() { [ -n "$(hash "$1")" ] && [ "$(hash "$1")" = "$(hash "$2")" ] || fail "$(hash "$1"), and not $(hash "$2")"; }
other() { [ -n "$(hash "$1")" ] && [ -n "$(hash "$2")" ] && ! same "$1" "$2"; }
near() { # the kernels round otherwise
    paste -d ' ' <(grep -o '"loss":[0-9.e-]*' "$1.log") <(grep -o '"loss":[0-9.e-]*' "$2.log") | tr -d 'a-z":' |
        awk '{ n++; if ($1 - $2 > 0.01 * $2 || $2 - $1 > 0.01 * $2) bad = 1 } END { exit bad || n != 2 }'
}
by() { grep -oE 'conv2d (y|dx|dw) [^"]*' "$1.save/step-2/manifest.json" | grep -cE " by $2"; } # NAME KIND
passes() { [ "$(by "$1" "$2")" = "$3" ] || fail "$(by "$1" "$2") passes take $2, not $3"; }

report "dsc's own products" trains own 1 true ', "convolutions": "own"'
report "it says nothing of cuDNN" silent own
report "cuDNN" trains cudnn 1 true ''
# y and the gradients of the weights of both layers, and the second one's gradient of x
report "sm_90 takes it in bf16" says cudnn 'cuDNN 9.19.0: 5 of 5 passes of convolutions take it, 0 are faster without'
report "the checkpoint names its engines" passes cudnn 'cudnn 91900 engine eng1[012]_k0=1$' 5
report "its losses are near" near own cudnn
report "recomputed" trains again 1 true ', "recompute": "full"'
report "the bits are the same" same cudnn again
report "as CUDA graphs" trains graphs 1 true ', "cuda_graphs": true'
report "the bits are the same" same cudnn graphs
report "without work space" trains bare 9 true ''
report "cuDNN has all passes" passes bare cudnn 5
report "the bits are the same" same cudnn bare
report "fp32" trains wide 1 false ''
report "it is products, unless it is asked for by name" silent wide
report "fp32 by cuDNN" trains named 1 false ', "convolutions": "cudnn"'
report "it is asked for by name" says named '5 of 5 passes of convolutions take it'
report "by times" trains fastest 1 true ', "gemm_plans": "fastest"'
report "times choose" says fastest 'of 5 passes of convolutions take it'
report "the library's first choice" trains first 6 true ', "gemm_plans": "first"'
report "it is products" silent first
report "by name without a trial" trains untried 6 true ', "gemm_plans": "first", "convolutions": "cudnn"'
report "it is taken as it is" says untried '5 of 5 passes of convolutions take it'
report "its wrong numbers are other bits, so that these tests can fail" other own untried

without() { # CUDNN WORDS: the bits of own products, and a line
    trains "without$1" "$1" true '' && says "without$1" "$2" && same own "without$1"
}
report "not installed" without 0 "cuDNN: this run has convolutions by dsc's own kernels: libcudnn.so.9 does not load"
report "too old" without 3 "cuDNN: this run has convolutions by dsc's own kernels: cuDNN 9.1.0 is installed"
report "work space larger than the card" without 5 'its work space would be 1048576 MiB for 2 pictures'
report "wrong numbers" without 6 'gives wrong numbers or other bits each time on this GPU for 5 of 5 passes of convolutions'
report "other bits each time" without 7 'gives wrong numbers or other bits each time on this GPU for 5 of 5 passes of convolutions'
report "no gradients of weights" trains refused 4 true ''
report "they are products, with a note" says refused "a shape has convolutions by dsc's own kernels: cuDNN: the graph: no engine"
report "the others are cuDNN's" passes refused cudnn 3
report "few channels refused" trains narrow 8 true ''
report "the layer of three planes is products" says narrow '3 of 3 passes of convolutions take it'

resumes() { # CUDNN: from the checkpoint of cuDNN 9.19.0
    rm -rf resumed.save
    steps=3 trains resumed "$1" true ", \"load\": \"$tmp/cudnn.save\""
}
report "a resumed run" resumes 1
report "it takes the same engines" silent resumed
report "a resumed run beside a later cuDNN" resumes 2
report "it warns" says resumed 'resume: for 5 kinds of matrix products, attentions or convolutions'
end_of_tests
