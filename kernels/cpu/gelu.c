/* gelu.c - cuts activations into blocks and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

static dsc_status fwd(const dsc_gelu_fwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT((uint32_t)a->kind < DSC_ACTIVATIONS);
    DSC_TRY(dsc_range_dtype_check("GELU_FWD", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->count, DSC_GELU_BLOCK), fn, a);
    return DSC_OK;
}

static dsc_status bwd(const dsc_gelu_bwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT((uint32_t)a->kind < DSC_ACTIVATIONS);
    DSC_TRY(dsc_range_dtype_check("GELU_BWD", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->count, DSC_GELU_BLOCK), fn, a);
    return DSC_OK;
}

#define GELU_VARIANT(isa)                                                                                              \
    static dsc_status fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return fwd(args, pool, err, dsc_gelu_fwd_##isa);                                                               \
    }                                                                                                                  \
    static dsc_status bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return bwd(args, pool, err, dsc_gelu_bwd_##isa);                                                               \
    }
GELU_VARIANT(ref)
GELU_VARIANT(avx2)
GELU_VARIANT(avx512)

void dsc_gelu_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_GELU_FWD] = avx512 ? fwd_avx512 : avx2 ? fwd_avx2 : fwd_ref;
    table->fn[DSC_KERNEL_GELU_BWD] = avx512 ? bwd_avx512 : avx2 ? bwd_avx2 : bwd_ref;
}
