/* exact.c - cuts the exact kernels into blocks for the thread pool, and the fixed-point sum.
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/exact_range.h"
#include "kernels/scalar.h"

static const dsc_exact_ops *ops_of(const dsc_block_job *job) { return job->ops; }

static void cast_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_block_job *job = ctx;
    const dsc_cast_args *a = job->args;
    const int64_t start = first * DSC_BLOCK, count = dsc_blocks_end(job, last) - start;
    const int64_t to_bytes = (int64_t)dsc_dtype_bytes(a->to_dtype);
    const int64_t from_bytes = (int64_t)dsc_dtype_bytes(a->from_dtype);
    void *to = (char *)a->to + start * to_bytes;
    const void *from = (const char *)a->from + start * from_bytes;
    if (a->to_dtype == a->from_dtype)
        memcpy(to, from, (size_t)(count * to_bytes));
    else if (a->from_dtype == DSC_F32)
        ops_of(job)->half_from_f32(to, from, count, a->to_dtype);
    else
        ops_of(job)->f32_from_half(to, from, count, a->from_dtype);
}

static dsc_status cast(const void *args, const dsc_cpu_threads *pool, dsc_error *err, const dsc_exact_ops *ops)
{
    const dsc_cast_args *a = args;
    const bool copies = a->to_dtype == a->from_dtype && dsc_dtype_bytes(a->to_dtype) != 0;
    if (!copies && !(dsc_dtype_is_half(a->to_dtype) && a->from_dtype == DSC_F32) &&
        !(a->to_dtype == DSC_F32 && dsc_dtype_is_half(a->from_dtype)))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "CAST", "no cast from dtype %d to dtype %d", (int)a->from_dtype,
                        (int)a->to_dtype);
    for (int64_t row = 0; row < dsc_max_i64(1, a->rows); row++) {
        dsc_cast_args one = *a;
        one.to = (char *)a->to + row * a->count * (int64_t)dsc_dtype_bytes(a->to_dtype);
        one.from = (const char *)a->from + row * a->from_stride * (int64_t)dsc_dtype_bytes(a->from_dtype);
        dsc_blocks_run(&one, a->count, pool, ops, cast_blocks);
    }
    return DSC_OK;
}

static void cast_stochastic_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_block_job *job = ctx;
    ops_of(job)->cast_stochastic(job->args, first * DSC_BLOCK, dsc_blocks_end(job, last));
}

static dsc_status cast_stochastic(const void *args, const dsc_cpu_threads *pool, dsc_error *err,
                                  const dsc_exact_ops *ops)
{
    const dsc_cast_stochastic_args *a = args;
    (void)err;
    DSC_ASSERT(a->first >= 0);
    dsc_blocks_run(a, a->count, pool, ops, cast_stochastic_blocks);
    return DSC_OK;
}

static void ordered_reduce_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_block_job *job = ctx;
    ops_of(job)->ordered_reduce(job->args, first * DSC_BLOCK, dsc_blocks_end(job, last));
}

static dsc_status ordered_reduce(const void *args, const dsc_cpu_threads *pool, dsc_error *err,
                                 const dsc_exact_ops *ops)
{
    const dsc_ordered_reduce_args *a = args;
    DSC_ASSERT(a->grad_part_count >= 1);
    if (!dsc_dtype_computes(a->leaf_dtype) || !dsc_dtype_computes(a->wire_dtype))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "ORDERED_REDUCE",
                        "no reduction of gradient parts of dtype %d on a wire of dtype %d", (int)a->leaf_dtype,
                        (int)a->wire_dtype);
    dsc_blocks_run(a, a->count, pool, ops, ordered_reduce_blocks);
    return DSC_OK;
}

static void add_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_block_job *job = ctx;
    ops_of(job)->add(job->args, first * DSC_BLOCK, dsc_blocks_end(job, last));
}

static dsc_status add(const void *args, const dsc_cpu_threads *pool, dsc_error *err, const dsc_exact_ops *ops)
{
    (void)err;
    dsc_blocks_run(args, ((const dsc_add_args *)args)->count, pool, ops, add_blocks);
    return DSC_OK;
}

/* Threads meet in the shared limbs by integer additions only, whose order cannot matter. */
static void fixed_sum_merge_shared(dsc_fixed_sum *sum, const dsc_fixed_sum *other)
{
    for (int i = 0; i < DSC_FIXED_LIMBS; i++)
        if (other->limb[i] != 0)
            __atomic_fetch_add(&sum->limb[i], other->limb[i], __ATOMIC_RELAXED);
    if (other->nonfinite_count != 0)
        __atomic_fetch_add(&sum->nonfinite_count, other->nonfinite_count, __ATOMIC_RELAXED);
}

/* Sums of the chunks from x[0] on; elements are rounded in a copy of a chunk. */
static void sumsq_rounded(const dsc_exact_ops *ops, double *sums, const float *x, int64_t count, dsc_dtype round_dtype)
{
    float chunk[DSC_SUMSQ_CHUNK];
    for (int64_t start = 0; start < count; start += DSC_SUMSQ_CHUNK) {
        const int64_t length = dsc_min_i64(DSC_SUMSQ_CHUNK, count - start);
        const dsc_ordered_reduce_args rounded = { .acc = chunk,
                                                  .leaf = x + start,
                                                  .grad_part_count = 1,
                                                  .count = length,
                                                  .leaf_dtype = DSC_F32,
                                                  .wire_dtype = round_dtype,
                                                  .overwrite = true };
        ops->ordered_reduce(&rounded, 0, length);
        ops->sumsq(sums + start / DSC_SUMSQ_CHUNK, chunk, length);
    }
}

