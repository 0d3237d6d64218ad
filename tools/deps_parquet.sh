#!/bin/sh
# deps_parquet.sh FOLDER - puts Apache Arrow's C++ library and headers from PyPI's package pyarrow into FOLDER. `make` finds
# them there, and builds lib/dsc/libdsc_parquet.so. SPDX-License-Identifier: Apache-2.0
set -eu
folder=${1:?usage: deps_parquet.sh FOLDER}
if [ -e "$folder/pyarrow/include/parquet/arrow/reader.h" ]; then
    echo "deps-parquet: $folder/pyarrow is there"
    exit 0
fi
command -v python3 >/dev/null || { echo "deps-parquet: python3 is missing" >&2; exit 1; }
python3 -m pip --version >/dev/null 2>&1 || tools/deps.sh python3-pip
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$folder" "pyarrow>=15"
echo "deps-parquet: Apache Arrow is in $folder/pyarrow; make builds lib/dsc/libdsc_parquet.so"
