/* cross_entropy.c - cuts cross-entropy into rows and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

static dsc_status run(const dsc_cross_entropy_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->vocab >= 1);
    DSC_ASSERT(a->stride >= a->vocab);
    DSC_ASSERT(a->logit_scale >= 0);
    DSC_ASSERT(a->softcap >= 0);
    DSC_TRY(dsc_range_dtype_check("CROSS_ENTROPY", a->dtype, err));
    dsc_range_run(pool, a->rows, fn, a);
    return DSC_OK;
}

static dsc_status run_parts(const char *kernel, const dsc_cross_entropy_parts_args *a, const dsc_cpu_threads *pool,
                            dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->of.rows >= 0);
    DSC_ASSERT(a->of.vocab >= 0);
    DSC_ASSERT(a->of.stride >= a->of.vocab);
    DSC_ASSERT(a->first >= 0);
    DSC_TRY(dsc_range_dtype_check(kernel, a->of.dtype, err));
    dsc_range_run(pool, a->of.rows, fn, a);
    return DSC_OK;
}

#define CROSS_ENTROPY_VARIANT(isa)                                                                                     \
    static dsc_status run_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return run(args, pool, err, dsc_cross_entropy_##isa);                                                          \
    }                                                                                                                  \
    static dsc_status part_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        return run_parts("CROSS_ENTROPY_PART", args, pool, err, dsc_cross_entropy_part_##isa);                         \
    }                                                                                                                  \
    static dsc_status join_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        return run_parts("CROSS_ENTROPY_JOIN", args, pool, err, dsc_cross_entropy_join_##isa);                         \
    }
CROSS_ENTROPY_VARIANT(ref)
CROSS_ENTROPY_VARIANT(avx2)
CROSS_ENTROPY_VARIANT(avx512)

void dsc_cross_entropy_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_CROSS_ENTROPY] = avx512 ? run_avx512 : avx2 ? run_avx2 : run_ref;
    table->fn[DSC_KERNEL_CROSS_ENTROPY_PART] = avx512 ? part_avx512 : avx2 ? part_avx2 : part_ref;
    table->fn[DSC_KERNEL_CROSS_ENTROPY_JOIN] = avx512 ? join_avx512 : avx2 ? join_avx2 : join_ref;
}
