/* mean_rows.c - plain C for every CPU: a channel's sum is one thread's. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/mean_rows.h"

/* Block: a sample. */
static void add_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_mean_rows_args *a = args;
    for (int64_t b = first; b < last; b++) {
        const int64_t count = a->last[b] + (int64_t)1;
        DSC_ASSERT(count >= 1);
        DSC_ASSERT(count <= a->tokens);
        for (int64_t c = 0; c < a->channels; c++) {
            float sum = 0;
            for (int64_t t = 0; t < count; t++)
                sum += dsc_get(a->all, (b * a->tokens + t) * a->channels + c, a->dtype);
            dsc_put(a->some, b * a->channels + c, a->dtype, sum / (float)count);
        }
    }
}

static void share_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_mean_rows_args *a = args;
    for (int64_t b = first; b < last; b++) {
        const int64_t count = a->last[b] + (int64_t)1;
        for (int64_t t = 0; t < a->tokens; t++)
            for (int64_t c = 0; c < a->channels; c++) {
                const float share = dsc_get(a->some, b * a->channels + c, a->dtype) / (float)count;
                dsc_put(a->all, (b * a->tokens + t) * a->channels + c, a->dtype, t < count ? share : 0);
            }
    }
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_mean_rows_args *a = args;
    DSC_TRY(dsc_range_dtype_check("MEAN_ROWS_FWD", a->dtype, err));
    dsc_range_run(pool, a->batch, add_rows, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_mean_rows_args *a = args;
    DSC_TRY(dsc_range_dtype_check("MEAN_ROWS_BWD", a->dtype, err));
    dsc_range_run(pool, a->batch, share_rows, a);
    return DSC_OK;
}

void dsc_mean_rows_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_MEAN_ROWS_FWD] = forward;
    table->fn[DSC_KERNEL_MEAN_ROWS_BWD] = backward;
}
