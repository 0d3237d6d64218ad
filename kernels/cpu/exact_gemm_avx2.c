/* exact_gemm_avx2.c - exact_gemm_v16.h on AVX2: 12 registers of sums, 2 of B, 1 of A.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

#define EXACT_GEMM_STRIP 6
#include "kernels/cpu/exact_gemm_v16.h"
