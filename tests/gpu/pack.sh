#!/usr/bin/env bash
# pack.sh OUT.tar.xz [--nccl FILE] [--trace kernel_trace.so] STEP_WORKER PROGRAM... - one file with everything that gpu-day, test-gpu and bench-gpu run.
# Its machine has a GPU and its driver, bash and python3, but not our libraries, a compiler or a network.
# NCCL: libnccl.so of 2.30 or newer, or that compressed by xz (it stays so). SPDX-License-Identifier: Apache-2.0
set -eu
out=$1; shift
nccl='' trace=''
if [ "$1" = --nccl ]; then nccl=$2; shift 2; fi
if [ "$1" = --trace ]; then trace=$2; shift 2; fi
worker=$1; shift
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
to=$work/gpu-pack
[ -e "$DSC_LIB/dsc/libdsc_cuda.so" ] || { echo "gpu-pack: no libdsc_cuda.so was built (no nvcc here: make deps-cuda)"; exit 1; }
mkdir -p "$to"/{bin,lib/dsc,tests/gpu,programs,bench,nccl}
cp "$DSC_BIN/train" "$DSC_BIN/dsc" "$to/bin"
cp "$DSC_LIB/dsc/libdsc_cuda.so" "$to/lib/dsc"
[ ! -e "$DSC_LIB/dsc/libdsc_cudnn.so" ] || cp "$DSC_LIB/dsc/libdsc_cudnn.so" "$to/lib/dsc"
cp "$@" "$to/programs"
cp "$worker" "$top"/bench/{bench_gpu,turns,kernel_sums,torch_llama,torch_worker,transformers_worker,deepspeed_worker}.py "$to/bench"
cp "$top/tests/run" "$to/tests"; cp "$top"/tests/gpu/{run.sh,day.py,day_parts.py} "$to/tests/gpu"
[ -z "$trace" ] || { mkdir "$to/trace"; cp "$trace" "$(dirname "$trace")"/libcupti.so.* "$to/trace"; }
strip -g "$to"/bin/* "$to"/programs/* "$to/bench/$(basename "$worker")"
# Every library but the C and C++ ones, which are as old as this machine's or newer there.
for file in "$to"/bin/* "$to"/programs/*; do ldd "$file"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+)\.so' | xargs -r cp -Lt "$to/lib"
case $nccl in
'') rmdir "$to/nccl" ;;
*.xz) cp "$nccl" "$to/nccl/libnccl.so.2.xz" ;;
*) cp -L "$nccl" "$to/nccl/libnccl.so.2" ;;
esac
commit=$(git -C "$top" rev-parse --short HEAD 2>/dev/null || echo unknown)
cat >"$to/env" <<END
here=\$(cd "\$(dirname "\$0")" && pwd)
export DSC_BIN=\$here/bin DSC_LIB=\$here/lib DSC_PLUGIN_DIR=\$here/lib/dsc DSC_COMMIT=$commit LD_LIBRARY_PATH=\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
END
cat >"$to/test-gpu" <<'END'
#!/usr/bin/env bash
# test-gpu [--seconds N] [--results DIR]
. "$(dirname "$0")/env"
[ ! -e "$here/nccl/libnccl.so.2.xz" ] || xz -d "$here/nccl/libnccl.so.2.xz" || exit 1
nccl=(); [ ! -e "$here/nccl/libnccl.so.2" ] || nccl=(--nccl "$here/nccl")
exec "$here/tests/gpu/run.sh" "${nccl[@]}" "$@" "$here"/programs/*
END
# PyTorch beside us must not meet our libraries, so only our own programs get them.
for program in bench/step_worker programs/checkkern; do
    printf '#!/usr/bin/env bash\n. "$(dirname "$0")/env"\nexec "$here/%s" "$@"\n' "$program" >"$to/$(basename "$program")"
    chmod +x "$to/$(basename "$program")"
done
cat >"$to/gpu-day" <<'END'
#!/usr/bin/env bash
# gpu-day [--seconds N] [--results DIR] [--python PROGRAM] [--llmc PROGRAM] [PART...]
here=$(cd "$(dirname "$0")" && pwd)
export DSC_COMMIT=$(sed -n 's/.*DSC_COMMIT=\([^ ]*\).*/\1/p' "$here/env")
command -v python3 >/dev/null || { echo "gpu-day: no python3"; exit 1; }
[ ! -e "$here/nccl/libnccl.so.2.xz" ] || xz -d "$here/nccl/libnccl.so.2.xz" || exit 1
flags=(--step-worker "$here/bench/step_worker" --checkkern "$here/programs/checkkern" --train "$here/bin/train" --libraries "$here/lib")
[ ! -e "$here/nccl/libnccl.so.2" ] || flags+=(--nccl "$here/nccl")
[ ! -e "$here/trace/kernel_trace.so" ] || flags+=(--trace "$here/trace/kernel_trace.so")
! python3 -c 'import torch' 2>/dev/null || flags+=(--python "$(command -v python3)")
tests=(); for program in "$here"/programs/*; do [ "${program##*/}" = checkkern ] || tests+=("$program"); done
exec python3 "$here/tests/gpu/day.py" "${flags[@]}" "$@" -- "${tests[@]}"
END
cat >"$to/bench-gpu" <<'END'
#!/usr/bin/env bash
# bench-gpu [--seconds N] [--results DIR] [--python PROGRAM] [PART...]
here=$(cd "$(dirname "$0")" && pwd)
export DSC_COMMIT=$(sed -n 's/.*DSC_COMMIT=\([^ ]*\).*/\1/p' "$here/env")
command -v python3 >/dev/null || { echo "bench-gpu: no python3"; exit 1; }
python=(); ! python3 -c 'import torch' 2>/dev/null || python=(--python "$(command -v python3)")
exec python3 "$here/bench/bench_gpu.py" "$here/step_worker" --checkkern "$here/checkkern" "${python[@]}" "$@"
END
chmod +x "$to/gpu-day" "$to/test-gpu" "$to/bench-gpu"
mkdir -p "$(dirname "$out")"
tar -C "$work" -cf - gpu-pack | xz -T0 -6 >"$out"
echo "gpu-pack: $out, $(du -h --apparent-size "$out" | cut -f1), commit $commit"
