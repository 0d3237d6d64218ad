/* fingerprint.c - plain C for every CPU. Threads add integers to the sum, whose order cannot matter.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/fingerprint.h"

#define BLOCK 16384 /* words */

static void fingerprint_blocks(const void *args, int64_t first, int64_t last)
{
    const dsc_fingerprint_args *a = args;
    const int64_t end = dsc_min_i64(last * BLOCK, a->word_count);
    uint64_t sum = 0;
    for (int64_t i = first * BLOCK; i < end; i++)
        sum += dsc_fingerprint_mix(a->x[i], i);
    __atomic_fetch_add(a->sum, sum, __ATOMIC_RELAXED);
}

static dsc_status fingerprint(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_fingerprint_args *a = args;
    (void)err;
    DSC_ASSERT(a->word_count >= 0);
    dsc_range_run(pool, dsc_div_ceil(a->word_count, BLOCK), fingerprint_blocks, a);
    return DSC_OK;
}

void dsc_fingerprint_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_FINGERPRINT] = fingerprint;
}
