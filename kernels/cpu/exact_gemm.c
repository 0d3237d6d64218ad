/* exact_gemm.c - cuts an exact product into tiles and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/exact_gemm_tile.h"

static dsc_status run(const dsc_exact_gemm_args *a, const dsc_cpu_threads *team, dsc_range_fn fn)
{
    DSC_ASSERT(a->m >= 0);
    DSC_ASSERT(a->n >= 0);
    DSC_ASSERT(a->k >= 1);
    dsc_range_run(team, product_tile_count(a), fn, a);
    return DSC_OK;
}

#define PRODUCT_VARIANT(isa)                                                                                           \
    static dsc_status product_##isa(const void *args, const dsc_cpu_threads *team, dsc_error *err)                     \
    {                                                                                                                  \
        return run(args, team, dsc_exact_gemm_##isa);                                                                  \
    }
PRODUCT_VARIANT(ref)
PRODUCT_VARIANT(avx2)
PRODUCT_VARIANT(avx512)

void dsc_exact_gemm_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_PRODUCT] = avx512 ? product_avx512 : avx2 ? product_avx2 : product_ref;
}
