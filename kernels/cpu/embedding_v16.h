/* embedding_v16.h - the embedding on 16 lanes, bit by bit what embedding_ref.c does; compiled by embedding_avx2.c and
 * embedding_avx512.c after their v16 words. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/embedding_sort.h"
#include "kernels/cpu/range.h"

V16_INLINE void fwd_part(const dsc_embedding_fwd_args *a, int64_t r, int64_t c, int64_t left, dsc_dtype dtype)
{
    const int64_t row = dsc_embedding_row(a, r);
    const v16 x = row >= 0 ? v16_load(a->table, row * a->channels + c, left, dtype) : v16_set(0.0f);
    const v16 factor = v16_set(dsc_embedding_factor(a->factor));
    v16 y = v16_mul(x, factor);
    if (a->position != NULL)
        y = v16_fma(x, factor, v16_load(a->position, dsc_embedding_position(a, r) * a->channels + c, left, dtype));
    v16_store(a->out, r * a->channels + c, left, dtype, y);
}

V16_INLINE void embedding_fwd(const dsc_embedding_fwd_args *args, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_embedding_fwd_args local = *args, *a = &local;
    for (int64_t r = first; r < last; r++) {
        DSC_ASSERT(dsc_embedding_row(a, r) >= 0 || a->parted);
        int64_t c = 0;
        for (; c + 16 <= a->channels; c += 16)
            fwd_part(a, r, c, 16, dtype);
        if (c < a->channels)
            fwd_part(a, r, c, a->channels - c, dtype);
    }
}

void V16_NAME(embedding_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_embedding_fwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, embedding_fwd(a, first, last, dtype));
}

/* The rows that one gradient row sums: given one by one, or every `step`-th from `start` on. */
typedef struct row_list {
    const int32_t *row;
    int64_t start, step, count;
    float factor; /* of the sum */
} row_list;

V16_INLINE void sum_strip(const dsc_embedding_bwd_args *a, float *to, row_list list, int64_t c, int64_t left,
                          dsc_dtype dtype)
{
    const int vectors = left >= 64 ? 4 : 1;
    v16 sum[4] = { v16_set(0.0f), v16_set(0.0f), v16_set(0.0f), v16_set(0.0f) };
    for (int64_t k = 0; k < list.count; k++) {
        const int64_t r = list.row != NULL ? list.row[k] : list.start + k * list.step;
        for (int j = 0; j < vectors; j++)
            sum[j] = v16_add(sum[j], v16_load(a->d_out, r * a->channels + c + 16 * j, left - 16 * j, dtype));
    }
    for (int j = 0; j < vectors; j++)
        v16_store(to, c + 16 * j, left - 16 * j, DSC_F32, v16_mul(sum[j], v16_set(list.factor)));
}

V16_INLINE void sum_rows(const dsc_embedding_bwd_args *a, float *to, row_list list, dsc_dtype dtype)
{
    int64_t c = 0;
    for (; c + 64 <= a->channels; c += 64)
        sum_strip(a, to, list, c, 64, dtype);
    for (; c + 16 <= a->channels; c += 16)
        sum_strip(a, to, list, c, 16, dtype);
    if (c < a->channels)
        sum_strip(a, to, list, c, a->channels - c, dtype);
}

/* A chunk of text uses few tokens of a large vocabulary: neighbours without rows are cleared in one go. */
V16_INLINE void embedding_bwd_table(const dsc_embedding_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const dsc_embedding_sort sort = dsc_embedding_sort_of(a);
    int32_t start = first == 0 ? 0 : sort.end[first - 1];
    int64_t unused = 0; /* rows before v that are still to be cleared */
    for (int64_t v = first; v < last; v++) {
        const bool padding = v == dsc_embedding_padding(a);
        const row_list list = { .row = sort.row + start,
                                .count = padding ? 0 : sort.end[v] - start,
                                .factor = dsc_embedding_factor(a->factor) };
        start = sort.end[v];
        if (list.count == 0 && v + 1 < last) {
            unused++;
            continue;
        }
        const int64_t clear = unused + (list.count == 0), from = v - unused;
        memset(a->d_table + from * a->channels, 0, (size_t)(clear * a->channels) * sizeof(float));
        unused = 0;
        if (list.count != 0)
            sum_rows(a, a->d_table + v * a->channels, list, dtype);
    }
}

void V16_NAME(embedding_bwd_table)(const void *args, int64_t first, int64_t last)
{
    const dsc_embedding_bwd_args *a = args;
    const int64_t start = first * DSC_EMBEDDING_TABLE_ROWS;
    const int64_t end = dsc_min_i64(last * DSC_EMBEDDING_TABLE_ROWS, a->vocab);
    DSC_FOR_DTYPE(a->dtype, embedding_bwd_table(a, start, end, dtype));
}

void V16_NAME(embedding_bwd_position)(const void *args, int64_t first, int64_t last)
{
    const dsc_embedding_bwd_args *a = args;
    for (int64_t p = first; p < last; p++) {
        const int64_t t = p - a->position_first;
        const bool used = t >= 0 && t < a->sequence && t < a->rows;
        const int64_t count = used ? dsc_div_ceil(a->rows - t, a->sequence) : 0;
        const row_list list = { .start = t, .step = a->sequence, .count = count, .factor = 1 };
        DSC_FOR_DTYPE(a->dtype, sum_rows(a, a->d_position + p * a->channels, list, dtype));
    }
}
