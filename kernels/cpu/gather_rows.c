/* gather_rows.c - plain C for every CPU: rows are copied. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/range.h"
#include "kernels/gather_rows.h"

static char *row_of(void *rows, int64_t row, const dsc_gather_rows_args *a)
{
    return (char *)rows + row * a->channels * (int64_t)dsc_dtype_bytes(a->dtype);
}

static void gather(const void *args, int64_t first, int64_t last)
{
    const dsc_gather_rows_args *a = args;
    const size_t bytes = (size_t)a->channels * dsc_dtype_bytes(a->dtype);
    for (int64_t r = first; r < last; r++) {
        DSC_ASSERT(a->positions[r] >= 0);
        DSC_ASSERT(a->positions[r] < a->tokens);
        memcpy(row_of(a->some, r, a), row_of(a->all, r / a->gathered * a->tokens + a->positions[r], a), bytes);
    }
}

/* Block: a sample. */
static void put_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_gather_rows_args *a = args;
    const size_t bytes = (size_t)a->channels * dsc_dtype_bytes(a->dtype);
    for (int64_t b = first; b < last; b++) {
        memset(row_of(a->all, b * a->tokens, a), 0, (size_t)a->tokens * bytes);
        for (int64_t r = b * a->gathered; r < (b + 1) * a->gathered; r++) {
            DSC_ASSERT(a->positions[r] >= 0);
            DSC_ASSERT(a->positions[r] < a->tokens);
            memcpy(row_of(a->all, b * a->tokens + a->positions[r], a), row_of(a->some, r, a), bytes);
        }
    }
}

static dsc_status check(const dsc_gather_rows_args *a, const char *kernel, dsc_error *err)
{
    DSC_ASSERT(a->batch >= 0);
    DSC_ASSERT(a->gathered >= 1);
    DSC_ASSERT(a->gathered <= a->tokens);
    return dsc_range_dtype_check(kernel, a->dtype, err);
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_gather_rows_args *a = args;
    DSC_TRY(check(a, "GATHER_ROWS_FWD", err));
    dsc_range_run(pool, a->batch * a->gathered, gather, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_gather_rows_args *a = args;
    DSC_TRY(check(a, "GATHER_ROWS_BWD", err));
    dsc_range_run(pool, a->batch, put_rows, a);
    return DSC_OK;
}

void dsc_gather_rows_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_GATHER_ROWS_FWD] = forward;
    table->fn[DSC_KERNEL_GATHER_ROWS_BWD] = backward;
}
