/* toy_run.c - see toy_run.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/toy_run.h"

#include <stdlib.h>
#include <unistd.h>

#include "tests/support/ckpt_world.h"

dsc_model *toy_run_model;
char *toy_run_folder;

int toy_run_open(void **state)
{
    toy_run_model = toy_model_open(5, 61, 3, true);
    toy_run_folder = cw_tmp_open();
    return 0;
}

int toy_run_close(void **state)
{
    toy_model_close(toy_run_model);
    const int left = rmdir(toy_run_folder); /* not cw_tmp_close: tests leave nothing */
    free(toy_run_folder);
    return left;
}

void toy_run(int32_t world, const char *config, const run_options *more, run_result *out)
{
    run_model(toy_run_model, toy_data(toy_run_model, 1 << 20), world, config, more, out);
}
