/* run_expect.h - expectations of run_world's runs that several tests share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_RUN_EXPECT_H
#define DSC_TESTS_RUN_EXPECT_H

#include "tests/support/run_world.h"

/* run_world; the test fails, with the config and the rank's error, unless the run ends well. */
void run_well(const run_options *options, run_result *out);

/* The test fails unless both made the same number of steps to the same bits. */
void run_expect_same(const run_result *a, const run_result *b);

/* The test fails unless what was planned is what was taken, to 1 %, and 16 KiB for tables in models as small as a
 * test's, and what was sent. */
void run_expect_planned(const run_result *r);
/* The same where `more` bytes travel in a step beside what is planned and the scalars (dsc_probe_scalar_bytes). */
void run_expect_planned_beside(const run_result *r, int64_t more);

/* For `after`: fails unless each rank has taken what was planned, to 1 % and 16 KiB. */
dsc_status run_memory_is_planned(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);

/* `most` ranks, or as many as DSC_TEST_RANKS_MAX says if that is less (on real GPUs: tests/gpu/run.sh). */
int32_t run_most_ranks(int32_t most);

#endif
