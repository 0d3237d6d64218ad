/* delta.c - cuts the gated delta rule into heads and chooses the variant. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/delta_internal.h"
#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

static void check_shape(const dsc_delta_shape *of)
{
    DSC_ASSERT(of->batch >= 1);
    DSC_ASSERT(of->tokens >= 1);
    DSC_ASSERT(of->key_heads >= 1);
    DSC_ASSERT(of->value_heads >= of->key_heads);
    DSC_ASSERT(of->value_heads % of->key_heads == 0);
    DSC_ASSERT(of->key_size >= 1 && of->key_size <= DSC_DELTA_SIZE_MAX);
    DSC_ASSERT(of->value_size >= 1 && of->value_size <= DSC_DELTA_SIZE_MAX);
}

static dsc_status delta_fwd(const dsc_delta_fwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_ASSERT(!a->resume || a->state != NULL);
    DSC_TRY(dsc_range_dtype_check("DELTA_FWD", a->dtype, err));
    dsc_range_run(pool, (int64_t)a->shape.batch * a->shape.value_heads, fn, a);
    return DSC_OK;
}

/* Samples in order. */
static void add_sums(const dsc_delta_bwd_args *a, int which, float *out)
{
    const int64_t heads = a->shape.value_heads;
    const float *sums = dsc_delta_sums(a);
    for (int64_t h = 0; h < heads && out != NULL; h++) {
        float sum = 0;
        for (int64_t b = 0; b < a->shape.batch; b++)
            sum += sums[2 * (b * heads + h) + which];
        out[h] = sum;
    }
}

static dsc_status delta_bwd(const dsc_delta_bwd_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    check_shape(&a->shape);
    DSC_TRY(dsc_range_dtype_check("DELTA_BWD", a->dtype, err));
    dsc_range_run(pool, (int64_t)a->shape.batch * a->shape.key_heads, fn, a);
    add_sums(a, 0, a->d_a_log);
    add_sums(a, 1, a->d_dt_bias);
    return DSC_OK;
}

#define DELTA_VARIANT(isa)                                                                                             \
    static dsc_status fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return delta_fwd(args, pool, err, dsc_delta_fwd_##isa);                                                        \
    }                                                                                                                  \
    static dsc_status bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        return delta_bwd(args, pool, err, dsc_delta_bwd_##isa);                                                        \
    }
DELTA_VARIANT(ref)
DELTA_VARIANT(avx2)
DELTA_VARIANT(avx512)

void dsc_delta_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_DELTA_FWD] = avx512 ? fwd_avx512 : avx2 ? fwd_avx2 : fwd_ref;
    table->fn[DSC_KERNEL_DELTA_BWD] = avx512 ? bwd_avx512 : avx2 ? bwd_avx2 : bwd_ref;
}
