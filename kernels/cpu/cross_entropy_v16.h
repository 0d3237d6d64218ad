/* cross_entropy_v16.h - softmax, loss and dlogits of a row on 16 lanes; compiled by cross_entropy_avx2.c and
 * cross_entropy_avx512.c after their v16 words.
 *
 * A row of 50304 bf16 logits is 98 KiB: it stays in the L2 cache between the pass that sums and the pass that writes.
 * The summing pass goes strip by strip (L1): the strip's maximum first, then its exponentials, so that the running sum
 * is rescaled once a strip and not once an element. SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/range.h"

#define STRIP 2048 /* 4 or 8 KiB */

/* How a row's logits are read. `bends` is a constant where it is inlined: plain logits cost nothing. */
typedef struct row_reader {
    const void *row;
    dsc_logit_curve curve;
    bool bends;
    dsc_dtype dtype;
} row_reader;

/* z of logits. */
V16_INLINE v16 bend(const row_reader *from, v16 x)
{
    if (!from->bends)
        return x;
    x = v16_mul(x, v16_set(from->curve.inner));
    return from->curve.outer > 0 ? v16_mul(v16_tanh(x), v16_set(from->curve.outer)) : x;
}

V16_INLINE v16 read_bent(const row_reader *from, int64_t i, int64_t left)
{
    return bend(from, v16_load(from->row, i, left, from->dtype));
}

/* dz/dlogit: inner outer (1 - tanh^2), of which z is outer tanh. */
V16_INLINE v16 slope_of(const row_reader *from, v16 z)
{
    const float inner = from->curve.inner, outer = from->curve.outer;
    if (!(outer > 0))
        return v16_set(inner);
    return v16_mul(v16_fnma(v16_mul(z, v16_set(1 / outer)), z, v16_set(outer)), v16_set(inner));
}

V16_INLINE float strip_max(const void *row, int64_t first, int64_t last, dsc_dtype dtype, float start)
{
    const v16 low = v16_set(start);
    v16 max[4] = { low, low, low, low };
    int64_t i = first;
    for (; i + 64 <= last; i += 64)
        for (int j = 0; j < 4; j++)
            max[j] = v16_max(max[j], v16_load(row, i + 16 * j, 16, dtype));
    for (; i < last; i += 16)
        max[0] = v16_max(max[0], v16_first(v16_load(row, i, last - i, dtype), low, last - i));
    return v16_max_lanes(v16_max(v16_max(max[0], max[1]), v16_max(max[2], max[3])));
}

V16_INLINE v16 strip_sum(const row_reader *from, int64_t first, int64_t last, v16 max, v16 sum)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        sum = v16_add(sum, v16_exp(v16_sub(read_bent(from, i, 16), max)));
    if (i < last) {
        const v16 e = v16_exp(v16_sub(read_bent(from, i, last - i), max));
        sum = v16_add(sum, v16_first(e, v16_set(0.0f), last - i));
    }
    return sum;
}

V16_INLINE void write_part(const row_reader *from, void *row, int64_t i, int64_t left, v16 max, v16 factor)
{
    const v16 z = read_bent(from, i, left), d = v16_mul(v16_exp(v16_sub(z, max)), factor);
    v16_store(row, i, left, from->dtype, from->bends ? v16_mul(d, slope_of(from, z)) : d);
}

V16_INLINE void write_gradient(const row_reader *from, void *row, int64_t vocab, v16 max, v16 factor)
{
    int64_t i = 0;
    for (; i + 16 <= vocab; i += 16)
        write_part(from, row, i, 16, max, factor);
    if (i < vocab)
        write_part(from, row, i, vocab - i, max, factor);
}

V16_INLINE void cross_entropy_row(const dsc_cross_entropy_args *a, int64_t r, dsc_dtype dtype, bool bends)
{
    const int64_t bytes = (int64_t)dsc_dtype_bytes(dtype), vocab = a->vocab;
    char *row = (char *)a->logits + r * a->stride * bytes;
    const int32_t target = a->targets[r];
    DSC_ASSERT(target < vocab);
    if (target < 0) { /* not counted */
        a->losses[r] = 0.0f;
        if (a->write_gradient)
            memset(row, 0, (size_t)(a->stride * bytes));
        return;
    }
    const row_reader from = { row, dsc_logit_curve_of(a), bends, dtype };
    float most = -FLT_MAX, max = -FLT_MAX; /* finite: a strip of -Inf logits adds exp(-Inf) = 0 */
    v16 sums = v16_set(0.0f);
    for (int64_t first = 0; first < vocab; first += STRIP) {
        const int64_t last = dsc_min_i64(first + STRIP, vocab);
        const float higher = strip_max(row, first, last, dtype, most);
        if (higher > most) { /* z is the greater the greater the logit is */
            const float top = bends ? v16_lane0(bend(&from, v16_set(higher))) : higher;
            sums = v16_mul(sums, v16_exp(v16_set(max - top)));
            most = higher;
            max = top;
        }
        sums = strip_sum(&from, first, last, v16_set(max), sums);
    }
    const float sum = v16_sum_lanes(sums);
    const v16 at_target = read_bent(&from, target, 1);
    const float below_max = v16_lane0(at_target) - max;
    a->losses[r] = logf(sum) - below_max;
    if (!a->write_gradient)
        return;
    const float p = v16_lane0(v16_exp(v16_set(below_max))) / sum;
    const float scale = a->weights != NULL ? a->scale * a->weights[r] : a->scale;
    const v16 d_target = v16_set((p - 1.0f) * scale);
    write_gradient(&from, row, vocab, v16_set(max), v16_set(scale / sum));
    v16_store(row, target, 1, dtype, bends ? v16_mul(d_target, slope_of(&from, at_target)) : d_target);
    memset(row + vocab * bytes, 0, (size_t)((a->stride - vocab) * bytes));
}

void V16_NAME(cross_entropy)(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_args *a = args;
    for (int64_t r = first; r < last; r++) {
        if (dsc_logits_bend(a))
            cross_entropy_row(a, r, a->dtype, true);
        else
            DSC_FOR_DTYPE(a->dtype, cross_entropy_row(a, r, dtype, false));
    }
}
