/* thread_pool.h - spreads a kernel's blocks over a thread pool.
 *
 * A kernel numbers its work in blocks whose size depends on the shape only; a block's bits do not depend on the thread
 * that computes it. Threads take blocks as they become free, so a busy core slows the pool by its own share only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_THREAD_POOL_H
#define DSC_KERNELS_THREAD_POOL_H

#include "kernels/kernels.h"

/* Computes blocks first..last-1. Called concurrently, for disjoint runs of blocks that cover all. */
typedef void (*dsc_thread_pool_fn)(void *ctx, int64_t first, int64_t last);

/* Every block once; returns when all are done. The floating-point mode inside is IEEE's default (nearest, denormals
 * kept) whatever the calling program has set; each thread gets its own mode back. */
void dsc_thread_pool_run(const dsc_cpu_threads *pool, int64_t block_count, dsc_thread_pool_fn fn, void *ctx);

#endif
