#!/bin/sh
# deps_cudnn.sh FOLDER - puts cuDNN and the headers of its frontend from PyPI's nvidia wheels into FOLDER. `make` finds
# the headers there; at run time the printed folders go into LD_LIBRARY_PATH. SPDX-License-Identifier: Apache-2.0
set -eu
folder=${1:?usage: deps_cudnn.sh FOLDER}
if [ -e "$folder/include/cudnn_frontend.h" ] && [ -e "$folder/nvidia/cudnn/include/cudnn.h" ]; then
    echo "deps-cudnn: $folder/nvidia/cudnn is there"
    exit 0
fi
command -v python3 >/dev/null || { echo "deps-cudnn: python3 is missing" >&2; exit 1; }
python3 -m pip --version >/dev/null 2>&1 || tools/deps.sh python3-pip
mkdir -p "$folder"
apart=$(mktemp -d "$folder/.cudnn.XXXXXX")
trap 'rm -rf "$apart"' EXIT
# pip leaves out a folder that is there, and `nvidia` is there after deps_cuda.sh: so the files are merged by cp.
# 9.19 is the oldest cuDNN that the plugin runs with when it is built with its headers; NVRTC: cuDNN compiles with it.
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$apart" \
    "nvidia-cudnn-frontend==1.32.*" "nvidia-cudnn-cu13==9.19.*" "nvidia-cuda-nvrtc==13.0.*"
cp -alf "$apart/." "$folder"
echo "deps-cudnn: cuDNN is in $folder/nvidia; run with"
echo "    LD_LIBRARY_PATH=$folder/nvidia/cudnn/lib:$folder/nvidia/cu13/lib"
