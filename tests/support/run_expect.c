/* run_expect.c - see run_expect.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/run_expect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

void run_well(const run_options *options, run_result *out)
{
    run_world(options, out);
    if (out->status != DSC_OK)
        print_error("%d ranks, %s: %s: %s\n", (int)options->world, options->config,
                    out->error.where, out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

void run_expect_same(const run_result *a, const run_result *b)
{
    assert_int_equal(a->steps, b->steps);
    assert_memory_equal(a->loss, b->loss, (size_t)a->steps * sizeof *a->loss);
    assert_memory_equal(a->norm, b->norm, (size_t)a->steps * sizeof *a->norm);
    assert_string_equal(a->hash, b->hash);
}

void run_expect_planned(const run_result *r) { run_expect_planned_beside(r, 0); }

void run_expect_planned_beside(const run_result *r, int64_t more)
{
    assert_true(r->tracked_peak <= r->planned + r->planned / 100);
    assert_true(r->tracked_peak >= r->planned - r->planned / 100 - 16384);
    /* On GPUs the scalars travel between the hosts. */
    assert_true(r->wire_bytes >= r->wire_planned && r->wire_bytes <= r->wire_planned + r->wire_scalars + more);
}

dsc_status run_memory_is_planned(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(engine, &stats);
    if (stats.tracked_peak_bytes <= stats.planned_bytes &&
        stats.planned_bytes - stats.tracked_peak_bytes <= stats.planned_bytes / 100 + 16384)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INTERNAL, "", "rank %d took %lld of %lld planned bytes", (int)rank,
                    (long long)stats.tracked_peak_bytes, (long long)stats.planned_bytes);
}

int32_t run_most_ranks(int32_t most)
{
    const char *text = getenv("DSC_TEST_RANKS_MAX");
    return text != NULL && atoi(text) < most ? atoi(text) : most;
}
