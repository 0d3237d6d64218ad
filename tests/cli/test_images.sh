#!/usr/bin/env bash
# test_images.sh - pictures of files have the bytes, sizes, parts and colours of Pillow and torchvision (images_test.py).
# SPDX-License-Identifier: Apache-2.0
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python=${DSC_TEST_PYTHON:-python3}
"$python" -c 'import torchvision, PIL' 2>/dev/null || { echo "torchvision is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
sanitizers=${DSC_SAN:+-fsanitize=$DSC_SAN}
# shellcheck disable=SC2086
if ! gcc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 $sanitizers -I"$root" -I"$root/include" \
    -o "$tmp/image_cases" "$root/tests/cli/image_cases.c" "${DSC_LIB:?}/libdsc.a" $(pkg-config --libs libcjson libxxhash dnnl libutf8proc 2>/dev/null) \
    -fopenmp -lm -ldl -lpthread 2>"$tmp/why"; then
    echo "not ok 1 - image_cases.c compiles"
    sed 's/^/# /' "$tmp/why"
    echo "1..1"
    exit 1
fi
mkdir "$tmp/pictures"
"$python" -B "$(dirname "$0")/images_test.py" "$tmp/image_cases" "$tmp/pictures"
