/* dora.c - cuts DoRA's kernels into blocks and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

static dsc_status factors(const dsc_dora_factors_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->in >= 1 && a->rank >= 1);
    DSC_ASSERT(a->out >= 1);
    DSC_TRY(dsc_range_dtype_check("DORA_FACTORS", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->out, DSC_DORA_OUTPUTS), fn, a);
    return DSC_OK;
}

static dsc_status scale(const dsc_dora_scale_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->cols >= 1);
    DSC_TRY(dsc_range_dtype_check("DORA_SCALE", a->dtype, err));
    dsc_range_run(pool, a->rows, fn, a);
    return DSC_OK;
}

static dsc_status gradient(const dsc_dora_gradient_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                           dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->cols >= 1);
    DSC_TRY(dsc_range_dtype_check("DORA_GRADIENT", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->cols, DSC_DORA_COLS), fn, a);
    return DSC_OK;
}

#define DORA_VARIANT(isa)                                                                                              \
    static dsc_status factors_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                     \
    {                                                                                                                  \
        return factors(args, pool, err, dsc_dora_factors_##isa);                                                       \
    }                                                                                                                  \
    static dsc_status scale_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                       \
    {                                                                                                                  \
        return scale(args, pool, err, dsc_dora_scale_##isa);                                                           \
    }                                                                                                                  \
    static dsc_status gradient_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                    \
    {                                                                                                                  \
        return gradient(args, pool, err, dsc_dora_gradient_##isa);                                                     \
    }
DORA_VARIANT(ref)
DORA_VARIANT(avx2)
DORA_VARIANT(avx512)

void dsc_dora_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_DORA_FACTORS] = avx512 ? factors_avx512 : avx2 ? factors_avx2 : factors_ref;
    table->fn[DSC_KERNEL_DORA_SCALE] = avx512 ? scale_avx512 : avx2 ? scale_avx2 : scale_ref;
    table->fn[DSC_KERNEL_DORA_GRADIENT] = avx512 ? gradient_avx512 : avx2 ? gradient_avx2 : gradient_ref;
}
