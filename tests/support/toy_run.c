/* toy_run.c - see toy_run.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/toy_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

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

void toy_run_with_faults(const char *config, int32_t steps)
{
    char dir[600];
    snprintf(dir, sizeof dir, "%s/faults", toy_run_folder);
    for (int kind = 0; kind < 2; kind++) {
        int64_t n = 1;
        run_result r = { .status = DSC_ERR_COMM };
        for (; r.status != DSC_OK; n++) {
            run_options options = { .world = 2, .steps = steps, .model = toy_run_model, .config = config,
                                    .data = toy_data(toy_run_model, 1 << 20), .fault_rank = (int32_t)(n % 2),
                                    .after = run_save, .user = dir };
            *(kind == 0 ? &options.fail_alloc_at : &options.fail_comm_at) = n;
            run_world(&options, &r);
            cw_remove(dir);
            if (r.status != DSC_OK)
                assert_true(r.error.message[0] != 0);
        }
        print_message("# %d %s may fail\n", (int)n - 2, kind == 0 ? "allocations" : "collectives");
        assert_true(n > 20);
    }
}
