/* average.c - plain C for every CPU: it is bound by memory. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/average.h"
#include "kernels/cpu/range.h"

#define BLOCK 4096 /* elements */

static void average_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_average_args *a = args;
    const int64_t end = dsc_min_i64(last * BLOCK, a->count);
    for (int64_t i = first * BLOCK; i < end; i++) {
        const float change = a->share * (a->value[i] - a->average[i]);
        a->average[i] = a->share == 1 ? a->value[i] : a->average[i] + change;
    }
}

static dsc_status average(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_average_args *a = args;
    (void)err;
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT(a->share >= 0 && a->share <= 1);
    dsc_range_run(pool, dsc_div_ceil(a->count, BLOCK), average_blocks, a);
    return DSC_OK;
}

void dsc_average_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_AVERAGE] = average;
}
