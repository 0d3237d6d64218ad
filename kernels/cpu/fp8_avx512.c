/* fp8_avx512.c - fp8_range.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/fp8_range.h"

FP8_DEFINE(avx512)
