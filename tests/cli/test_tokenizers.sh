#!/usr/bin/env bash
# test_tokenizers.sh - ids and text against the `tokenizers` package, on tokenizers that it trains here. DSC_TEST_PYTHON names
# a Python that has the package (python3 -m venv V; V/bin/pip install tokenizers). SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-python3}
"$python" -c 'import tokenizers' 2>/dev/null || { echo "the tokenizers package is not installed for $python"; exit 77; }
# A sanitizer's runtime must come first in a program that loads an instrumented library.
[ -z "${DSC_SAN:-}" ] || { echo "$python is not built with -fsanitize=$DSC_SAN"; exit 77; }
exec "$python" -B "$(dirname "$0")/tokenizers_test.py" "${DSC_LIB:?}/libdsc.so"
