/* grouped_gemm_avx2.c - grouped_gemm_v16.h on AVX2: 6 x 16 sums are 12 of 16 registers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

enum { ROWS = 6, VECTORS = 1 };
#include "kernels/cpu/grouped_gemm_v16.h"
