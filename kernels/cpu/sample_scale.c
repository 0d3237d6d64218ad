/* sample_scale.c - plain C for every CPU. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sample_scale.h"

#include "base/rng.h"
#include "kernels/cpu/range.h"

enum { ROWS = 16, CHANNELS = 64, ELEMENTS = 4096 }; /* of a block */

static void scale_rows(const dsc_sample_scale_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    const int64_t n = a->channels;
    for (int64_t row = first; row < last; row++)
        for (int64_t c = 0; c < n; c++)
            dsc_put(a->out, row * n + c, dtype,
                    dsc_get(a->in, row * n + c, dtype) * dsc_get(a->scale, row / a->rows * n + c, dtype));
}

static void scale_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_sample_scale_args *a = args;
    const int64_t end = dsc_min_i64(last * ROWS, a->samples * a->rows);
    DSC_FOR_DTYPE(a->dtype, scale_rows(a, first * ROWS, end, dtype));
}

/* Some channels of a sample. */
static void add_products(const dsc_sample_scale_args *a, int64_t block, dsc_dtype dtype)
{
    const int64_t n = a->channels, pieces = dsc_div_ceil(n, CHANNELS), sample = block / pieces;
    const int64_t from = block % pieces * CHANNELS, count = dsc_min_i64(CHANNELS, n - from);
    float sum[CHANNELS] = { 0 };
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < count; c++) {
            const int64_t at = (sample * a->rows + r) * n + from + c;
            sum[c] += dsc_get(a->out, at, dtype) * dsc_get(a->in, at, dtype);
        }
    for (int64_t c = 0; c < count; c++)
        dsc_put(a->scale, sample * n + from + c, dtype, sum[c]);
}

static void product_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_sample_scale_args *a = args;
    for (int64_t block = first; block < last; block++)
        DSC_FOR_DTYPE(a->dtype, add_products(a, block, dtype));
}

static void drop(const dsc_sample_dropout_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    for (int64_t i = first; i < last; i++) {
        const uint64_t sample = (uint64_t)(i / a->elements);
        const int64_t end = dsc_min_i64(last, ((int64_t)sample + 1) * a->elements);
        const bool kept = dsc_rng_u32(a->seed, a->stream, a->first + sample) >= a->threshold;
        for (; i < end; i++)
            dsc_put(a->out, i, dtype, kept ? dsc_get(a->in, i, dtype) * a->factor : 0);
        i--;
    }
}

static void drop_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_sample_dropout_args *a = args;
    const int64_t end = dsc_min_i64(last * ELEMENTS, a->samples * a->elements);
    DSC_FOR_DTYPE(a->dtype, drop(a, first * ELEMENTS, end, dtype));
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_sample_scale_args *a = args;
    DSC_TRY(dsc_range_dtype_check("SAMPLE_SCALE_FWD", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->samples * a->rows, ROWS), scale_blocks, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_sample_scale_args *a = args;
    DSC_TRY(dsc_range_dtype_check("SAMPLE_SCALE_BWD", a->dtype, err));
    dsc_range_run(pool, a->samples * dsc_div_ceil(a->channels, CHANNELS), product_blocks, a);
    return DSC_OK;
}

static dsc_status dropout(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_sample_dropout_args *a = args;
    DSC_TRY(dsc_range_dtype_check("SAMPLE_DROPOUT", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->samples * a->elements, ELEMENTS), drop_blocks, a);
    return DSC_OK;
}

void dsc_sample_scale_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_SAMPLE_SCALE_FWD] = forward;
    table->fn[DSC_KERNEL_SAMPLE_SCALE_BWD] = backward;
    table->fn[DSC_KERNEL_SAMPLE_DROPOUT] = dropout;
}
