/* toy_run.h - trains toy_model.h's model, and a folder for what that leaves. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TOY_RUN_H
#define DSC_TESTS_TOY_RUN_H

#include "tests/support/run_world.h"
#include "tests/support/toy_model.h"

extern dsc_model *toy_run_model; /* five features, tied, with a frozen scale in each of three blocks */
extern char *toy_run_folder;     /* a new one */

/* A group's setup, and its teardown, which fails unless tests have left the folder empty. */
int toy_run_open(void **state);
int toy_run_close(void **state);

void toy_run(int32_t world, const char *config, const run_options *more, run_result *out);
/* Every allocation and every collective of a run of two ranks, and of a save after it, may fail on one: an error,
 * nothing leaked (close asserts), no hang. */
void toy_run_with_faults(const char *config, int32_t steps);

#endif
