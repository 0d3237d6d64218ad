/* team.c - spreads a kernel over its rank's compute team. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/team.h"

#include "kernels/cpu_team.h"

/* Runs of blocks per thread: a thread that lost its core for a while leaves at most 1/32 of its share to wait for,
 * and handing out a run costs well under a microsecond. */
#define RUNS_PER_THREAD 32

void dsc_team_run(const dsc_cpu_team *team, int64_t block_count, dsc_team_fn fn, void *ctx)
{
    DSC_ASSERT(team->threads >= 1);
    const int64_t threads = dsc_min_i64(team->threads, block_count);
    if (threads <= 1) {
        const uint32_t mode = dsc_fp_strict();
        if (block_count > 0)
            fn(ctx, 0, block_count);
        dsc_fp_restore(mode);
        return;
    }
    const int64_t runs = dsc_min_i64(block_count, threads * RUNS_PER_THREAD);
    const int64_t each = block_count / runs, more = block_count % runs;
#pragma omp parallel num_threads((int)threads)
    {
        const uint32_t mode = dsc_fp_strict();
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t run = 0; run < runs; run++) {
            const int64_t first = run * each + dsc_min_i64(run, more);
            fn(ctx, first, first + each + (run < more));
        }
        dsc_fp_restore(mode);
    }
}
