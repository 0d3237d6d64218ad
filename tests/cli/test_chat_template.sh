#!/usr/bin/env bash
# test_chat_template.sh - chat templates: golden hashes, and beside jinja2 where DSC_TEST_PYTHON names a Python that has it.
# DSC_CHAT_TEMPLATES names folders of further *.jinja files, with colons between them. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
san=${DSC_SAN:+-fsanitize=$DSC_SAN}
# shellcheck disable=SC2086 # no option or one
if ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 $san -I"$root" -I"$root/include" -fopenmp \
    -o "$tmp/chat_render" "$root/tests/cli/chat_render.c" "${DSC_LIB:?}/libdsc.a" \
    -lxxhash -lutf8proc -lcjson -lpthread -ldl -lm 2>"$tmp/why"; then
    echo "not ok 1 - chat_render.c compiles"
    sed 's/^/# /' "$tmp/why" | tail -n 15
    echo "1..1"
    exit 1
fi
"$python" -B "$(dirname "$0")/chat_test.py" "$tmp/chat_render"
