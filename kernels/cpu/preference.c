/* preference.c - plain C for every CPU: a sequence is a few thousand additions. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/preference.h"

static void weigh_pairs(const void *args, int64_t first, int64_t last)
{
    const dsc_preference_args *a = args;
    for (int64_t p = first; p < last; p++) {
        const float *losses = a->losses + 2 * p * a->items;
        const double chosen = -dsc_preference_sum(losses, a->items) - a->reference[2 * p];
        const double rejected = -dsc_preference_sum(losses + a->items, a->items) - a->reference[2 * p + 1];
        const float weight = (float)dsc_preference_weight(a->beta, a->smoothing, chosen - rejected);
        float *weights = a->weights + 2 * p * a->items;
        for (int64_t i = 0; i < a->items; i++) {
            weights[i] = weight;
            weights[a->items + i] = -weight;
        }
    }
}

static dsc_status preference(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_preference_args *a = args;
    DSC_ASSERT(a->pairs >= 0);
    DSC_ASSERT(a->items >= 1);
    dsc_range_run(pool, a->pairs, weigh_pairs, a);
    return DSC_OK;
}

void dsc_preference_init(dsc_kernel_table *table, uint32_t caps) { table->fn[DSC_KERNEL_PREFERENCE] = preference; }
