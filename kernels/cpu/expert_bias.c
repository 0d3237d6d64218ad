/* expert_bias.c - plain C for every CPU: one addition an element. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

enum { SUM_COLS = 64 }; /* columns of a block of sums */

static int32_t expert_of(const int32_t *starts, int32_t experts, int64_t row)
{
    int32_t low = 0, high = experts - 1;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (row >= starts[middle + 1])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline void add_row(const dsc_expert_bias_fwd_args *a, int64_t row, dsc_dtype dtype)
{
    const int64_t first = row * a->cols, bias = expert_of(a->starts, a->experts, row) * a->cols;
    for (int64_t c = 0; c < a->cols; c++)
        dsc_put(a->x, first + c, dtype, dsc_get(a->x, first + c, dtype) + dsc_get(a->bias, bias + c, dtype));
}

/* Block: a row. */
static void add_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_expert_bias_fwd_args *a = args;
    for (int64_t row = first; row < last; row++)
        DSC_FOR_DTYPE(a->dtype, add_row(a, row, dtype));
}

static inline void sum_cols(const dsc_expert_bias_bwd_args *a, int32_t expert, int64_t c0, dsc_dtype dtype)
{
    const int64_t count = dsc_min_i64(SUM_COLS, a->cols - c0);
    float sum[SUM_COLS] = { 0 };
    for (int64_t row = a->starts[expert]; row < a->starts[expert + 1]; row++)
        for (int64_t c = 0; c < count; c++)
            sum[c] += dsc_get(a->d_x, row * a->cols + c0 + c, dtype);
    for (int64_t c = 0; c < count; c++)
        a->d_bias[expert * a->cols + c0 + c] = sum[c];
}

/* Block: some columns of an expert. */
static void sum_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_expert_bias_bwd_args *a = args;
    const int64_t across = dsc_div_ceil(a->cols, SUM_COLS);
    for (int64_t block = first; block < last; block++)
        DSC_FOR_DTYPE(a->dtype, sum_cols(a, (int32_t)(block / across), block % across * SUM_COLS, dtype));
}

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_expert_bias_fwd_args *a = args;
    DSC_ASSERT(a->experts >= 1);
    DSC_ASSERT(a->starts[a->experts] == a->rows);
    DSC_TRY(dsc_range_dtype_check("EXPERT_BIAS_FWD", a->dtype, err));
    dsc_range_run(pool, a->rows, add_rows, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_expert_bias_bwd_args *a = args;
    DSC_ASSERT(a->experts >= 1);
    DSC_ASSERT(a->starts[a->experts] == a->rows);
    DSC_TRY(dsc_range_dtype_check("EXPERT_BIAS_BWD", a->dtype, err));
    dsc_range_run(pool, a->experts * dsc_div_ceil(a->cols, SUM_COLS), sum_rows, a);
    return DSC_OK;
}

void dsc_expert_bias_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_EXPERT_BIAS_FWD] = forward;
    table->fn[DSC_KERNEL_EXPERT_BIAS_BWD] = backward;
}
