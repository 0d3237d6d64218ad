/* batch_norm_v16.h - batch norms with channels on lanes, up to 64 of them at a time; compiled by batch_norm_avx2.c and
 * batch_norm_avx512.c after their v16 words. Sums have the order and the bits of the reference.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/activation_v16.h"
#include "kernels/cpu/batch_norm_internal.h"

enum { WIDE = 4 }; /* vectors of channels whose sums stay in registers */

/* Calls with `width` vectors of which the last has `left` channels: constants where there are 64 channels. */
#define FOR_GROUPS(channels, call)                                                                                     \
    do {                                                                                                               \
        int64_t c = 0;                                                                                                 \
        for (; c + 16 * WIDE <= (channels); c += 16 * WIDE)                                                            \
            call(c, WIDE, 16);                                                                                         \
        for (; c + 16 <= (channels); c += 16)                                                                          \
            call(c, 1, 16);                                                                                            \
        if (c < (channels))                                                                                            \
            call(c, 1, (channels)-c);                                                                                  \
    } while (0)

/* ---- statistics ---- */

V16_INLINE void stats_group(const dsc_batch_stats_args *a, int64_t part, int64_t c, int width, int64_t left,
                            dsc_dtype dtype)
{
    const int64_t n = a->channels, first = part * dsc_batch_norm_part_rows(a->rows);
    const int64_t last = dsc_batch_norm_part_end(part, a->rows);
    float *means = dsc_batch_norm_sums(a->scratch, part, 0, n), *squares = dsc_batch_norm_sums(a->scratch, part, 1, n);
    v16 mean[WIDE], sum[WIDE];
    for (int v = 0; v < width; v++)
        mean[v] = sum[v] = v16_set(0);
    for (int64_t r = first; r < last; r++)
        for (int v = 0; v < width; v++)
            mean[v] = v16_add(mean[v], v16_load(a->x, r * n + c + 16 * v, left, dtype));
    for (int v = 0; v < width; v++)
        mean[v] = v16_div(mean[v], v16_set((float)(last - first)));
    for (int64_t r = first; r < last; r++)
        for (int v = 0; v < width; v++) {
            const v16 d = v16_sub(v16_load(a->x, r * n + c + 16 * v, left, dtype), mean[v]);
            sum[v] = v16_add(sum[v], v16_mul(d, d));
        }
    for (int v = 0; v < width; v++) {
        v16_store(means, c + 16 * v, left, DSC_F32, mean[v]);
        v16_store(squares, c + 16 * v, left, DSC_F32, sum[v]);
    }
}

V16_INLINE void stats_part(const dsc_batch_stats_args *a, int64_t part, dsc_dtype dtype)
{
#define STATS_GROUP(c, width, left) stats_group(a, part, c, width, left, dtype)
    FOR_GROUPS(a->channels, STATS_GROUP);
}

void V16_NAME(batch_stats_parts)(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_stats_args *a = args;
    for (int64_t part = first; part < last; part++)
        DSC_FOR_DTYPE(a->dtype, stats_part(a, part, dtype));
}

/* ---- the activation ---- */

/* f, or with -1 none: a constant in every loop. */
#define FOR_KIND(a, call)                                                                                              \
    do {                                                                                                               \
        switch ((a)->activates ? (int)(a)->kind : -1) {                                                                \
        case DSC_RELU:                                                                                                 \
            call(DSC_RELU);                                                                                            \
            break;                                                                                                     \
        case DSC_RELU6:                                                                                                \
            call(DSC_RELU6);                                                                                           \
            break;                                                                                                     \
        case DSC_SILU:                                                                                                 \
            call(DSC_SILU);                                                                                            \
            break;                                                                                                     \
        case DSC_HARD_SWISH:                                                                                           \
            call(DSC_HARD_SWISH);                                                                                      \
            break;                                                                                                     \
        default:                                                                                                       \
            call(-1);                                                                                                  \
            break;                                                                                                     \
        }                                                                                                              \
    } while (0)

/* Numbers that a group of channels has in common. */
typedef struct channel {
    v16 mean, rstd, weight, bias;
} channel;

