/* moe.c - cuts the kernels of mixture of experts into tokens or tiles, and chooses the variants.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/moe_internal.h"

static dsc_status check_rule(const char *kernel, const dsc_moe_rule *rule, dsc_dtype dtype, dsc_error *err)
{
    DSC_ASSERT(dsc_moe_rule_is_valid(rule));
    return dsc_range_dtype_check(kernel, dtype, err);
}

static dsc_status route_fwd(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_moe_route_fwd_args *a = args;
    DSC_TRY(check_rule("MOE_ROUTE_FWD", &a->rule, a->dtype, err));
    dsc_range_run(pool, a->tokens, dsc_moe_route_fwd_ref, a);
    return DSC_OK;
}

static dsc_status route_bwd(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_moe_route_bwd_args *a = args;
    DSC_TRY(check_rule("MOE_ROUTE_BWD", &a->rule, a->dtype, err));
    DSC_TRY(dsc_range_dtype_check("MOE_ROUTE_BWD", a->d_dtype, err));
    dsc_range_run(pool, a->tokens, dsc_moe_route_bwd_ref, a);
    return DSC_OK;
}

static dsc_status order(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_moe_order_args *a = args;
    (void)pool;
    (void)err;
    DSC_ASSERT(a->slots >= 0);
    DSC_ASSERT(a->slots <= INT32_MAX);
    DSC_ASSERT(a->experts >= 1);
    dsc_moe_order_ref(a);
    return DSC_OK;
}

/* Copies, whose bits no variant changes. */
static void dispatch_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_dispatch_args *a = args;
    const size_t bytes = (size_t)a->channels * dsc_dtype_bytes(a->dtype);
    for (int64_t r = first; r < last; r++)
        memcpy((char *)a->out + (size_t)r * bytes, (const char *)a->in + (size_t)(a->order[r] / a->top_k) * bytes,
               bytes);
}

static dsc_status dispatch_fwd(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_moe_dispatch_args *a = args;
    DSC_TRY(dsc_range_dtype_check("MOE_DISPATCH_FWD", a->dtype, err));
    dsc_range_run(pool, a->tokens * a->top_k, dispatch_rows, a);
    return DSC_OK;
}

static dsc_status run(const dsc_cpu_threads *pool, const char *kernel, dsc_dtype dtype, int64_t tokens, dsc_range_fn fn,
                      const void *args, dsc_error *err)
{
    DSC_TRY(dsc_range_dtype_check(kernel, dtype, err));
    dsc_range_run(pool, tokens, fn, args);
    return DSC_OK;
}

static dsc_status grouped_gemm(const dsc_grouped_gemm_args *a, const dsc_cpu_threads *pool, dsc_range_fn fn,
                               dsc_error *err)
{
    int64_t tiles = 0;
    DSC_ASSERT(a->in >= 1);
    DSC_ASSERT(a->out >= 1);
    DSC_ASSERT(a->experts >= 1);
    DSC_ASSERT(a->starts[a->experts] == a->rows);
    DSC_ASSERT(a->add == NULL || a->kind != DSC_GROUPED_WEIGHT);
    for (int32_t e = 0; e < a->experts; e++)
        tiles += dsc_grouped_tiles(a, e);
    return run(pool, "GROUPED_GEMM", a->dtype, tiles, fn, a, err);
}

#define MOE_VARIANT(isa)                                                                                               \
    static dsc_status dispatch_bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                \
    {                                                                                                                  \
        const dsc_moe_dispatch_args *a = args;                                                                         \
        return run(pool, "MOE_DISPATCH_BWD", a->dtype, a->tokens, dsc_moe_dispatch_bwd_##isa, a, err);                 \
    }                                                                                                                  \
    static dsc_status combine_fwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                 \
    {                                                                                                                  \
        const dsc_moe_combine_fwd_args *a = args;                                                                      \
        return run(pool, "MOE_COMBINE_FWD", a->dtype, a->tokens, dsc_moe_combine_fwd_##isa, a, err);                   \
    }                                                                                                                  \
    static dsc_status combine_bwd_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                 \
    {                                                                                                                  \
        const dsc_moe_combine_bwd_args *a = args;                                                                      \
        return run(pool, "MOE_COMBINE_BWD", a->dtype, a->tokens, dsc_moe_combine_bwd_##isa, a, err);                   \
    }                                                                                                                  \
    static dsc_status grouped_gemm_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                \
    {                                                                                                                  \
        return grouped_gemm(args, pool, dsc_grouped_gemm_##isa, err);                                                  \
    }
MOE_VARIANT(ref)
MOE_VARIANT(avx2)
MOE_VARIANT(avx512)

void dsc_moe_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_MOE_ROUTE_FWD] = route_fwd;
    table->fn[DSC_KERNEL_MOE_ROUTE_BWD] = route_bwd;
    table->fn[DSC_KERNEL_MOE_ORDER] = order;
    table->fn[DSC_KERNEL_MOE_DISPATCH_FWD] = dispatch_fwd;
    table->fn[DSC_KERNEL_MOE_DISPATCH_BWD] = avx512 ? dispatch_bwd_avx512 : avx2 ? dispatch_bwd_avx2 : dispatch_bwd_ref;
    table->fn[DSC_KERNEL_MOE_COMBINE_FWD] = avx512 ? combine_fwd_avx512 : avx2 ? combine_fwd_avx2 : combine_fwd_ref;
    table->fn[DSC_KERNEL_MOE_COMBINE_BWD] = avx512 ? combine_bwd_avx512 : avx2 ? combine_bwd_avx2 : combine_bwd_ref;
    table->fn[DSC_KERNEL_GROUPED_GEMM] = avx512 ? grouped_gemm_avx512 : avx2 ? grouped_gemm_avx2 : grouped_gemm_ref;
}
