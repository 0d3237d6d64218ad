/* nf4.c - cuts the unpacking of NF4 weights into parts and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"
#include "kernels/nf4.h"

static dsc_status run(const dsc_nf4_unpack_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->count >= 0);
    DSC_ASSERT(a->first >= 0 && a->first % DSC_NF4_BLOCK == 0);
    DSC_ASSERT(a->tops == NULL || a->block >= 0);
    DSC_TRY(dsc_range_dtype_check("NF4_UNPACK", a->to_dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->count, DSC_NF4_PART), fn, a);
    return DSC_OK;
}

#define NF4_VARIANT(isa)                                                                                               \
    static dsc_status run_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return run(args, pool, err, dsc_nf4_unpack_##isa);                                                             \
    }
NF4_VARIANT(ref)
NF4_VARIANT(avx2)
NF4_VARIANT(avx512)

void dsc_nf4_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_NF4_UNPACK] = avx512 ? run_avx512 : avx2 ? run_avx2 : run_ref;
}
