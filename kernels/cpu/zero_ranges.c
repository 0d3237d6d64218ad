/* zero_ranges.c - plain C for every CPU: ranges are too short to be shared among threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/range.h"

static dsc_status zero_ranges(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_zero_ranges_args *a = args;
    (void)pool;
    DSC_ASSERT(a->range_count >= 0 && a->range_count <= DSC_ZERO_RANGES_MAX);
    for (int32_t r = 0; r < a->range_count; r++) {
        DSC_ASSERT(a->first[r] >= 0);
        DSC_ASSERT(a->count[r] >= 0 && a->count[r] <= DSC_ZERO_RANGES_ELEMENTS_MAX);
        memset(a->x + a->first[r], 0, (size_t)a->count[r] * sizeof *a->x);
    }
    return DSC_OK;
}

void dsc_zero_ranges_init(dsc_kernel_table *table, uint32_t caps)
{
    table->fn[DSC_KERNEL_ZERO_RANGES] = zero_ranges;
}
