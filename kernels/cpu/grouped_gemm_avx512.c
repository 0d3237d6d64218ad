/* grouped_gemm_avx512.c - grouped_gemm_v16.h on AVX-512: 12 x 32 sums are 24 of 32 registers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

enum { ROWS = 12, VECTORS = 2 };
#include "kernels/cpu/grouped_gemm_v16.h"