static void sumsq_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_block_job *job = ctx;
    const dsc_sumsq_args *a = job->args;
    dsc_fixed_sum local = { .nonfinite_count = 0 };
    for (int64_t block = first; block < last; block++) {
        const int64_t start = block * DSC_BLOCK, count = dsc_blocks_end(job, block + 1) - start;
        double sums[DSC_BLOCK / DSC_SUMSQ_CHUNK];
        if (a->round_dtype == DSC_F32)
            ops_of(job)->sumsq(sums, a->x + start, count);
        else
            sumsq_rounded(ops_of(job), sums, a->x + start, count, a->round_dtype);
        for (int64_t c = 0; c * DSC_SUMSQ_CHUNK < count; c++)
            dsc_fixed_sum_add(&local, sums[c]);
    }
    fixed_sum_merge_shared(a->sum, &local);
}

static dsc_status sumsq(const void *args, const dsc_cpu_threads *pool, dsc_error *err, const dsc_exact_ops *ops)
{
    const dsc_sumsq_args *a = args;
    if (!dsc_dtype_computes(a->round_dtype))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "SUMSQ", "no rounding to dtype %d", (int)a->round_dtype);
    dsc_blocks_run(a, a->count, pool, ops, sumsq_blocks);
    return DSC_OK;
}

#define EXACT_VARIANT(op, isa)                                                                                         \
    static dsc_status op##_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        return op(args, pool, err, &dsc_exact_##isa);                                                                  \
    }
#define EXACT_VARIANTS(isa)                                                                        \
    EXACT_VARIANT(cast, isa) EXACT_VARIANT(cast_stochastic, isa)                                   \
    EXACT_VARIANT(ordered_reduce, isa) EXACT_VARIANT(add, isa) EXACT_VARIANT(sumsq, isa)           \
    static void table_##isa(dsc_kernel_table *table)                                               \
    {                                                                                              \
        table->fn[DSC_KERNEL_CAST] = cast_##isa;                                                   \
        table->fn[DSC_KERNEL_CAST_STOCHASTIC] = cast_stochastic_##isa;                             \
        table->fn[DSC_KERNEL_ORDERED_REDUCE] = ordered_reduce_##isa;                               \
        table->fn[DSC_KERNEL_ADD] = add_##isa;                                                     \
        table->fn[DSC_KERNEL_SUMSQ] = sumsq_##isa;                                                 \
    }
EXACT_VARIANTS(ref)
EXACT_VARIANTS(avx2)
EXACT_VARIANTS(avx512)

void dsc_exact_init(dsc_kernel_table *table, uint32_t caps)
{
    table_ref(table);
    if ((caps & DSC_CPU_AVX2) != 0)
        table_avx2(table);
    if ((caps & DSC_CPU_AVX512) != 0)
        table_avx512(table);
}

/* Limb i counts units of 2^(32 i - FIXED_BIAS). The smallest denormal double is 2^-1074, which is in limb 2, and the
 * largest double ends in limb 68: nothing falls off either end, and sums have room above. */
#define FIXED_BIAS 1152

void dsc_fixed_sum_add(dsc_fixed_sum *sum, double value)
{
    if (!(value >= 0.0 && value <= DBL_MAX)) {
        sum->nonfinite_count++;
        return;
    }
    uint64_t bits;
    memcpy(&bits, &value, 8);
    /* value = mantissa * 2^(exponent - 1075), denormals with exponent 1 and without the implied bit. */
    const int biased = (int)(bits >> 52 & 0x7ff);
    const int exponent = biased > 1 ? biased : 1;
    const uint64_t mantissa = (bits & 0xfffffffffffffu) | (uint64_t)(biased != 0) << 52;
    const int shift = exponent - 1075 + FIXED_BIAS;
    const unsigned __int128 wide = (unsigned __int128)mantissa << (shift % 32);
    int64_t *limb = &sum->limb[shift / 32];
    limb[0] += (int64_t)(uint32_t)wide;
    limb[1] += (int64_t)(uint32_t)(wide >> 32);
    limb[2] += (int64_t)(uint32_t)(wide >> 64);
}

void dsc_fixed_sum_merge(dsc_fixed_sum *sum, const dsc_fixed_sum *other)
{
    for (int i = 0; i < DSC_FIXED_LIMBS; i++)
        sum->limb[i] += other->limb[i];
    sum->nonfinite_count += other->nonfinite_count;
}

double dsc_fixed_sum_value(const dsc_fixed_sum *sum)
{
    if (sum->nonfinite_count != 0)
        return (double)INFINITY;
    uint32_t digit[DSC_FIXED_LIMBS];
    uint64_t carry = 0;
    int top = -1;
    for (int i = 0; i < DSC_FIXED_LIMBS; i++) {
        const uint64_t total = (uint64_t)sum->limb[i] + carry;
        digit[i] = (uint32_t)total;
        carry = total >> 32;
        if (digit[i] != 0)
            top = i;
    }
    DSC_ASSERT(carry == 0);
    if (top < 2)
        return 0.0; /* nothing that was added reaches below limb 2 */
    /* The top 96 bits hold at least 65 that matter; what lies below only breaks ties: one sticky bit stands for it. */
    unsigned __int128 wide = (unsigned __int128)digit[top] << 64 | (uint64_t)digit[top - 1] << 32 | digit[top - 2];
    for (int i = 0; i < top - 2; i++)
        if (digit[i] != 0)
            wide |= 1;
    return ldexp((double)wide, 32 * (top - 2) - FIXED_BIAS);
}
