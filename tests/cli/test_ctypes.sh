#!/usr/bin/env bash
# test_ctypes.sh - the library works from another language: Python's ctypes. SPDX-License-Identifier: Apache-2.0
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
# A sanitizer's runtime must come first in a program that loads an instrumented library.
[ -z "${DSC_SAN:-}" ] || { echo "python3 is not built with -fsanitize=$DSC_SAN"; exit 77; }
exec python3 "$(dirname "$0")/ctypes_test.py" "${DSC_LIB:?}/libdsc.so"
