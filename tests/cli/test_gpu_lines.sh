#!/usr/bin/env bash
# test_gpu_lines.sh - errors of a machine that cannot use its GPU: one line, exit code 2, at once. The driver and a
# plugin are small libraries made here, so that every case is the same on every machine.
# SPDX-License-Identifier: Apache-2.0
set -u
train=${DSC_BIN:-bin}/train dsc=${DSC_BIN:-bin}/dsc
plugin=${DSC_LIB:-lib}/dsc/libdsc_cuda.so
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
unset CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH DSC_PLUGIN_DIR
echo '{"train_micro_batch_size_per_gpu": 1}' >"$dir/config.json"

library() { # library PATH C_TEXT
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "$2" >"$dir/text.c"
    ${CC:-cc} -shared -fPIC -o "$1" "$dir/text.c"
}
driver() { # driver FOLDER CUINIT VERSION COUNT
    library "$dir/$1/libcuda.so.1" "int cuInit(unsigned f) { return $2; }
        int cuDriverGetVersion(int *v) { *v = $3; return 0; }
        int cuDeviceGetCount(int *n) { *n = $4; return 0; }
        int cuGetErrorString(int e, const char **t) { *t = e == 100 ? \"no CUDA-capable device is detected\" : \"odd\"; return 0; }"
}
check() { # check NAME TEXT LD_LIBRARY_PATH DSC_PLUGIN_DIR [PROGRAM ARGS]
    local name=$1 text=$2 libs=$3 plugins=$4 out rc ok=ok
    shift 4
    [ $# -gt 0 ] || set -- "$train" --config "$dir/config.json" --model gpt2-nano --steps 1 --device cuda
    n=$((n + 1))
    out=$(LD_LIBRARY_PATH=$libs DSC_PLUGIN_DIR=$plugins timeout 20 "$@" 2>&1 </dev/null); rc=$?
    [ $rc -eq 2 ] || ok="not ok"
    [ "$(printf '%s\n' "$out" | grep -c .)" -eq 1 ] || ok="not ok"
    case $out in "dsc: error: dsc.device: \"cuda\": "*"$text"*) ;; *) ok="not ok" ;; esac
    echo "$ok $n - $name"
    [ "$ok" = ok ] || printf '# exit %s: %s\n' $rc "$out"
}
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }

driver good 0 13000 1
driver none 100 13000 0
driver hidden 0 13000 0
driver old 0 11040 1
driver broken 999 13000 1
library "$dir/odd/libcuda.so.1" "int cuNothing(void) { return 0; }"
mkdir -p "$dir/empty" "$dir/text"
echo "no library" >"$dir/text/libdsc_cuda.so"
library "$dir/foreign/libdsc_cuda.so" "int something_else(void) { return 0; }"
library "$dir/other/libdsc_cuda.so" "static const struct { unsigned bytes, layout[6]; char version[32]; const void *device; }
    table = { sizeof table, { 1, 2, 3, 4, 5, 6 }, \"0.0.1\", 0 };
    const void *dsc_cuda_plugin_get(void) { return &table; }"

if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then skip "no driver" "this machine has one"
else check "no driver" "no GPU driver on this machine (libcuda.so.1 is not installed)" "" "$dir/empty"; fi
check "a driver without a GPU" "no GPU here" "$dir/none" "$dir/empty"
check "GPUs that are hidden" "CUDA_VISIBLE_DEVICES" "$dir/hidden" "$dir/empty"
check "a driver that is too old" "the GPU driver is too old: it is for CUDA 11.4, this build needs 12.0" "$dir/old" "$dir/empty"
check "a driver that fails" "the GPU driver says 999, odd" "$dir/broken" "$dir/empty"
check "a library that is no driver" "no cuInit" "$dir/odd" "$dir/empty"
check "no plugin" "no libdsc_cuda.so; build it with make CUDA=1" "$dir/good" "$dir/empty"
check "a plugin that does not load" "libdsc_cuda.so" "$dir/good" "$dir/text"
check "somebody else's libdsc_cuda.so" "not a plugin of dsc" "$dir/good" "$dir/foreign"
check "a plugin of another build" "of dsc 0.0.1" "$dir/good" "$dir/other"

if [ -e "$plugin" ]; then
    library "$dir/lt/libcuda.so.1" "$(cat <<'C'
int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
C
)"
    check "the plugin with half a driver" "" "$dir/lt" "$(cd "$(dirname "$plugin")" && pwd)"
else
    skip "the plugin with half a driver" "libdsc_cuda.so is not built here (no nvcc)"
fi

# "auto" computes on the CPU then, and says nothing when there is no GPU.
n=$((n + 1))
out=$(LD_LIBRARY_PATH=$dir/none DSC_PLUGIN_DIR=$dir/empty timeout 60 "$train" --config "$dir/config.json" --model gpt2-nano \
    --steps 1 2>&1 </dev/null); rc=$?
if [ $rc -eq 0 ] && { [ -e /dev/nvidiactl ] || ! printf '%s' "$out" | grep -q 'computing on the CPU'; }; then
    echo "ok $n - auto computes on the CPU"
else
    echo "not ok $n - auto computes on the CPU"; printf '# exit %s: %s\n' $rc "$out"
fi
n=$((n + 1))
out=$(LD_LIBRARY_PATH=$dir/old DSC_PLUGIN_DIR=$dir/empty timeout 20 "$dsc" doctor 2>&1 </dev/null); rc=$?
if [ $rc -eq 0 ] && printf '%s' "$out" | grep -q 'GPU .*too old'; then echo "ok $n - dsc doctor says why"
else echo "not ok $n - dsc doctor says why"; printf '# exit %s: %s\n' $rc "$out"; fi
echo "1..$n"
