/* places.c - plain C for every CPU: a sample is one thread's. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/places.h"

static void count_samples(const void *args, int64_t first, int64_t last)
{
    const dsc_places_args *a = args;
    for (int64_t b = first; b < last; b++) {
        int32_t place = a->padding;
        for (int64_t i = b * a->sequence; i < (b + 1) * a->sequence; i++) {
            const bool counts = a->tokens[i] != a->padding;
            place += counts;
            a->places[i] = counts ? place : a->padding;
        }
    }
}

static dsc_status run(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_places_args *a = args;
    (void)err;
    DSC_ASSERT(a->batch >= 0);
    DSC_ASSERT(a->sequence >= 1);
    DSC_ASSERT(a->sequence < 1 << 30);
    DSC_ASSERT(a->padding >= 0);
    dsc_range_run(pool, a->batch, count_samples, a);
    return DSC_OK;
}

void dsc_places_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_PLACES] = run;
}
