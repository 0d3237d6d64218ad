/* exact_gemm_avx512.c - exact_gemm_v16.h on AVX-512: 12 registers of sums hide the latency of two multipliers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

#define EXACT_GEMM_STRIP 12
#include "kernels/cpu/exact_gemm_v16.h"
