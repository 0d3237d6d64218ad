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

/* Sum and target of a row, with exponents relative to a maximum. */
typedef struct row_sum {
    float max, sum, at_target;
} row_sum;

/* `target`: its column; -1: it is elsewhere. */
V16_INLINE row_sum sum_row(const row_reader *from, int64_t vocab, int64_t target)
{
    float most = -FLT_MAX, max = -FLT_MAX; /* finite: a strip of -Inf logits adds exp(-Inf) = 0 */
    v16 sums = v16_set(0.0f);
    for (int64_t first = 0; first < vocab; first += STRIP) {
        const int64_t last = dsc_min_i64(first + STRIP, vocab);
        const float higher = strip_max(from->row, first, last, from->dtype, most);
        if (higher > most) { /* z is the greater the greater the logit is */
            const float top = from->bends ? v16_lane0(bend(from, v16_set(higher))) : higher;
            sums = v16_mul(sums, v16_exp(v16_set(max - top)));
            most = higher;
            max = top;
        }
        sums = strip_sum(from, first, last, v16_set(max), sums);
    }
    return (row_sum) { max, v16_sum_lanes(sums), target >= 0 ? v16_lane0(read_bent(from, target, 1)) : -INFINITY };
}

/* Loss and gradients of row r, which `from` reads. */
V16_INLINE void write_row(const dsc_cross_entropy_args *a, int64_t r, const row_reader *from, int64_t target,
                          row_sum of)
{
    const int64_t bytes = (int64_t)dsc_dtype_bytes(from->dtype), vocab = a->vocab;
    char *row = (char *)a->logits + r * a->stride * bytes;
    const float below_max = of.at_target - of.max;
    a->losses[r] = logf(of.sum) - below_max;
    if (!a->write_gradient)
        return;
    const v16 at_target = target >= 0 ? read_bent(from, target, 1) : v16_set(0.0f);
    const float p = v16_lane0(v16_exp(v16_set(below_max))) / of.sum;
    const float scale = a->weights != NULL ? a->scale * a->weights[r] : a->scale;
    const v16 d_target = v16_set((p - 1.0f) * scale);
    write_gradient(from, row, vocab, v16_set(of.max), v16_set(scale / of.sum));
    if (target >= 0)
        v16_store(row, target, 1, from->dtype, from->bends ? v16_mul(d_target, slope_of(from, at_target)) : d_target);
    memset(row + vocab * bytes, 0, (size_t)((a->stride - vocab) * bytes));
}

V16_INLINE row_reader reader_of(const dsc_cross_entropy_args *a, int64_t r, dsc_dtype dtype, bool bends)
{
    const int64_t bytes = (int64_t)dsc_dtype_bytes(dtype);
    return (row_reader) { (char *)a->logits + r * a->stride * bytes, dsc_logit_curve_of(a), bends, dtype };
}

/* The row of a target that is not counted. */
V16_INLINE void skip_row(const dsc_cross_entropy_args *a, int64_t r, dsc_dtype dtype)
{
    const int64_t bytes = a->stride * (int64_t)dsc_dtype_bytes(dtype);
    a->losses[r] = 0.0f;
    if (a->write_gradient)
        memset((char *)a->logits + r * bytes, 0, (size_t)bytes);
}

V16_INLINE void cross_entropy_row(const dsc_cross_entropy_args *a, int64_t r, dsc_dtype dtype, bool bends)
{
    const int32_t target = a->targets[r];
    const row_reader from = reader_of(a, r, dtype, bends);
    DSC_ASSERT(target < a->vocab);
    if (target < 0)
        skip_row(a, r, dtype);
    else
        write_row(a, r, &from, target, sum_row(&from, a->vocab, target));
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

/* ---- ranks that share out the vocabulary ---- */

V16_INLINE void part_row(const dsc_cross_entropy_parts_args *a, int64_t r, dsc_dtype dtype, bool bends)
{
    const row_reader from = reader_of(&a->of, r, dtype, bends);
    const row_sum sum = sum_row(&from, a->of.vocab, dsc_cross_entropy_column(a, r));
    float *part = a->parts + r * DSC_CROSS_ENTROPY_PART;
    part[0] = sum.max, part[1] = sum.sum, part[2] = sum.at_target;
}

void V16_NAME(cross_entropy_part)(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_parts_args *a = args;
    for (int64_t r = first; r < last; r++) {
        if (dsc_logits_bend(&a->of))
            part_row(a, r, a->of.dtype, true);
        else
            DSC_FOR_DTYPE(a->of.dtype, part_row(a, r, dtype, false));
    }
}

V16_INLINE row_sum join_row(const dsc_cross_entropy_parts_args *a, int64_t r)
{
    const float *parts = a->parts + r * DSC_CROSS_ENTROPY_PART;
    const int64_t apart = a->of.rows * DSC_CROSS_ENTROPY_PART;
    row_sum out = { -FLT_MAX, 0, -INFINITY };
    for (int32_t k = 0; k < a->ranks; k++) {
        out.max = fmaxf(out.max, parts[k * apart]);
        out.at_target = fmaxf(out.at_target, parts[k * apart + 2]);
    }
    for (int32_t k = 0; k < a->ranks; k++) {
        const float power = v16_lane0(v16_exp(v16_set(parts[k * apart] - out.max)));
        out.sum = out.sum + parts[k * apart + 1] * power;
    }
    return out;
}

V16_INLINE void finish_row(const dsc_cross_entropy_parts_args *a, int64_t r, dsc_dtype dtype, bool bends)
{
    const row_reader from = reader_of(&a->of, r, dtype, bends);
    if (a->of.targets[r] < 0)
        skip_row(&a->of, r, dtype);
    else
        write_row(&a->of, r, &from, dsc_cross_entropy_column(a, r), join_row(a, r));
}

void V16_NAME(cross_entropy_join)(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_parts_args *a = args;
    for (int64_t r = first; r < last; r++) {
        if (dsc_logits_bend(&a->of))
            finish_row(a, r, a->of.dtype, true);
        else
            DSC_FOR_DTYPE(a->of.dtype, finish_row(a, r, dtype, false));
    }
}
