/* sample_rows.c - plain C for every CPU: rows of samples, and patches of pictures. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cpu/range.h"
#include "kernels/sample_rows.h"

/* Block: a row. */
static void put(const void *args, int64_t first, int64_t last)
{
    const dsc_rows_args *a = args;
    for (int64_t i = first; i < last; i++) {
        const int64_t s = i / a->rows, r = i % a->rows;
        const int64_t to = (s * a->out_apart + r) * a->channels;
        const int64_t from = (s * a->in_apart + (a->same ? 0 : r)) * a->channels;
        for (int64_t c = 0; c < a->channels; c++)
            dsc_put(a->out, to + c, a->dtype, a->in != NULL ? a->factor * dsc_get(a->in, from + c, a->dtype) : 0);
    }
}

/* Block: a sample. */
static void sum(const void *args, int64_t first, int64_t last)
{
    const dsc_rows_args *a = args;
    for (int64_t s = first; s < last; s++)
        for (int64_t c = 0; c < a->channels; c++) {
            float total = 0;
            for (int64_t r = 0; r < a->rows; r++)
                total += dsc_get(a->in, (s * a->in_apart + r) * a->channels + c, a->dtype);
            dsc_put(a->out, s * a->out_apart * a->channels + c, a->dtype, a->factor * total);
        }
}

/* Block: a patch. */
static void cut(const void *args, int64_t first, int64_t last)
{
    const dsc_patches_args *a = args;
    const int64_t count = dsc_patches_count(a), channels = dsc_patches_channels(a);
    for (int64_t i = first; i < last; i++)
        for (int64_t c = 0; c < channels; c++)
            dsc_put(a->out, i * channels + c, a->dtype, a->pixels[dsc_patches_pixel(a, i / count, i % count, c)]);
}

static dsc_status rows_put(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_rows_args *a = args;
    DSC_TRY(dsc_range_dtype_check("ROWS_PUT", a->dtype, err));
    dsc_range_run(pool, a->samples * a->rows, put, a);
    return DSC_OK;
}

static dsc_status rows_sum(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_rows_args *a = args;
    DSC_ASSERT(a->in != NULL);
    DSC_TRY(dsc_range_dtype_check("ROWS_SUM", a->dtype, err));
    dsc_range_run(pool, a->samples, sum, a);
    return DSC_OK;
}

static dsc_status patches(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_patches_args *a = args;
    DSC_ASSERT(a->patch >= 1);
    DSC_TRY(dsc_range_dtype_check("PATCHES", a->dtype, err));
    dsc_range_run(pool, a->samples * dsc_patches_count(a), cut, a);
    return DSC_OK;
}

void dsc_sample_rows_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_ROWS_PUT] = rows_put;
    table->fn[DSC_KERNEL_ROWS_SUM] = rows_sum;
    table->fn[DSC_KERNEL_PATCHES] = patches;
}
