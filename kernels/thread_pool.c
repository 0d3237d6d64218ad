/* thread_pool.c - spreads a kernel's blocks over a thread pool. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/thread_pool.h"

#include "base/tsan.h"
#include "kernels/cpu_threads.h"

/* OpenMP's runtimes hand work over by futexes that ThreadSanitizer does not see. So a thread-sanitized build reports
 * the two edges of a region: work before it is before every thread's part, and every part is before the code after
 * it. Between the threads of a region there is no edge, so that a kernel whose blocks are not independent is found.
 * The compiler's glue of a region is not instrumented: it reads the caller's frame before an edge can be reported. */
#if defined(DSC_TSAN)
#define POOL_GLUE __attribute__((noinline, no_sanitize("thread")))
#else
#define POOL_GLUE
#endif

/* Runs of blocks per thread. If a thread loses its core for a while, the others wait for at most 1/32 of its share.
 * Handing out a run costs well under a microsecond. */
#define RUNS_PER_THREAD 32

typedef struct pool_job {
    dsc_thread_pool_fn fn;
    void *ctx;
    int64_t block_count, runs;
} pool_job;

static void pool_work(const pool_job *job, int64_t run)
{
    const int64_t each = job->block_count / job->runs, more = job->block_count % job->runs;
    const int64_t first = run * each + dsc_min_i64(run, more);
    job->fn(job->ctx, first, first + each + (run < more));
}

POOL_GLUE static void pool_region(const pool_job *job, int threads, int64_t runs)
{
#pragma omp parallel num_threads(threads) default(none) firstprivate(job, runs)
    {
        DSC_TSAN_ACQUIRE(job);
        const uint32_t mode = dsc_fp_strict();
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t run = 0; run < runs; run++)
            pool_work(job, run);
        dsc_fp_restore(mode);
        DSC_TSAN_RELEASE(job);
    }
}

void dsc_thread_pool_run(const dsc_cpu_threads *pool, int64_t block_count, dsc_thread_pool_fn fn, void *ctx)
{
    DSC_ASSERT(pool->threads >= 1);
    const int64_t threads = dsc_min_i64(pool->threads, block_count);
    if (block_count == 0)
        return;
    /* The caller may itself be a thread of a region of the host program; inside ours numbers start at 0 again. */
    if (threads == 1 && omp_get_thread_num() == 0) {
        const uint32_t mode = dsc_fp_strict();
        fn(ctx, 0, block_count);
        dsc_fp_restore(mode);
        return;
    }
    const pool_job job = { fn, ctx, block_count, dsc_min_i64(block_count, threads * RUNS_PER_THREAD) };
    DSC_TSAN_RELEASE(&job);
    pool_region(&job, (int)threads, job.runs);
    DSC_TSAN_ACQUIRE(&job);
}