V16_INLINE channel channel_at(const float *stats, const void *weight, const void *bias, int64_t n, int64_t c,
                              int64_t left, dsc_dtype dtype)
{
    return (channel) { v16_load(stats, c, left, DSC_F32), v16_load(stats, n + c, left, DSC_F32),
                       v16_load(weight, c, left, dtype), v16_load(bias, c, left, dtype) };
}

V16_INLINE v16 normalized(const channel *of, v16 x) { return v16_mul(v16_sub(x, of->mean), of->rstd); }

V16_INLINE v16 before_activation(const channel *of, v16 h, const void *add, int64_t i, int64_t left, dsc_dtype dtype)
{
    const v16 z = v16_rounded(v16_add(v16_mul(h, of->weight), of->bias), dtype);
    return add != NULL ? v16_rounded(v16_add(z, v16_load(add, i, left, dtype)), dtype) : z;
}

/* ---- forward ---- */

V16_INLINE void fwd_group(const dsc_batch_norm_fwd_args *a, int64_t first, int64_t last, int64_t c, int width,
                          int64_t left, dsc_dtype dtype, int kind)
{
    const int64_t n = a->channels;
    channel of[WIDE];
    for (int v = 0; v < width; v++)
        of[v] = channel_at(a->stats, a->weight, a->bias, n, c + 16 * v, left, dtype);
    for (int64_t r = first; r < last; r++)
        for (int v = 0; v < width; v++) {
            const int64_t i = r * n + c + 16 * v;
            const v16 h = normalized(&of[v], v16_load(a->x, i, left, dtype));
            const v16 z = before_activation(&of[v], h, a->add, i, left, dtype);
            v16_store(a->out, i, left, dtype, kind >= 0 ? activation_value((dsc_activation)kind, z) : z);
        }
}

V16_INLINE void fwd_rows(const dsc_batch_norm_fwd_args *a, int64_t first, int64_t last, dsc_dtype dtype, int kind)
{
#define FWD_GROUP(c, width, left) fwd_group(a, first, last, c, width, left, dtype, kind)
    FOR_GROUPS(a->channels, FWD_GROUP);
}

V16_INLINE void fwd_kind(const dsc_batch_norm_fwd_args *a, int64_t first, int64_t last, int kind)
{
    DSC_FOR_DTYPE(a->dtype, fwd_rows(a, first, last, dtype, kind));
}

void V16_NAME(batch_norm_fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_fwd_args *a = args;
    enum { ROWS = DSC_BATCH_NORM_BLOCK_ROWS };
    for (int64_t block = first; block < last; block++) {
        const int64_t from = block * ROWS, end = dsc_min_i64(from + ROWS, a->rows);
#define FWD_KIND(kind) fwd_kind(a, from, end, kind)
        FOR_KIND(a, FWD_KIND);
    }
}

/* ---- backward ---- */

V16_INLINE v16 gradient_of(const dsc_batch_norm_bwd_args *a, const channel *of, v16 h, int64_t i, int64_t left,
                           dsc_dtype dtype, int kind)
{
    const v16 d = v16_load(a->d_out, i, left, dtype);
    if (kind < 0)
        return d;
    const v16 z = before_activation(of, h, a->add, i, left, dtype);
    return v16_rounded(v16_mul(d, activation_slope((dsc_activation)kind, z)), dtype);
}

