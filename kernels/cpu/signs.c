/* signs.c - spreads the kernels of signs.h over the thread pool. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/signs_range.h"

static dsc_status run(const void *args, int64_t count, const dsc_cpu_threads *pool, const dsc_signs_ops *ops,
                      dsc_thread_pool_fn fn)
{
    dsc_blocks_run(args, count, pool, ops, fn);
    return DSC_OK;
}

/* A block begins at a multiple of 16 elements, so no two write one byte. */
#define SIGNS_OP(op)                                                                                      \
    static void op##_blocks(void *ctx, int64_t first, int64_t last)                                       \
    {                                                                                                     \
        const dsc_block_job *job = ctx;                                                                   \
        const dsc_signs_ops *ops = job->ops;                                                              \
        ops->op(job->args, first * DSC_BLOCK, dsc_blocks_end(job, last));                                 \
    }                                                                                                     \
    SIGNS_VARIANT(op, ref) SIGNS_VARIANT(op, avx2) SIGNS_VARIANT(op, avx512)
#define SIGNS_VARIANT(op, isa)                                                                                         \
    static dsc_status op##_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        const dsc_signs_##op##_args *a = args;                                                                         \
        (void)err;                                                                                                     \
        return run(a, a->count, pool, &dsc_signs_##isa, op##_blocks);                                                  \
    }
SIGNS_OP(add)
SIGNS_OP(pack)
SIGNS_OP(reduce)
SIGNS_OP(unpack)
SIGNS_OP(mask)
SIGNS_OP(local_step)
SIGNS_OP(synchronize)
SIGNS_OP(regain)

void dsc_signs_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_SIGNS_ADD] = avx512 ? add_avx512 : avx2 ? add_avx2 : add_ref;
    table->fn[DSC_KERNEL_SIGNS_PACK] = avx512 ? pack_avx512 : avx2 ? pack_avx2 : pack_ref;
    table->fn[DSC_KERNEL_SIGNS_REDUCE] = avx512 ? reduce_avx512 : avx2 ? reduce_avx2 : reduce_ref;
    table->fn[DSC_KERNEL_SIGNS_UNPACK] = avx512 ? unpack_avx512 : avx2 ? unpack_avx2 : unpack_ref;
    table->fn[DSC_KERNEL_SIGNS_MASK] = avx512 ? mask_avx512 : avx2 ? mask_avx2 : mask_ref;
    table->fn[DSC_KERNEL_SIGNS_LOCAL_STEP] = avx512 ? local_step_avx512 : avx2 ? local_step_avx2 : local_step_ref;
    table->fn[DSC_KERNEL_SIGNS_SYNCHRONIZE] = avx512 ? synchronize_avx512 : avx2 ? synchronize_avx2 : synchronize_ref;
    table->fn[DSC_KERNEL_SIGNS_REGAIN] = avx512 ? regain_avx512 : avx2 ? regain_avx2 : regain_ref;
}
