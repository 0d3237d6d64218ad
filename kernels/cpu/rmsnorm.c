/* rmsnorm.c - cuts RMS normalisation into rows and blocks of rows and chooses the variant.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

static dsc_status fwd(const dsc_rmsnorm_fwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT((a->add == NULL) == (a->sum == NULL));
    DSC_ASSERT(a->wide.stride == 0 || a->add == NULL);
    DSC_ASSERT(dsc_norm_rows_fit(&a->wide, a->rows, a->channels));
    DSC_TRY(dsc_range_dtype_check("RMSNORM_FWD", a->dtype, err));
    dsc_range_run(pool, a->rows, fn, a);
    return DSC_OK;
}

static dsc_status bwd(const dsc_rmsnorm_bwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn,
                      dsc_range_fn sum)
{
    DSC_ASSERT(a->rows >= 0);
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT(a->weight != NULL || a->d_weight == NULL);
    DSC_ASSERT(a->wide.stride == 0 || a->d_residual == NULL);
    DSC_ASSERT(dsc_norm_rows_fit(&a->wide, a->rows, a->channels));
    DSC_TRY(dsc_range_dtype_check("RMSNORM_BWD", a->dtype, err));
    dsc_range_run(pool, dsc_div_ceil(a->rows, DSC_LAYERNORM_BWD_ROWS), fn, a);
    if (a->d_weight != NULL)
        dsc_range_run(pool, dsc_div_ceil(a->channels, DSC_LAYERNORM_SUM_COLS), sum, a);
    return DSC_OK;
}

#define RMSNORM_VARIANT(isa)                                                                                           \
    static dsc_status fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return fwd(args, pool, err, dsc_rmsnorm_fwd_##isa);                                                            \
    }                                                                                                                  \
    static dsc_status bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return bwd(args, pool, err, dsc_rmsnorm_bwd_##isa, dsc_rmsnorm_bwd_sum_##isa);                                 \
    }
RMSNORM_VARIANT(ref)
RMSNORM_VARIANT(avx2)
RMSNORM_VARIANT(avx512)

void dsc_rmsnorm_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_RMSNORM_FWD] = avx512 ? fwd_avx512 : avx2 ? fwd_avx2 : fwd_ref;
    table->fn[DSC_KERNEL_RMSNORM_BWD] = avx512 ? bwd_avx512 : avx2 ? bwd_avx2 : bwd_ref;
}
