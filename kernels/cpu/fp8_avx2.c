/* fp8_avx2.c - fp8_range.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/fp8_range.h"

FP8_DEFINE(avx2)
