/* quant.c - cuts the packing kernels into units for the thread pool and chooses the variant.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/quant_unit.h"
#include "kernels/scalar.h"
#include "kernels/thread_pool.h"

#define BLOCK_UNITS 8 /* as large as a block of the exact kernels (exact.c) */

const char *dsc_quant_text(dsc_quant quant)
{
    static const char *const texts[] = { "none", "int8", "int4", "bf16", "fp16" };
    return texts[quant];
}

typedef struct quant_job {
    const void *args;
    const dsc_quant_ops *ops;
    int64_t units, units_each; /* all pieces; one piece */
} quant_job;

static dsc_quant_unit unit_of(const void *piece, int64_t count, int64_t unit, dsc_quant quant)
{
    uint8_t *base = (uint8_t *)(uintptr_t)piece;
    return (dsc_quant_unit){ .scale = (uint16_t *)(void *)base + unit * DSC_QUANT_UNIT_BLOCKS,
                             .q = base + dsc_quant_scale_bytes(quant, count) +
                                  unit * DSC_QUANT_UNIT_BLOCKS * dsc_quant_block_bytes(quant) };
}

static void quantize_units(void *ctx, int64_t first, int64_t last)
{
    const quant_job *job = ctx;
    const dsc_quantize_args *a = job->args;
    for (int64_t u = first * BLOCK_UNITS; u < dsc_min_i64(last * BLOCK_UNITS, job->units); u++) {
        const int64_t piece = u / job->units_each, unit = u % job->units_each;
        const int64_t at = piece * a->from_stride + unit * DSC_QUANT_UNIT;
        const dsc_quant_unit to = unit_of((char *)a->to + piece * a->to_stride_bytes, a->count, unit, a->quant);
        job->ops->pack(&to, (const char *)a->from + at * (int64_t)dsc_dtype_bytes(a->from_dtype),
                       a->error != NULL ? a->error + at : NULL, a->from_dtype, a->quant);
    }
}

static void dequantize_units(void *ctx, int64_t first, int64_t last)
{
    const quant_job *job = ctx;
    const dsc_dequantize_args *a = job->args;
    for (int64_t u = first * BLOCK_UNITS; u < dsc_min_i64(last * BLOCK_UNITS, job->units); u++) {
        const int64_t piece = u / job->units_each, unit = u % job->units_each;
        const int64_t at = piece * a->to_stride + unit * DSC_QUANT_UNIT;
        const dsc_quant_unit from =
            unit_of((const char *)a->from + piece * a->from_stride_bytes, a->count, unit, a->quant);
        job->ops->unpack((char *)a->to + at * (int64_t)dsc_dtype_bytes(a->to_dtype), &from, a->to_dtype, a->quant);
    }
}

static void reduce_units(void *ctx, int64_t first, int64_t last)
{
    const quant_job *job = ctx;
    const dsc_ordered_reduce_quantized_args *a = job->args;
    for (int64_t u = first * BLOCK_UNITS; u < dsc_min_i64(last * BLOCK_UNITS, job->units); u++)
        for (int64_t k = 0; k < a->grad_part_count; k++) {
            const dsc_quant_unit leaf =
                unit_of((const char *)a->leaf + k * a->leaf_stride_bytes, a->count, u, a->quant);
            job->ops->ordered_reduce(a->acc + u * DSC_QUANT_UNIT, &leaf, a->quant, a->overwrite && k == 0);
        }
}

static dsc_status run(const void *args, int64_t count, int64_t pieces, const dsc_cpu_threads *pool,
                      const dsc_quant_ops *ops, dsc_thread_pool_fn fn)
{
    DSC_ASSERT(count >= 0 && count % DSC_QUANT_UNIT == 0);
    DSC_ASSERT(pieces >= 0);
    const int64_t units_each = count / DSC_QUANT_UNIT;
    quant_job job = { args, ops, units_each * pieces, units_each };
    dsc_thread_pool_run(pool, dsc_div_ceil(job.units, BLOCK_UNITS), fn, &job);
    return DSC_OK;
}

static bool takes(dsc_quant quant, dsc_dtype dtype)
{
    return dsc_quant_is_half(quant) ? dtype == DSC_F32 : dsc_dtype_computes(dtype);
}

static dsc_status quantize(const dsc_quantize_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                           const dsc_quant_ops *ops)
{
    if (!takes(a->quant, a->from_dtype))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "QUANTIZE", "nothing is packed from dtype %d", (int)a->from_dtype);
    return run(a, a->count, a->pieces, pool, ops, quantize_units);
}

static dsc_status dequantize(const dsc_dequantize_args *a, const dsc_cpu_threads *pool, dsc_error *err,
                             const dsc_quant_ops *ops)
{
    if (!takes(a->quant, a->to_dtype))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "DEQUANTIZE", "nothing is unpacked to dtype %d", (int)a->to_dtype);
    return run(a, a->count, a->pieces, pool, ops, dequantize_units);
}

static dsc_status ordered_reduce_quantized(const dsc_ordered_reduce_quantized_args *a, const dsc_cpu_threads *pool,
                                           dsc_error *err, const dsc_quant_ops *ops)
{
    (void)err;
    DSC_ASSERT(a->grad_part_count >= 1);
    return run(a, a->count, 1, pool, ops, reduce_units);
}

#define QUANT_VARIANT(op, isa)                                                                                         \
    static dsc_status op##_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        return op(args, pool, err, &dsc_quant_##isa);                                                                  \
    }
#define QUANT_VARIANTS(isa)                                     \
    QUANT_VARIANT(quantize, isa) QUANT_VARIANT(dequantize, isa) \
    QUANT_VARIANT(ordered_reduce_quantized, isa)
QUANT_VARIANTS(ref)
QUANT_VARIANTS(avx2)
QUANT_VARIANTS(avx512)

void dsc_quant_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_QUANTIZE] = avx512 ? quantize_avx512 : avx2 ? quantize_avx2 : quantize_ref;
    table->fn[DSC_KERNEL_DEQUANTIZE] = avx512 ? dequantize_avx512 : avx2 ? dequantize_avx2 : dequantize_ref;
    table->fn[DSC_KERNEL_ORDERED_REDUCE_QUANTIZED] =
        avx512 ? ordered_reduce_quantized_avx512 : avx2 ? ordered_reduce_quantized_avx2 : ordered_reduce_quantized_ref;
}
