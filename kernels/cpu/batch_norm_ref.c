/* batch_norm_ref.c - loops over channels inside of rows. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/batch_norm_internal.h"

enum { ROWS = DSC_BATCH_NORM_BLOCK_ROWS };

/* ---- statistics ---- */

/* Block: a part of the rows. */
static void part_stats(const dsc_batch_stats_args *a, int64_t part, dsc_dtype dtype)
{
    const int64_t first = part * dsc_batch_norm_part_rows(a->rows), last = dsc_batch_norm_part_end(part, a->rows),
                  n = a->channels;
    float *mean = dsc_batch_norm_sums(a->scratch, part, 0, n), *squares = dsc_batch_norm_sums(a->scratch, part, 1, n);
    memset(mean, 0, (size_t)n * sizeof *mean);
    memset(squares, 0, (size_t)n * sizeof *squares);
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < n; c++)
            mean[c] += dsc_get(a->x, r * n + c, dtype);
    for (int64_t c = 0; c < n; c++)
        mean[c] /= (float)(last - first);
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < n; c++) {
            const float d = dsc_get(a->x, r * n + c, dtype) - mean[c];
            squares[c] += d * d;
        }
}

void dsc_batch_stats_parts_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_stats_args *a = args;
    for (int64_t part = first; part < last; part++)
        DSC_FOR_DTYPE(a->dtype, part_stats(a, part, dtype));
}

/* ---- forward ---- */

static inline float activate(dsc_activation kind, float x)
{
    if (kind == DSC_RELU)
        return x < 0 ? 0 : x;
    if (kind == DSC_RELU6)
        return x < 0 ? 0 : x > 6 ? 6 : x;
    return (float)dsc_activation_ref(kind, (double)x);
}

static inline float slope_of(dsc_activation kind, float x)
{
    if (kind == DSC_RELU)
        return x > 0 ? 1 : 0;
    if (kind == DSC_RELU6)
        return x > 0 && x < 6 ? 1 : 0;
    return (float)dsc_activation_slope_ref(kind, (double)x);
}

/* z of element (r, c), which is element i; h: the normalized x. */
static inline float before_activation(const void *weight, const void *bias, const void *add, float h, int64_t i,
                                      int64_t c, dsc_dtype dtype)
{
    const float z = dsc_rounded(h * dsc_get(weight, c, dtype) + dsc_get(bias, c, dtype), dtype);
    return add != NULL ? dsc_rounded(z + dsc_get(add, i, dtype), dtype) : z;
}

static void forward_rows(const dsc_batch_norm_fwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const int64_t n = a->channels;
    const float *mean = a->stats, *rstd = a->stats + n;
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < n; c++) {
            const float h = (dsc_get(a->x, r * n + c, dtype) - mean[c]) * rstd[c];
            const float z = before_activation(a->weight, a->bias, a->add, h, r * n + c, c, dtype);
            dsc_put(a->out, r * n + c, dtype, a->activates ? activate(a->kind, z) : z);
        }
}

void dsc_batch_norm_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_fwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, forward_rows(a, first * ROWS, dsc_min_i64(last * ROWS, a->rows), dtype));
}

/* ---- backward ---- */

static inline float gradient_of(const dsc_batch_norm_bwd_args *a, float h, int64_t i, int64_t c, dsc_dtype dtype)
{
    const float d = dsc_get(a->d_out, i, dtype);
    if (!a->activates)
        return d;
    return dsc_rounded(d * slope_of(a->kind, before_activation(a->weight, a->bias, a->add, h, i, c, dtype)), dtype);
}

static void part_gradients(const dsc_batch_norm_bwd_args *a, int64_t part, dsc_dtype dtype)
{
    const int64_t n = a->channels, first = part * dsc_batch_norm_part_rows(a->rows);
    const float *mean = a->stats, *rstd = a->stats + n;
    float *sum = dsc_batch_norm_sums(a->scratch, part, 0, n), *along = dsc_batch_norm_sums(a->scratch, part, 1, n);
    memset(sum, 0, (size_t)n * sizeof *sum);
    memset(along, 0, (size_t)n * sizeof *along);
    for (int64_t r = first; r < dsc_batch_norm_part_end(part, a->rows); r++)
        for (int64_t c = 0; c < n; c++) {
            const float h = (dsc_get(a->x, r * n + c, dtype) - mean[c]) * rstd[c];
            const float d = gradient_of(a, h, r * n + c, c, dtype);
            sum[c] += d;
            along[c] += d * h;
        }
}

void dsc_batch_norm_bwd_parts_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    for (int64_t part = first; part < last; part++)
        DSC_FOR_DTYPE(a->dtype, part_gradients(a, part, dtype));
}

static void backward_rows(const dsc_batch_norm_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const int64_t n = a->channels, parts = dsc_batch_norm_parts(a->rows);
    const float *mean = a->stats, *rstd = a->stats + n;
    const float *sum = dsc_batch_norm_sums(a->scratch, parts, 0, n),
                *along = dsc_batch_norm_sums(a->scratch, parts, 1, n);
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < n; c++) {
            const float h = (dsc_get(a->x, r * n + c, dtype) - mean[c]) * rstd[c];
            const float d = gradient_of(a, h, r * n + c, c, dtype), factor = dsc_get(a->weight, c, dtype) * rstd[c];
            if (a->d_x != NULL)
                dsc_put(a->d_x, r * n + c, dtype, factor * (a->constant ? d : d - sum[c] - h * along[c]));
            if (a->d_add != NULL)
                dsc_put(a->d_add, r * n + c, dtype, d);
        }
}

void dsc_batch_norm_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, backward_rows(a, first * ROWS, dsc_min_i64(last * ROWS, a->rows), dtype));
}
