/* exact_gemm.c - cuts an exact product into tiles and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/exact_gemm_tile.h"

static dsc_status run(const dsc_exact_gemm_args *a, const dsc_cpu_threads *pool, dsc_range_fn fn)
{
    DSC_ASSERT(a->m >= 0);
    DSC_ASSERT(a->n >= 0);
    DSC_ASSERT(a->k >= 1);
    dsc_range_run(pool, exact_gemm_tile_count(a), fn, a);
    return DSC_OK;
}

#define EXACT_GEMM_VARIANT(isa)                                                                                        \
    static dsc_status exact_gemm_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                  \
    {                                                                                                                  \
        return run(args, pool, dsc_exact_gemm_##isa);                                                                  \
    }
EXACT_GEMM_VARIANT(ref)
EXACT_GEMM_VARIANT(avx2)
EXACT_GEMM_VARIANT(avx512)

void dsc_exact_gemm_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_EXACT_GEMM] = avx512 ? exact_gemm_avx512 : avx2 ? exact_gemm_avx2 : exact_gemm_ref;
}
