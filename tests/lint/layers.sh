#!/usr/bin/env bash
# layers.sh - folders and the folders that they may include (docs/ARCHITECTURE.md): base <- kernels <- offload, comm <-
# zero <- engine <- tools; models -> kernels, base; launcher -> base; tools/train only the public headers. An exception
# are the parser of flags and the quoting of JSON, which have one home for all programs and no part in training.
# Inner folders have rows of their own, so that no two folders include each other.
# SPDX-License-Identifier: Apache-2.0
set -u
bad=0
allowed() {
    case "$1" in
    base) echo "base" ;;
    kernels) echo "base kernels" ;;
    offload) echo "base kernels offload" ;;
    comm) echo "base kernels comm" ;;
    comm/.) echo "base kernels comm/." ;;
    comm/rendezvous) echo "base comm/rendezvous" ;;
    comm/transports) echo "base kernels comm/. comm/rendezvous comm/transports" ;;
    comm/front) echo "base kernels comm/. comm/transports comm/front" ;;
    zero) echo "base kernels offload comm zero" ;;
    zero/core) echo "base kernels comm offload/swap.h zero/core" ;;
    zero/offload) echo "base kernels offload comm zero/core zero/offload" ;;
    zero/optimizer) echo "base kernels comm zero/core zero/offload zero/optimizer" ;;
    models) echo "base kernels models" ;;
    engine) echo "base kernels offload comm zero engine" ;;
    launcher) echo "base launcher" ;;
    launcher/plan) echo "base launcher/plan" ;;
    launcher/process) echo "base launcher/plan launcher/process" ;;
    launcher/protocol) echo "base launcher/plan launcher/protocol" ;;
    launcher/output) echo "base launcher/plan launcher/process launcher/output" ;;
    launcher/node) echo "base launcher/plan launcher/process launcher/protocol launcher/output launcher/node" ;;
    launcher/coordinator)
        echo "base launcher/plan launcher/process launcher/protocol launcher/output launcher/node launcher/coordinator" ;;
    launcher/runners) echo "base launcher/plan launcher/protocol launcher/runners" ;;
    tools/train) echo "base/base.h base/flags.h base/formats/json.h base/io.h base/world_channel.h tools/strategies.h" ;;
    tools/dsc) echo "base kernels offload comm zero engine tools/dsc tools/strategies.h" ;;
    examples) echo "" ;;
    esac
}
check() { # FOLDER FILE; a name that allowed() gives is a folder, a folder without inner ones ("/."), or one header
    local may line target ok entry
    may=$(allowed "$1")
    while IFS= read -r line; do
        target=${line#*\"} target=${target%%\"*}
        case "$target" in */*) ;; *) continue ;; esac
        ok=0
        for entry in $may; do case "${target%/*}/. $target/" in *" $entry"/* | "$entry "*) ok=1 ;; esac; done
        [ $ok -eq 1 ] || { echo "layers: $2 includes \"$target\": $1 may include only: ${may:-the public headers}"; bad=1; }
    done < <(grep -E '^#include "' "$2")
}
inner="comm/. comm/rendezvous comm/transports comm/front launcher/plan launcher/process launcher/protocol launcher/output launcher/node launcher/coordinator launcher/runners"
for folder in base kernels offload comm zero models engine launcher $inner tools/train tools/dsc examples; do
    paths=("$folder/*.c" "$folder/*.h" "$folder/*.cu" "$folder/*.cc")
    case "$folder" in */.) paths=(":(glob)${folder%.}*.[ch]") ;; esac
    while IFS= read -r file; do check "$folder" "$file"; done < <(git ls-files "${paths[@]}")
done
# The folders of zero/ form no cycle; only zero/offload uses the files of offload/.
for folder in zero/core zero/offload zero/optimizer; do
    while IFS= read -r file; do check "$folder" "$file"; done < <(git ls-files "$folder/*.c" "$folder/*.h")
done
# The engine never names a model family, models never a shard, kernels never a config.
if git grep -nE '\b(gpt2|llama|bert|neox|qwen|mistral|opt(_|\b))' -- 'engine/*.c' 'comm/*.c' 'zero/*.c' | grep -vE '^\S+:[0-9]+:\s*(/?\*|//)' | grep -v '"' ; then echo "layers: the engine names a layer"; bad=1; fi
if git grep -nE 'dsc_(layout|zero|comm)_' -- 'models/*.[ch]'; then echo "layers: a model names a shard"; bad=1; fi
if git grep -nE 'dsc_config' -- 'kernels/*.[ch]' 'models/*.[ch]'; then echo "layers: a kernel or model names the config"; bad=1; fi
# Tests reach private state through tests/support/probe*.c alone; a private header of tests is for its own folder.
if git grep -nE '#include "(base|kernels|offload|comm|zero|models|engine|launcher)/[^"]*internal\.h"' -- tests ':!tests/support/probe*.c'; then
    echo "layers: a test includes a private header; add a function to tests/support/probe.h instead"; bad=1
fi
# A tool reads what a public or plain header of a folder gives, also behind the headers that it includes.
private=$(git grep -lE '#include "[^"]*internal\.h"' -- 'base/*.h' 'kernels/*.h' 'offload/*.h' 'comm/*.h' 'zero/*.h' 'engine/*.h')
while IFS= read -r header; do
    if git grep -nF "#include \"$header\"" -- tools; then echo "layers: a tool includes a private header; add what it reads to a plain one"; bad=1; fi
done < <(git ls-files '*internal.h'; echo "$private")
# PTX has one home, where each wrapper has its body for the simulator.
if git grep -nE '\basm\b *(volatile *)?\(' -- kernels/cuda ':!kernels/cuda/ptx.h'; then echo "layers: inline PTX outside of kernels/cuda/ptx.h"; bad=1; fi
exit $bad
