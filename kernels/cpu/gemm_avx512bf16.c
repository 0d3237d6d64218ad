/* gemm_avx512bf16.c - bf16 products with VDPBF16PS: B in packed panels of 64 columns, 6 x 64 sums in registers.
 *
 * This kernel exists beside the library for two reasons. A tile's sums stay in registers up to the epilogue, and the
 * next columns of B come from memory while this tile is computed (docs/kernels.md#gemm has the numbers). Each element
 * is one chain of dot products over k in pairs, so its bits depend on K and the k step only. A is read by rows (A
 * transposed is the library's). A packed panel holds, per pair of k, 64 columns of two neighbours in k; one VDPBF16PS
 * reads 16 of these columns.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/half_avx512.h"
#include "kernels/cpu/gemm_internal.h"
#include "kernels/cpu/transpose_avx512.h"

#define INLINE static inline __attribute__((always_inline))
enum { PANEL = DSC_BF16_PANEL, ROWS = 6, VECS = PANEL / 16, PART_K = 64 /* even */ };

/* ---- packing ---- */

INLINE __mmask32 lanes32(int64_t count)
{
    return count >= 32 ? (__mmask32)-1 : (__mmask32)((1u << (count > 0 ? count : 0)) - 1u);
}

/* B stored [k, n]: two rows are interleaved. Rows are read along, over all panels, as the prefetcher likes it. Columns
 * from n on are whatever the scratch holds: their sums are computed and never stored. */
static void pack_rows(uint16_t *to, const uint16_t *b, int64_t ld, int64_t k, int64_t n)
{
    const int64_t pairs = dsc_div_ceil(k, 2);
    uint16_t low_index[32], high_index[32];
    for (uint16_t i = 0; i < 32; i++) {
        low_index[i] = (uint16_t)(i / 2 + (i & 1 ? 32 : 0));
        high_index[i] = (uint16_t)(low_index[i] + 16);
    }
    const __m512i low = _mm512_loadu_si512(low_index), high = _mm512_loadu_si512(high_index);
    for (int64_t p = 0; p < pairs; p++)
        for (int64_t c = 0; c < n; c += 32) {
            const __mmask32 lanes = lanes32(n - c), second = 2 * p + 1 < k ? lanes : 0;
            const __m512i x = _mm512_maskz_loadu_epi16(lanes, b + 2 * p * ld + c);
            const __m512i y = _mm512_maskz_loadu_epi16(second, b + (2 * p + 1) * ld + c);
            uint16_t *at = to + (c / PANEL) * pairs * 2 * PANEL + p * 2 * PANEL + (c % PANEL) * 2;
            _mm512_storeu_si512(at, _mm512_permutex2var_epi16(x, low, y));
            _mm512_storeu_si512(at + 32, _mm512_permutex2var_epi16(x, high, y));
        }
}

/* B stored [n, k]: 16 rows of 16 pairs are transposed. */
static void pack_columns(uint16_t *to, const uint16_t *b, int64_t ld, int64_t k, int64_t n)
{
    const int64_t pairs = dsc_div_ceil(k, 2), n_padded = dsc_align_up(n, 16);
    for (int64_t c = 0; c < n_padded; c += 16)
        for (int64_t p = 0; p < pairs; p += 16) {
            __m512i r[16];
            const __mmask32 lanes = lanes32(k - 2 * p);
            for (int i = 0; i < 16; i++)
                r[i] = c + i < n ? _mm512_maskz_loadu_epi16(lanes, b + (c + i) * ld + 2 * p) : _mm512_setzero_si512();
            dsc_transpose_avx512(r);
            uint16_t *at = to + (c / PANEL) * pairs * 2 * PANEL + p * 2 * PANEL + (c % PANEL) * 2;
            for (int i = 0; i < 16 && p + i < pairs; i++)
                _mm512_storeu_si512(at + i * 2 * PANEL, r[i]);
        }
}

void dsc_bf16_pack(uint16_t *to, const uint16_t *b, int64_t ld, bool transposed, int64_t k, int64_t n)
{
    if (transposed)
        pack_columns(to, b, ld, k, n);
    else
        pack_rows(to, b, ld, k, n);
}

/* ---- products ---- */

/* One pair of k. The last one of an odd K has no other half in A, and zeros in B. */
INLINE void step(__m512 s[ROWS][VECS], int rows, const uint16_t *a, int64_t lda, const uint16_t *b, bool half)
{
    __m512bh x[VECS];
    for (int v = 0; v < VECS; v++)
        x[v] = (__m512bh)_mm512_loadu_si512(b + 32 * v);
    for (int i = 0; i < rows; i++) {
        int32_t pair = a[i * lda];
        if (!half)
            memcpy(&pair, a + i * lda, sizeof pair);
        for (int v = 0; v < VECS; v++)
            s[i][v] = _mm512_dpbf16_ps(s[i][v], (__m512bh)_mm512_set1_epi32(pair), x[v]);
    }
}

INLINE __mmask16 lanes_of(int64_t cols, int v) { return dsc_mask_avx512(dsc_max_i64(cols - 16 * v, 0)); }

/* The epilogue of sums that are still in registers: through blocks in L1. Its inputs of C's shape are copied first.
 * C and aux are often equal modulo 4096, and then a load waits for the stores of the rows before it (10 % measured). */
