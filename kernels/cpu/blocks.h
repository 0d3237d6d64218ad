/* blocks.h - cuts an elementwise kernel into blocks for the thread pool. Private to kernels/cpu/exact.c and update.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_BLOCKS_H
#define DSC_KERNELS_CPU_BLOCKS_H

#include "base/base.h"
#include "kernels/thread_pool.h"

/* Elements of a block: a multiple of DSC_SUMSQ_CHUNK. It is small enough that a 100 k element slice feeds several
 * threads. It is large enough that computing a block (28 KiB per array and up) takes longer than handing it out. */
#define DSC_BLOCK ((int64_t)8 * DSC_SUMSQ_CHUNK)

typedef struct dsc_block_job {
    const void *args;
    const void *ops; /* of a variant */
    int64_t count;
} dsc_block_job;

static inline void dsc_blocks_run(const void *args, int64_t count, const dsc_cpu_threads *pool, const void *ops,
                                  dsc_thread_pool_fn fn)
{
    DSC_ASSERT(count >= 0);
    dsc_block_job job = { args, ops, count };
    dsc_thread_pool_run(pool, dsc_div_ceil(count, DSC_BLOCK), fn, &job);
}

static inline int64_t dsc_blocks_end(const dsc_block_job *job, int64_t last)
{
    return dsc_min_i64(last * DSC_BLOCK, job->count);
}

#endif
