/* dropout.c - cuts dropout into blocks and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

static dsc_status run(const dsc_dropout_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT(!a->add || a->out != a->x);
    DSC_TRY(dsc_range_dtype_check("DROPOUT", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->count, DSC_DROPOUT_BLOCK), fn, a);
    return DSC_OK;
}

#define DROPOUT_VARIANT(isa)                                                                                           \
    static dsc_status run_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return run(args, pool, err, dsc_dropout_##isa);                                                                \
    }
DROPOUT_VARIANT(ref)
DROPOUT_VARIANT(avx2)
DROPOUT_VARIANT(avx512)

void dsc_dropout_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_DROPOUT] = avx512 ? run_avx512 : avx2 ? run_avx2 : run_ref;
}
