/* pool.c - pools: a row of an output or of a gradient is one thread's. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pool_internal.h"
#include "kernels/kernels.h"

static dsc_status forward(const void *args, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn rows)
{
    const dsc_pool_args *a = args;
    DSC_ASSERT((a->shape.kind == DSC_POOL_MAX) == (a->chosen != NULL));
    DSC_TRY(dsc_range_dtype_check("POOL_FWD", a->dtype, err));
    dsc_range_run(pool, a->samples * a->shape.out_height, rows, a);
    return DSC_OK;
}

static dsc_status backward(const void *args, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn rows)
{
    const dsc_pool_args *a = args;
    DSC_ASSERT((a->shape.kind == DSC_POOL_MAX) == (a->chosen != NULL));
    DSC_TRY(dsc_range_dtype_check("POOL_BWD", a->dtype, err));
    dsc_range_run(pool, a->samples * a->shape.height, rows, a);
    return DSC_OK;
}

#define POOL_VARIANT(isa)                                                                                              \
    static dsc_status forward_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                     \
    {                                                                                                                  \
        return forward(args, pool, err, dsc_pool_fwd_##isa);                                                           \
    }                                                                                                                  \
    static dsc_status backward_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                    \
    {                                                                                                                  \
        return backward(args, pool, err, dsc_pool_bwd_##isa);                                                          \
    }
POOL_VARIANT(ref)
POOL_VARIANT(avx2)
POOL_VARIANT(avx512)

void dsc_pool_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_POOL_FWD] = avx512 ? forward_avx512 : avx2 ? forward_avx2 : forward_ref;
    table->fn[DSC_KERNEL_POOL_BWD] = avx512 ? backward_avx512 : avx2 ? backward_avx2 : backward_ref;
}
