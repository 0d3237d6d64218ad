#!/usr/bin/env bash
# test_tokenizers_unigram.sh - Unigram models and SentencePiece's normalizers against the `tokenizers` package. Where Python has
# the sentencepiece package too, its own compiled normalizers are compared. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-python3}
"$python" -c 'import tokenizers' 2>/dev/null || { echo "the tokenizers package is not installed for $python"; exit 77; }
# A sanitizer's runtime must come first in a program that loads an instrumented library.
[ -z "${DSC_SAN:-}" ] || { echo "$python is not built with -fsanitize=$DSC_SAN"; exit 77; }
exec "$python" -B "$(dirname "$0")/tokenizers_unigram_test.py" "${DSC_LIB:?}/libdsc.so"
