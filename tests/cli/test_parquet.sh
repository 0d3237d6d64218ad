#!/usr/bin/env bash
# test_parquet.sh - Parquet files beside JSON lines (parquet_test.py). Needs lib/dsc/libdsc_parquet.so (make deps-parquet), and
# pyarrow in the python3 that DSC_TEST_PYTHON names. SPDX-License-Identifier: Apache-2.0
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${DSC_TEST_PYTHON:-python3}
[ -e "${DSC_LIB:?}/dsc/libdsc_parquet.so" ] || { echo "there is no libdsc_parquet.so in this build (make deps-parquet)"; exit 77; }
"$python" -c 'import pyarrow.parquet' 2>/dev/null || { echo "pyarrow is not installed for $python"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$python" -B "$(dirname "$0")/parquet_test.py" "${DSC_BIN:?}/dsc" "$root/tests/golden/tokenizer_gpt2.json" "$tmp"