V16_INLINE void sums_group(const dsc_batch_norm_bwd_args *a, int64_t part, int64_t c, int width, int64_t left,
                           dsc_dtype dtype, int kind)
{
    const int64_t n = a->channels, first = part * dsc_batch_norm_part_rows(a->rows);
    const int64_t last = dsc_batch_norm_part_end(part, a->rows);
    channel of[WIDE];
    v16 sum[WIDE], along[WIDE];
    for (int v = 0; v < width; v++) {
        of[v] = channel_at(a->stats, a->weight, a->bias, n, c + 16 * v, left, dtype);
        sum[v] = along[v] = v16_set(0);
    }
    for (int64_t r = first; r < last; r++)
        for (int v = 0; v < width; v++) {
            const int64_t i = r * n + c + 16 * v;
            const v16 h = normalized(&of[v], v16_load(a->x, i, left, dtype));
            const v16 d = gradient_of(a, &of[v], h, i, left, dtype, kind);
            sum[v] = v16_add(sum[v], d);
            along[v] = v16_add(along[v], v16_mul(d, h));
        }
    for (int v = 0; v < width; v++) {
        v16_store(dsc_batch_norm_sums(a->scratch, part, 0, n), c + 16 * v, left, DSC_F32, sum[v]);
        v16_store(dsc_batch_norm_sums(a->scratch, part, 1, n), c + 16 * v, left, DSC_F32, along[v]);
    }
}

V16_INLINE void sums_part(const dsc_batch_norm_bwd_args *a, int64_t part, dsc_dtype dtype, int kind)
{
#define SUMS_GROUP(c, width, left) sums_group(a, part, c, width, left, dtype, kind)
    FOR_GROUPS(a->channels, SUMS_GROUP);
}

V16_INLINE void sums_kind(const dsc_batch_norm_bwd_args *a, int64_t part, int kind)
{
    DSC_FOR_DTYPE(a->dtype, sums_part(a, part, dtype, kind));
}

void V16_NAME(batch_norm_bwd_parts)(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
#define SUMS_KIND(kind) sums_kind(a, part, kind)
    for (int64_t part = first; part < last; part++)
        FOR_KIND(a, SUMS_KIND);
}

V16_INLINE void bwd_group(const dsc_batch_norm_bwd_args *a, int64_t first, int64_t last, int64_t c, int width,
                          int64_t left, dsc_dtype dtype, int kind)
{
    const int64_t n = a->channels, parts = dsc_batch_norm_parts(a->rows);
    const float *sums = dsc_batch_norm_sums(a->scratch, parts, 0, n), *alongs = sums + n;
    channel of[WIDE];
    v16 sum[WIDE], along[WIDE], factor[WIDE];
    for (int v = 0; v < width; v++) {
        of[v] = channel_at(a->stats, a->weight, a->bias, n, c + 16 * v, left, dtype);
        factor[v] = v16_mul(of[v].weight, of[v].rstd);
        sum[v] = v16_load(sums, c + 16 * v, left, DSC_F32);
        along[v] = v16_load(alongs, c + 16 * v, left, DSC_F32);
    }
    for (int64_t r = first; r < last; r++)
        for (int v = 0; v < width; v++) {
            const int64_t i = r * n + c + 16 * v;
            const v16 h = normalized(&of[v], v16_load(a->x, i, left, dtype));
            const v16 d = gradient_of(a, &of[v], h, i, left, dtype, kind);
            const v16 inner = a->constant ? d : v16_sub(v16_sub(d, sum[v]), v16_mul(h, along[v]));
            if (a->d_x != NULL)
                v16_store(a->d_x, i, left, dtype, v16_mul(factor[v], inner));
            if (a->d_add != NULL)
                v16_store(a->d_add, i, left, dtype, d);
        }
}

V16_INLINE void bwd_rows(const dsc_batch_norm_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype, int kind)
{
#define BWD_GROUP(c, width, left) bwd_group(a, first, last, c, width, left, dtype, kind)
    FOR_GROUPS(a->channels, BWD_GROUP);
}

V16_INLINE void bwd_kind(const dsc_batch_norm_bwd_args *a, int64_t first, int64_t last, int kind)
{
    DSC_FOR_DTYPE(a->dtype, bwd_rows(a, first, last, dtype, kind));
}

void V16_NAME(batch_norm_bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    enum { ROWS = DSC_BATCH_NORM_BLOCK_ROWS };
    for (int64_t block = first; block < last; block++) {
        const int64_t from = block * ROWS, end = dsc_min_i64(from + ROWS, a->rows);
#define BWD_KIND(kind) bwd_kind(a, from, end, kind)
        FOR_KIND(a, BWD_KIND);
    }
}
