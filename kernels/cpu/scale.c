/* scale.c - plain C for every CPU: its arrays are a rank wide, small beside the products before and after.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/range.h"

#define BLOCK 4096 /* elements */

static void scale_range(const dsc_scale_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    for (int64_t i = first; i < last; i++)
        dsc_put(a->x, i, dtype, dsc_get(a->x, i, dtype) * a->factor);
}

static void cap_range(const dsc_scale_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    for (int64_t i = first; i < last; i++) {
        const float x = dsc_get(a->x, i, dtype) * a->factor;
        const float t = a->capped != NULL ? dsc_get(a->capped, i, dtype) / a->cap : tanhf(x / a->cap);
        dsc_put(a->x, i, dtype, a->capped != NULL ? x * (1 - t * t) : a->cap * t);
    }
}

static void scale_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_scale_args *a = args;
    const int64_t end = dsc_min_i64(last * BLOCK, a->count);
    if (a->cap != 0)
        cap_range(a, first * BLOCK, end, a->dtype);
    else
        DSC_FOR_DTYPE(a->dtype, scale_range(a, first * BLOCK, end, dtype));
}

static dsc_status scale(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_scale_args *a = args;
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT(a->cap >= 0);
    DSC_ASSERT(a->capped == NULL || a->cap > 0);
    DSC_TRY(dsc_range_dtype_check("SCALE", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->count, BLOCK), scale_blocks, a);
    return DSC_OK;
}

void dsc_scale_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_SCALE] = scale;
}
