/* batch_norm.c - cuts batch norms into blocks, and puts sums of parts together. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/batch_norm_internal.h"
#include "kernels/kernels.h"

enum { ROWS = DSC_BATCH_NORM_BLOCK_ROWS, CHANNELS = 64 }; /* of a block */

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static void channel_stats(const dsc_batch_stats_args *a, int64_t c)
{
    const int64_t each = dsc_batch_norm_part_rows(a->rows);
    double sum = 0, squares = 0;
    for (int64_t p = 0; p < dsc_batch_norm_parts(a->rows); p++)
        sum += (double)(dsc_batch_norm_part_end(p, a->rows) - p * each) *
               (double)dsc_batch_norm_sums(a->scratch, p, 0, a->channels)[c];
    const double mean = sum / (double)a->rows;
    for (int64_t p = 0; p < dsc_batch_norm_parts(a->rows); p++) {
        const double d = (double)dsc_batch_norm_sums(a->scratch, p, 0, a->channels)[c] - mean;
        squares += (double)dsc_batch_norm_sums(a->scratch, p, 1, a->channels)[c];
        squares += (double)(dsc_batch_norm_part_end(p, a->rows) - p * each) * (d * d);
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

static dsc_status stats(const void *args, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn parts)
{
    const dsc_batch_stats_args *a = args;
    DSC_ASSERT(a->rows >= 1);
    DSC_ASSERT((a->running_mean == NULL) == (a->running_variance == NULL));
    DSC_TRY(dsc_range_dtype_check("BATCH_STATS", a->dtype, err));
    if (a->running_mean == NULL)
        dsc_range_run(pool, dsc_batch_norm_parts(a->rows), parts, a);
    dsc_range_run(pool, dsc_div_ceil(a->channels, CHANNELS), finish_stats, a);
    return DSC_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn rows)
{
    const dsc_batch_norm_fwd_args *a = args;
    DSC_ASSERT(!a->activates || dsc_batch_norm_activates(a->kind));
    DSC_TRY(dsc_range_dtype_check("BATCH_NORM_FWD", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->rows, ROWS), rows, a);
    return DSC_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void finish_gradients(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_bwd_args *a = args;
    const int64_t parts = dsc_batch_norm_parts(a->rows);
    for (int64_t c = first * CHANNELS; c < dsc_min_i64(last * CHANNELS, a->channels); c++) {
        double total[2] = { 0, 0 };
        for (int which = 0; which < 2; which++) {
            for (int64_t p = 0; p < parts; p++)
                total[which] += (double)dsc_batch_norm_sums(a->scratch, p, which, a->channels)[c];
            dsc_batch_norm_sums(a->scratch, parts, which, a->channels)[c] = (float)(total[which] / (double)a->rows);
        }
        if (a->d_bias != NULL)
            a->d_bias[c] = (float)total[0];
        if (a->d_weight != NULL)
            a->d_weight[c] = (float)total[1];
    }
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn parts,
                           dsc_range_fn rows)
{
    const dsc_batch_norm_bwd_args *a = args;
    DSC_ASSERT(a->rows >= 1);
    DSC_ASSERT(!a->activates || dsc_batch_norm_activates(a->kind));
    DSC_TRY(dsc_range_dtype_check("BATCH_NORM_BWD", a->dtype, err));
    DSC_ASSERT(!a->joined || (a->d_weight == NULL && a->d_bias == NULL));
    if (!a->joined) {
        dsc_range_run(pool, dsc_batch_norm_parts(a->rows), parts, a);
        dsc_range_run(pool, dsc_div_ceil(a->channels, CHANNELS), finish_gradients, a);
    }
    if (a->d_x != NULL || a->d_add != NULL)
        dsc_range_run(pool, dsc_div_ceil(a->rows, ROWS), rows, a);
    return DSC_OK;
}

/* ---- groups of micro-batches ------------------------------------------------------------------------------------- */

/* Number k of all, in order: micro-batch k / ranks of rank k % ranks. */
static const float *part_of(const dsc_batch_norm_join_args *a, int64_t k)
{
    return a->parts + (k % a->ranks * a->each + k / a->ranks) * 2 * a->channels;
}

static void join_stats(const dsc_batch_norm_join_args *a, int64_t c)
{
    const int64_t count = a->ranks * a->each;
    const double rows = (double)a->rows, all = rows * (double)count, before = (double)dsc_max_i64(1, a->rows - 1);
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < count; k++)
        sum += (double)part_of(a, k)[c];
    const double mean = sum / (double)count;
    for (int64_t k = 0; k < count; k++) {
        const double apart = (double)part_of(a, k)[c] - mean;
        squares += (double)part_of(a, k)[a->channels + c] * before + rows * (apart * apart);
    }
    a->out[c] = (float)mean;
    a->out[a->channels + c] = (float)(1 / sqrt(squares / all + (double)a->eps));
    if (a->mean != NULL)
        a->mean[c] = (float)mean;
    if (a->variance != NULL)
        a->variance[c] = (float)(squares / (all > 1 ? all - 1 : 1));
}

static void join_gradients(const dsc_batch_norm_join_args *a, int64_t c)
{
    const int64_t count = a->ranks * a->each;
    double sum[2] = { 0, 0 };
    for (int64_t k = 0; k < count; k++)
        for (int which = 0; which < 2; which++)
            sum[which] += (double)part_of(a, k)[which * a->channels + c];
    for (int which = 0; which < 2; which++)
        a->out[which * a->channels + c] = (float)(sum[which] / (double)(count * a->rows));
}

static void join_channels(const void *args, int64_t first, int64_t last)
{
    const dsc_batch_norm_join_args *a = args;
    for (int64_t c = first * CHANNELS; c < dsc_min_i64(last * CHANNELS, a->channels); c++)
        if (a->gradients)
            join_gradients(a, c);
        else
            join_stats(a, c);
}

static dsc_status join(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_batch_norm_join_args *a = args;
    (void)err;
    DSC_ASSERT(a->ranks >= 1 && a->each >= 1 && a->rows >= 1);
    dsc_range_run(pool, dsc_div_ceil(a->channels, CHANNELS), join_channels, a);
    return DSC_OK;
}

#define BATCH_NORM_VARIANT(isa)                                                                                        \
    static dsc_status stats_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                       \
    {                                                                                                                  \
        return stats(args, pool, err, dsc_batch_stats_parts_##isa);                                                    \
    }                                                                                                                  \
    static dsc_status forward_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                     \
    {                                                                                                                  \
        return forward(args, pool, err, dsc_batch_norm_fwd_##isa);                                                     \
    }                                                                                                                  \
    static dsc_status backward_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                    \
    {                                                                                                                  \
        return backward(args, pool, err, dsc_batch_norm_bwd_parts_##isa, dsc_batch_norm_bwd_##isa);                    \
    }
BATCH_NORM_VARIANT(ref)
BATCH_NORM_VARIANT(avx2)
BATCH_NORM_VARIANT(avx512)

void dsc_batch_norm_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_BATCH_STATS] = avx512 ? stats_avx512 : avx2 ? stats_avx2 : stats_ref;
    table->fn[DSC_KERNEL_BATCH_NORM_FWD] = avx512 ? forward_avx512 : avx2 ? forward_avx2 : forward_ref;
    table->fn[DSC_KERNEL_BATCH_NORM_BWD] = avx512 ? backward_avx512 : avx2 ? backward_avx2 : backward_ref;
    table->fn[DSC_KERNEL_BATCH_NORM_JOIN] = join;
}
