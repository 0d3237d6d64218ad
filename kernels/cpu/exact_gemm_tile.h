/* exact_gemm_tile.h - how C is cut into blocks for the thread pool. Private to exact_gemm*.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_EXACT_GEMM_TILE_H
#define DSC_KERNELS_CPU_EXACT_GEMM_TILE_H

#include "kernels/cpu/range.h"

/* A tile's sums (48 KiB) and its part of B for EXACT_GEMM_DEPTH of k (64 KiB) stay in a core's second cache. */
enum { EXACT_GEMM_ROWS = 192, EXACT_GEMM_COLS = 64, EXACT_GEMM_DEPTH = 256 };

typedef struct exact_gemm_tile {
    int64_t row, col, rows, cols;
} exact_gemm_tile;

static inline int64_t exact_gemm_tile_count(const dsc_exact_gemm_args *a)
{
    return dsc_div_ceil(a->m, EXACT_GEMM_ROWS) * dsc_div_ceil(a->n, EXACT_GEMM_COLS);
}

static inline exact_gemm_tile exact_gemm_tile_of(const dsc_exact_gemm_args *a, int64_t block)
{
    const int64_t across = dsc_div_ceil(a->n, EXACT_GEMM_COLS);
    const int64_t row = block / across * EXACT_GEMM_ROWS, col = block % across * EXACT_GEMM_COLS;
    return (exact_gemm_tile) { row, col, dsc_min_i64(EXACT_GEMM_ROWS, a->m - row),
                               dsc_min_i64(EXACT_GEMM_COLS, a->n - col) };
}

/* Blocks are tiles. */
void dsc_exact_gemm_ref(const void *args, int64_t first, int64_t last);
void dsc_exact_gemm_avx2(const void *args, int64_t first, int64_t last);
void dsc_exact_gemm_avx512(const void *args, int64_t first, int64_t last);

#endif