INLINE void finish(const dsc_epilogue_tile *whole, __m512 s[ROWS][VECS], int64_t row, int rows, int64_t col,
                   int64_t cols)
{
    _Alignas(64) float out[ROWS * PANEL];
    _Alignas(64) float aux[ROWS * PANEL]; /* of C's dtype */
    const int64_t each = (int64_t)dsc_dtype_bytes(whole->c_dtype);
    const bool reads_aux = dsc_epilogue_adds(whole->kind) || dsc_epilogue_slopes(whole->kind);
    dsc_epilogue_tile part = *whole;
    part.rows = 1;
    part.cols = cols;
    if (whole->bias != NULL)
        part.bias = (const char *)whole->bias + col * (int64_t)dsc_dtype_bytes(whole->bias_dtype);
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < VECS; v++)
            _mm512_store_ps(out + i * PANEL + 16 * v, s[i][v]);
        if (reads_aux)
            memcpy(aux + i * PANEL, (const char *)whole->aux + ((row + i) * whole->ldc + col) * each,
                   (size_t)(cols * each));
    }
    for (int i = 0; i < rows; i++) {
        const int64_t at = ((row + i) * whole->ldc + col) * each;
        part.x = out + i * PANEL;
        part.c = (char *)whole->c + at;
        part.aux = reads_aux ? (void *)(aux + i * PANEL) : whole->aux != NULL ? (char *)whole->aux + at : NULL;
        dsc_epilogue_avx512(&part);
    }
}

/* ---- bringing memory near while products run, a few lines at a time: the CPU can wait for about 24 at once ---- */

INLINE void fetch_line(const char *line, int64_t bytes, bool to_write)
{
    for (int64_t b = 0; b < bytes; b += 64)
        if (to_write)
            __builtin_prefetch(line + b, 1, 3);
        else
            __builtin_prefetch(line + b, 0, 3);
}

/* The part of one row that the end of a block touches. */
INLINE void fetch_output(const dsc_bf16_tile *t, int64_t row, int64_t col)
{
    const dsc_epilogue_tile *f = t->finish;
    if (f == NULL) {
        fetch_line((const char *)(t->sum + row * t->ld_sum + col), PANEL * 4, true);
        return;
    }
    const int64_t each = (int64_t)dsc_dtype_bytes(f->c_dtype), at = (row * f->ldc + col) * each;
    fetch_line((const char *)f->c + at, PANEL * each, true);
    if (f->aux != NULL)
        fetch_line((const char *)f->aux + at, PANEL * each, f->kind == DSC_EPILOGUE_BIAS_GELU);
}

/* Rows first..last-1 of what comes next into L2: a weight is read once per product, so it comes from memory. */
INLINE void fetch_next(const dsc_bf16_tile *t, int64_t first, int64_t last)
{
    for (int64_t r = first; r < dsc_min_i64(last, t->next_rows); r++)
        for (int64_t c = 0; c < t->next_cols; c += 32)
            _mm_prefetch((const char *)(t->next + r * t->next_ld + c), _MM_HINT_T1);
}

/* `rows` rows (a constant at every call) from `row` on, times one panel; `next_count` rows of what comes next are
 * fetched meanwhile. */
INLINE void block(const dsc_bf16_tile *t, int64_t row, int rows, int64_t col, int64_t next_row, int64_t next_count)
{
    const uint16_t *a = t->a + row * t->lda, *b = t->b + (col / PANEL) * dsc_div_ceil(t->k, 2) * 2 * PANEL;
    const int64_t cols = dsc_min_i64(PANEL, t->cols - col), parts = dsc_div_ceil(t->k, PART_K);
    float *sum = t->sum != NULL ? t->sum + row * t->ld_sum + col : NULL;
    __m512 s[ROWS][VECS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < VECS; v++)
            s[i][v] = _mm512_setzero_ps();
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t i = part * rows / parts; i < (part + 1) * rows / parts; i++)
            fetch_output(t, row + i, col);
        fetch_next(t, next_row + part * next_count / parts, next_row + (part + 1) * next_count / parts);
        const int64_t end = dsc_min_i64((part + 1) * PART_K, t->k);
        for (int64_t k = part * PART_K; k + 2 <= end; k += 2)
            step(s, rows, a + k, t->lda, b + k * PANEL, false);
    }
    if (t->k % 2 != 0)
        step(s, rows, a + t->k - 1, t->lda, b + (t->k - 1) * PANEL, true);
    if (t->add)
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < VECS; v++)
                s[i][v] =
                    _mm512_add_ps(_mm512_maskz_loadu_ps(lanes_of(cols, v), sum + i * t->ld_sum + 16 * v), s[i][v]);
    if (t->finish != NULL) {
        finish(t->finish, s, row, rows, col, cols);
        return;
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < VECS; v++)
            _mm512_mask_storeu_ps(sum + i * t->ld_sum + 16 * v, lanes_of(cols, v), s[i][v]);
}

void dsc_bf16_run(const dsc_bf16_tile *t)
{
    const int64_t block_count = dsc_div_ceil(t->cols, PANEL) * dsc_div_ceil(t->rows, ROWS);
    const int64_t each = t->next != NULL ? dsc_div_ceil(t->next_rows, block_count) : 0;
    int64_t next = 0;
    for (int64_t col = 0; col < t->cols; col += PANEL)
        for (int64_t row = 0; row < t->rows; row += ROWS, next += each)
            switch (dsc_min_i64(ROWS, t->rows - row)) {
            case 6: block(t, row, 6, col, next, each); break;
            case 5: block(t, row, 5, col, next, each); break;
            case 4: block(t, row, 4, col, next, each); break;
            case 3: block(t, row, 3, col, next, each); break;
            case 2: block(t, row, 2, col, next, each); break;
            default: block(t, row, 1, col, next, each); break;
            }
}
