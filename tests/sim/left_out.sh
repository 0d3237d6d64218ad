#!/bin/sh
# left_out.sh - stands for the suite where it cannot run. SPDX-License-Identifier: Apache-2.0
if [ "${DSC_SAN:-}" = thread ]; then
    echo "simulated GPUs: their fibers move stacks under ThreadSanitizer's feet"
else
    echo "simulated GPUs: the switch of their fibers is written for x86-64, this is $(uname -m)"
fi
exit 77
