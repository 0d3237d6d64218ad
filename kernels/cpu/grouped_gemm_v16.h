/* grouped_gemm_v16.h - a tile of a grouped product on 16 lanes; compiled by grouped_gemm_avx2.c and
 * grouped_gemm_avx512.c after their v16 words, with ROWS and VECTORS: the sums that fit in registers.
 *
 * Both operands are copied as fp32 for KC of k: A so that the rows of a group are near each other, B in panels of
 * VECTORS vectors. Sums of a tile stay in a buffer between parts of k, so an element is one chain of fused
 * multiply-adds. SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/cpu/moe_internal.h"

enum { PANEL = 16 * VECTORS, A_STRIDE = DSC_GROUPED_K + 16 };

typedef struct grouped_work {
    float x[DSC_GROUPED_M * DSC_GROUPED_N]; /* the tile's sums */
    float b[DSC_GROUPED_K * DSC_GROUPED_N]; /* [panel][k][PANEL] */
    float a[DSC_GROUPED_M * A_STRIDE];      /* [row][k]; WEIGHT: [k][row] */
} grouped_work;

/* `rows` rows of PANEL sums, over k products. `rows` is a constant where this is inlined. */
V16_INLINE void add_products(int rows, float *x, const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t k)
{
    v16 sum[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = v16_load(x, r * DSC_GROUPED_N + 16 * v, 16, DSC_F32);
    for (int64_t i = 0; i < k; i++, b += PANEL, a += a_k) {
        v16 column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            column[v] = v16_load(b, 16 * v, 16, DSC_F32);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const v16 row = v16_set(a[r * a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = v16_fma(row, column[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            v16_store(x, r * DSC_GROUPED_N + 16 * v, 16, DSC_F32, sum[r][v]);
}

/* All rows and panels of a tile. Rows behind the last group of ROWS go in smaller ones. */
V16_INLINE void add_tile(grouped_work *w, int64_t rows, int64_t panels, int64_t k, bool weight)
{
    const int64_t a_row = weight ? 1 : A_STRIDE, a_k = weight ? DSC_GROUPED_M : 1;
    for (int64_t p = 0; p < panels; p++) {
        const float *b = w->b + p * DSC_GROUPED_K * PANEL;
        float *x = w->x + p * PANEL;
        int64_t r = 0;
        for (; r + ROWS <= rows; r += ROWS)
            add_products(ROWS, x + r * DSC_GROUPED_N, w->a + r * a_row, a_row, a_k, b, k);
        for (; r + ROWS / 3 <= rows; r += ROWS / 3)
            add_products(ROWS / 3, x + r * DSC_GROUPED_N, w->a + r * a_row, a_row, a_k, b, k);
        for (; r < rows; r++)
            add_products(1, x + r * DSC_GROUPED_N, w->a + r * a_row, a_row, a_k, b, k);
    }
}

/* ---- copies of the operands ---- */

/* rows x cols elements, of which rows lie `stride` apart. */
V16_INLINE void copy_block(float *to, int64_t to_stride, const void *from, int64_t at, int64_t stride, int64_t rows,
                           int64_t cols, dsc_dtype dtype)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += 16)
            v16_store(to, r * to_stride + c, cols - c, DSC_F32, v16_load(from, at + r * stride + c, cols - c, dtype));
}

/* B stored [k, n]: columns from `cols` on become 0. */
V16_INLINE void pack_rows(float *to, const void *from, int64_t at, int64_t stride, int64_t k, int64_t cols,
                          dsc_dtype dtype)
{
    for (int64_t p = 0; p * PANEL < cols; p++, to += DSC_GROUPED_K * PANEL)
        for (int64_t i = 0; i < k; i++)
            for (int64_t c = 0; c < PANEL; c += 16) {
                const int64_t left = cols - p * PANEL - c, from_at = at + i * stride + p * PANEL + c;
                v16_store(to, i * PANEL + c, 16, DSC_F32, left > 0 ? v16_load(from, from_at, left, dtype) : v16_set(0));
            }
}

/* 8 rows of 8 become columns. */
V16_INLINE void transpose8(float *to, int64_t to_stride, const float *from, int64_t stride)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(from + i * stride);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* B stored [n, k]. */
V16_INLINE void pack_columns(float *to, const void *from, int64_t at, int64_t stride, int64_t k, int64_t cols,
                             dsc_dtype dtype)
{
    float part[8 * 16];
    for (int64_t p = 0; p * PANEL < cols; p++, to += DSC_GROUPED_K * PANEL)
        for (int64_t n = 0; n < PANEL; n += 8)
            for (int64_t i = 0; i < k; i += 16) {
                for (int64_t r = 0; r < 8; r++) {
                    const int64_t column = p * PANEL + n + r;
                    v16_store(part, r * 16, 16, DSC_F32,
                              column < cols ? v16_load(from, at + column * stride + i, k - i, dtype) : v16_set(0));
                }
                transpose8(to + i * PANEL + n, PANEL, part, 16);
                transpose8(to + (i + 8) * PANEL + n, PANEL, part + 8, 16);
            }
}

/* ---- a tile ---- */

V16_INLINE void write_tile(const dsc_grouped_gemm_args *a, const dsc_grouped_tile *t, const float *x, int64_t ld,
                           dsc_dtype dtype)
{
    const int64_t first = dsc_grouped_c_at(a, t->expert) + t->m0 * ld + t->n0;
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < t->cols; c += 16) {
            const int64_t left = t->cols - c, at = first + r * ld + c;
            v16 sum = v16_load(x, r * DSC_GROUPED_N + c, 16, DSC_F32);
            if (a->add != NULL)
                sum = v16_add(sum, v16_load(a->add, at, left, dtype));
            v16_store(a->c, at, left, a->kind == DSC_GROUPED_WEIGHT ? DSC_F32 : dtype, sum);
        }
}

V16_INLINE void run_tile(const dsc_grouped_gemm_args *a, const dsc_grouped_tile *t, grouped_work *w, dsc_dtype dtype)
{
    const dsc_grouped_shape s = dsc_grouped_shape_of(a, t->expert);
    const bool weight = a->kind == DSC_GROUPED_WEIGHT;
    const int64_t a_first = dsc_grouped_a_at(a, t->expert), b_first = dsc_grouped_b_at(a, t->expert);
    for (int64_t i = 0; i < t->rows * DSC_GROUPED_N; i += 16)
        v16_store(w->x, i, 16, DSC_F32, v16_set(0));
    for (int64_t k0 = 0; k0 < s.k; k0 += DSC_GROUPED_K) {
        const int64_t k = dsc_min_i64(DSC_GROUPED_K, s.k - k0);
        if (weight)
            copy_block(w->a, DSC_GROUPED_M, a->a, a_first + k0 * s.m + t->m0, s.m, k, t->rows, dtype);
        else
            copy_block(w->a, A_STRIDE, a->a, a_first + t->m0 * s.k + k0, s.k, t->rows, k, dtype);
        if (a->kind == DSC_GROUPED_FORWARD)
            pack_columns(w->b, a->b, b_first + t->n0 * s.k + k0, s.k, k, t->cols, dtype);
        else
            pack_rows(w->b, a->b, b_first + k0 * s.n + t->n0, s.n, k, t->cols, dtype);
        add_tile(w, t->rows, dsc_div_ceil(t->cols, PANEL), k, weight);
    }
    write_tile(a, t, w->x, s.n, dtype);
}

V16_INLINE void run_tiles(const dsc_grouped_gemm_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_grouped_gemm_args a = *args;
    grouped_work work;
    for (int64_t block = first; block < last; block++) {
        const dsc_grouped_tile t = dsc_grouped_tile_of(&a, block);
        run_tile(&a, &t, &work, dtype);
    }
}

void V16_NAME(grouped_gemm)(const void *args, int64_t first, int64_t last)
{
    const dsc_grouped_gemm_args *a = args;
    DSC_FOR_DTYPE(a->dtype, run_tiles(a, first, last, dtype));
}
