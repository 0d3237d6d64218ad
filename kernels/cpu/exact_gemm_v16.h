/* exact_gemm_v16.h - exact products on 16 lanes: EXACT_GEMM_STRIP rows of A by 16 columns of B at a time, whose sums
 * are in registers for EXACT_GEMM_DEPTH of k. Compiled by exact_gemm_avx2.c and exact_gemm_avx512.c after their v16
 * words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/exact_gemm_tile.h"

#define PANEL_COLS 16
#define PANELS (EXACT_GEMM_COLS / PANEL_COLS)

/* B's columns in panels of 16, those beyond the last 0: panel[p][k][16]. */
V16_INLINE void pack_b(const dsc_exact_gemm_args *a, exact_gemm_tile t, int64_t k, int64_t depth, float *panel)
{
    for (int64_t p = 0; p * PANEL_COLS < t.cols; p++, panel += EXACT_GEMM_DEPTH * PANEL_COLS) {
        const int64_t left = dsc_min_i64(PANEL_COLS, t.cols - p * PANEL_COLS);
        const float *from = a->b + k * a->b_row + (t.col + p * PANEL_COLS) * a->b_col;
        for (int64_t kk = 0; kk < depth && a->b_col == 1; kk++)
            v16_store(panel, kk * PANEL_COLS, 16, DSC_F32, v16_load(from + kk * a->b_row, 0, left, DSC_F32));
        for (int64_t j = 0; j < PANEL_COLS && a->b_col != 1; j++)
            for (int64_t kk = 0; kk < depth; kk++)
                panel[kk * PANEL_COLS + j] = j < left ? from[kk * a->b_row + j * a->b_col] : 0.0f;
    }
}

/* `rows` is a constant where it is inlined. */
V16_INLINE void strip(const dsc_exact_gemm_args *a, const float *from, int64_t depth, const float *panel, float *sums,
                      int rows, bool first)
{
    v16 sum[EXACT_GEMM_STRIP];
    for (int r = 0; r < rows; r++)
        sum[r] = first ? v16_set(0.0f) : v16_load(sums, r * EXACT_GEMM_COLS, 16, DSC_F32);
    for (int64_t k = 0; k < depth; k++) {
        const v16 b = v16_load(panel, k * PANEL_COLS, 16, DSC_F32);
        for (int r = 0; r < rows; r++)
            sum[r] = v16_fma(v16_set(from[r * a->a_row + k * a->a_col]), b, sum[r]);
    }
    for (int r = 0; r < rows; r++)
        v16_store(sums, r * EXACT_GEMM_COLS, 16, DSC_F32, sum[r]);
}

/* Depth after depth, so each element's chain is in the order of k. */
V16_INLINE void add_depth(const dsc_exact_gemm_args *a, exact_gemm_tile t, int64_t k, int64_t depth, const float *panel,
                          float *sums)
{
    for (int64_t p = 0; p * PANEL_COLS < t.cols; p++) {
        const float *b = panel + p * EXACT_GEMM_DEPTH * PANEL_COLS;
        const float *from = a->a + t.row * a->a_row + k * a->a_col;
        float *to = sums + p * PANEL_COLS;
        int64_t i = 0;
        for (; i + EXACT_GEMM_STRIP <= t.rows; i += EXACT_GEMM_STRIP)
            strip(a, from + i * a->a_row, depth, b, to + i * EXACT_GEMM_COLS, EXACT_GEMM_STRIP, k == 0);
        for (; i < t.rows; i++)
            strip(a, from + i * a->a_row, depth, b, to + i * EXACT_GEMM_COLS, 1, k == 0);
    }
}

V16_INLINE void finish(const dsc_exact_gemm_args *a, exact_gemm_tile t, const float *sums)
{
    const v16 alpha = v16_set(a->alpha), beta = v16_set(a->beta), zero = v16_set(0.0f);
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t j = 0; j < t.cols; j += 16) {
            const int64_t at = (t.row + i) * a->n + t.col + j, left = t.cols - j;
            const v16 s = v16_add(v16_load(sums, i * EXACT_GEMM_COLS + j, 16, DSC_F32), zero);
            const v16 c =
                a->d == NULL ? v16_mul(alpha, s) : v16_fma(alpha, s, v16_mul(beta, v16_load(a->d, at, left, DSC_F32)));
            v16_store(a->c, at, left, DSC_F32, c);
        }
}

void V16_NAME(exact_gemm)(const void *args, int64_t first, int64_t last)
{
    const dsc_exact_gemm_args local = *(const dsc_exact_gemm_args *)args, *a = &local;
    _Alignas(64) float panel[PANELS * EXACT_GEMM_DEPTH * PANEL_COLS], sums[EXACT_GEMM_ROWS * EXACT_GEMM_COLS];
    for (int64_t block = first; block < last; block++) {
        const exact_gemm_tile t = exact_gemm_tile_of(a, block);
        for (int64_t k = 0, depth; k < a->k; k += depth) {
            depth = dsc_min_i64(EXACT_GEMM_DEPTH, a->k - k);
            pack_b(a, t, k, depth, panel);
            add_depth(a, t, k, depth, panel, sums);
        }
        finish(a, t, sums);
    }
}
