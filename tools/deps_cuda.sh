#!/bin/sh
# deps_cuda.sh FOLDER - puts a CUDA compiler, cuBLASLt and NCCL from PyPI's nvidia wheels into FOLDER, for machines
# without a toolkit. `make` finds nvcc there; at run time FOLDER's lib folders go into LD_LIBRARY_PATH.
# SPDX-License-Identifier: Apache-2.0
set -eu
folder=${1:?usage: deps_cuda.sh FOLDER}
version=13.0 # machine code for it runs on drivers of the 580 series and later
if [ -x "$folder/nvidia/cu13/bin/nvcc" ]; then
    echo "deps-cuda: $folder/nvidia/cu13 is there"
    exit 0
fi
command -v python3 >/dev/null || { echo "deps-cuda: python3 is missing" >&2; exit 1; }
python3 -m pip --version >/dev/null 2>&1 || tools/deps.sh python3-pip
packages=
for part in nvcc crt runtime cccl; do packages="$packages nvidia-cuda-$part==$version.*"; done
# shellcheck disable=SC2086
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$folder" \
    $packages "nvidia-nvvm==$version.*" "nvidia-cublas==$version.*" "nvidia-nvtx==$version.*" nvidia-nccl-cu13
chmod +x "$folder"/nvidia/cu13/bin/* "$folder"/nvidia/cu13/nvvm/bin/*
echo "deps-cuda: nvcc, cuBLASLt and NCCL are in $folder/nvidia; run with"
echo "    LD_LIBRARY_PATH=$folder/nvidia/cu13/lib:$folder/nvidia/nccl/lib"
