/* swiglu.c - cuts gated activations into pieces of rows and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

static dsc_status fwd(const dsc_swiglu_fwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->cols >= 1);
    DSC_ASSERT(a->in_stride >= a->cols);
    DSC_ASSERT((uint32_t)a->kind < DSC_ACTIVATIONS);
    DSC_TRY(dsc_range_dtype_check("SWIGLU_FWD", a->dtype, err));
    dsc_range_run(pool, a->rows * dsc_div_ceil(a->cols, DSC_SWIGLU_COLS), fn, a);
    return DSC_OK;
}

static dsc_status bwd(const dsc_swiglu_bwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->cols >= 1);
    DSC_ASSERT(a->in_stride >= a->cols);
    DSC_ASSERT((uint32_t)a->kind < DSC_ACTIVATIONS);
    DSC_TRY(dsc_range_dtype_check("SWIGLU_BWD", a->dtype, err));
    dsc_range_run(pool, a->rows * dsc_div_ceil(a->cols, DSC_SWIGLU_COLS), fn, a);
    return DSC_OK;
}

#define SWIGLU_VARIANT(isa)                                                                                            \
    static dsc_status fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return fwd(args, pool, err, dsc_swiglu_fwd_##isa);                                                             \
    }                                                                                                                  \
    static dsc_status bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return bwd(args, pool, err, dsc_swiglu_bwd_##isa);                                                             \
    }
SWIGLU_VARIANT(ref)
SWIGLU_VARIANT(avx2)
SWIGLU_VARIANT(avx512)

void dsc_swiglu_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_SWIGLU_FWD] = avx512 ? fwd_avx512 : avx2 ? fwd_avx2 : fwd_ref;
    table->fn[DSC_KERNEL_SWIGLU_BWD] = avx512 ? bwd_avx512 : avx2 ? bwd_avx2 : bwd_ref;
}
