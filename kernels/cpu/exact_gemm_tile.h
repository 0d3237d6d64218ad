/* exact_gemm_tile.h - how C is cut for the team: what a variant computes of it. Private to kernels/product*.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_PRODUCT_TILE_H
#define DSC_KERNELS_CPU_PRODUCT_TILE_H

#include "kernels/cpu/range.h"

/* A tile's sums (48 KiB) and its part of B for PRODUCT_DEPTH of k (64 KiB) stay in a core's second cache. */
enum { PRODUCT_ROWS = 192, PRODUCT_COLS = 64, PRODUCT_DEPTH = 256 };

typedef struct product_tile {
    int64_t row, col, rows, cols;
} product_tile;

static inline int64_t product_tile_count(const dsc_exact_gemm_args *a)
{
    return dsc_div_ceil(a->m, PRODUCT_ROWS) * dsc_div_ceil(a->n, PRODUCT_COLS);
}

static inline product_tile product_tile_of(const dsc_exact_gemm_args *a, int64_t block)
{
    const int64_t across = dsc_div_ceil(a->n, PRODUCT_COLS);
    const int64_t row = block / across * PRODUCT_ROWS, col = block % across * PRODUCT_COLS;
    return (product_tile) { row, col, dsc_min_i64(PRODUCT_ROWS, a->m - row), dsc_min_i64(PRODUCT_COLS, a->n - col) };
}

/* Blocks are tiles. */
void dsc_exact_gemm_ref(const void *args, int64_t first, int64_t last);
void dsc_exact_gemm_avx2(const void *args, int64_t first, int64_t last);
void dsc_exact_gemm_avx512(const void *args, int64_t first, int64_t last);

#endif
