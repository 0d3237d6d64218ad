/* batch_norm.c - plain C for every CPU: loops over channels inside of rows. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/batch_norm.h"

#include <math.h>

#include "kernels/cpu/range.h"

enum { ROWS = 16, CHANNELS = 64 }; /* of a block */

static float *sums_of(float *scratch, int64_t part, int which, int64_t channels)
{
    return scratch + (2 * part + which) * channels;
}

static int64_t part_end(int64_t part, int64_t rows)
{
    return dsc_min_i64((part + 1) * dsc_batch_norm_part_rows(rows), rows);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* Block: a part of the rows. */
static void part_stats(const dsc_batch_stats_args *a, int64_t part, dsc_dtype dtype)
{
    const int64_t first = part * dsc_batch_norm_part_rows(a->rows), last = part_end(part, a->rows), n = a->channels;
    float *mean = sums_of(a->scratch, part, 0, n), *squares = sums_of(a->scratch, part, 1, n);
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

static void parts_stats(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_stats_args *a = args;
    for (int64_t part = first; part < last; part++)
        DSC_FOR_DTYPE(a->dtype, part_stats(a, part, dtype));
}

static void channel_stats(const dsc_batch_stats_args *a, int64_t c)
{
    const int64_t each = dsc_batch_norm_part_rows(a->rows);
    double sum = 0, squares = 0;
    for (int64_t p = 0; p < dsc_batch_norm_parts(a->rows); p++)
        sum += (double)(part_end(p, a->rows) - p * each) * (double)sums_of(a->scratch, p, 0, a->channels)[c];
    const double mean = sum / (double)a->rows;
    for (int64_t p = 0; p < dsc_batch_norm_parts(a->rows); p++) {
        const double d = (double)sums_of(a->scratch, p, 0, a->channels)[c] - mean;
        squares += (double)sums_of(a->scratch, p, 1, a->channels)[c];
        squares += (double)(part_end(p, a->rows) - p * each) * (d * d);
    }
    a->stats[c] = (float)mean;
    a->stats[a->channels + c] = (float)(1 / sqrt(squares / (double)a->rows + (double)a->eps));
    if (a->mean != NULL)
        a->mean[c] = (float)mean;
    if (a->variance != NULL)
        a->variance[c] = (float)(squares / (double)dsc_max_i64(1, a->rows - 1));
}

static void finish_stats(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_stats_args *a = args;
    for (int64_t c = first * CHANNELS; c < dsc_min_i64(last * CHANNELS, a->channels); c++) {
        if (a->running_mean == NULL) {
            channel_stats(a, c);
            continue;
        }
        a->stats[c] = a->running_mean[c];
        if (a->mean != NULL)
            a->mean[c] = a->running_mean[c];
        if (a->variance != NULL)
            a->variance[c] = a->running_variance[c];
        a->stats[a->channels + c] = (float)(1 / sqrt((double)a->running_variance[c] + (double)a->eps));
    }
}

static dsc_status stats(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_batch_stats_args *a = args;
    DSC_ASSERT(a->rows >= 1);
    DSC_ASSERT((a->running_mean == NULL) == (a->running_variance == NULL));
    DSC_TRY(dsc_range_dtype_check("BATCH_STATS", a->dtype, err));
    if (a->running_mean == NULL)
        dsc_range_run(pool, dsc_batch_norm_parts(a->rows), parts_stats, a);
    dsc_range_run(pool, dsc_div_ceil(a->channels, CHANNELS), finish_stats, a);
    return DSC_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

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

static void forward_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_fwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, forward_rows(a, first * ROWS, dsc_min_i64(last * ROWS, a->rows), dtype));
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_batch_norm_fwd_args *a = args;
    DSC_ASSERT(!a->activates || dsc_batch_norm_activates(a->kind));
    DSC_TRY(dsc_range_dtype_check("BATCH_NORM_FWD", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->rows, ROWS), forward_blocks, a);
    return DSC_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

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
    float *sum = sums_of(a->scratch, part, 0, n), *along = sums_of(a->scratch, part, 1, n);
    memset(sum, 0, (size_t)n * sizeof *sum);
    memset(along, 0, (size_t)n * sizeof *along);
    for (int64_t r = first; r < part_end(part, a->rows); r++)
        for (int64_t c = 0; c < n; c++) {
            const float h = (dsc_get(a->x, r * n + c, dtype) - mean[c]) * rstd[c];
            const float d = gradient_of(a, h, r * n + c, c, dtype);
            sum[c] += d;
            along[c] += d * h;
        }
}

static void parts_gradients(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    for (int64_t part = first; part < last; part++)
        DSC_FOR_DTYPE(a->dtype, part_gradients(a, part, dtype));
}

static void finish_gradients(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    const int64_t parts = dsc_batch_norm_parts(a->rows);
    for (int64_t c = first * CHANNELS; c < dsc_min_i64(last * CHANNELS, a->channels); c++) {
        double total[2] = { 0, 0 };
        for (int which = 0; which < 2; which++) {
            for (int64_t p = 0; p < parts; p++)
                total[which] += (double)sums_of(a->scratch, p, which, a->channels)[c];
            sums_of(a->scratch, parts, which, a->channels)[c] = (float)(total[which] / (double)a->rows);
        }
        if (a->d_bias != NULL)
            a->d_bias[c] = (float)total[0];
        if (a->d_weight != NULL)
            a->d_weight[c] = (float)total[1];
    }
}

static void backward_rows(const dsc_batch_norm_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const int64_t n = a->channels, parts = dsc_batch_norm_parts(a->rows);
    const float *mean = a->stats, *rstd = a->stats + n;
    const float *sum = sums_of(a->scratch, parts, 0, n), *along = sums_of(a->scratch, parts, 1, n);
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

static void backward_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    DSC_FOR_DTYPE(a->dtype, backward_rows(a, first * ROWS, dsc_min_i64(last * ROWS, a->rows), dtype));
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_batch_norm_bwd_args *a = args;
    DSC_ASSERT(a->rows >= 1);
    DSC_ASSERT(!a->activates || dsc_batch_norm_activates(a->kind));
    DSC_TRY(dsc_range_dtype_check("BATCH_NORM_BWD", a->dtype, err));
    dsc_range_run(pool, dsc_batch_norm_parts(a->rows), parts_gradients, a);
    dsc_range_run(pool, dsc_div_ceil(a->channels, CHANNELS), finish_gradients, a);
    dsc_range_run(pool, dsc_div_ceil(a->rows, ROWS), backward_blocks, a);
    return DSC_OK;
}

void dsc_batch_norm_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_BATCH_STATS] = stats;
    table->fn[DSC_KERNEL_BATCH_NORM_FWD] = forward;
    table->fn[DSC_KERNEL_BATCH_NORM_BWD] = backward;
}
