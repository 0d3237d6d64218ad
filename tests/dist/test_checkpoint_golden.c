/* test_checkpoint_golden.c - checkpoints of format version 1 that were written once and must load for ever. They
 * verify and have the recorded hash, and any number of ranks has the same hash in memory after a load.
 *
 * DSC_GOLDEN=write makes tests/golden/checkpoint-1 anew: only for a new version of the format, in a new folder.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/checkpoint/checkpoint.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/toy_model.h"

#define FOLDER "tests/golden/checkpoint-1"

/* fp32 by one rank; bf16 by three, whose slices cut tensors; moments in bf16 by two. */
static const struct golden {
    const char *name;
    int32_t world, stage;
    bool bf16, bf16_moments;
} golden[] = {
    { "fp32", 1, 0, false, false },
    { "bf16", 3, 3, true, false },
    { "bf16-moments", 2, 1, true, true },
};

static dsc_model *model_of_all(void)
{
    dsc_model *model = toy_model_open(3, 60, 1, true);
    model->config_json = "{\"model_type\": \"toy\"}\n";
    return model;
}

static char *path_of(const struct golden *g, const char *name) { return cw_path(cw_path(FOLDER, g->name), name); }

static void write_all(dsc_model *model)
{
    for (size_t i = 0; i < DSC_COUNT(golden); i++) {
        const struct golden *g = &golden[i];
        const cw_options options = { .world = g->world, .stage = g->stage, .bf16 = g->bf16,
                                     .bf16_moments = g->bf16_moments, .model = model };
        cw_trip trip = { .save = cw_path(FOLDER, g->name), .save_step = 2, .end_step = 2 };
        cw_run_well(&options, cw_make_trip, &trip);
        trip.saved_hash[64] = '\n';
        cw_write(path_of(g, "hash"), trip.saved_hash, 65);
    }
}

static void they_load(void **state)
{
    dsc_model *model = model_of_all();
    const char *mode = getenv("DSC_GOLDEN");
    if (mode != NULL && strcmp(mode, "write") == 0)
        write_all(model);
    for (size_t i = 0; i < DSC_COUNT(golden); i++) {
        const struct golden *g = &golden[i];
        size_t bytes;
        if (!cw_exists(path_of(g, "hash")))
            fail_msg(FOLDER " is not there: run from the repository's root");
        char *hex = cw_read(path_of(g, "hash"), &bytes);
        assert_int_equal(bytes, 65);
        hex[64] = 0;
        cw_expect_checkpoint(path_of(g, "step-2"), hex);
        for (int32_t world = 1; world <= 4; world++) {
            const cw_options options = { .world = world, .stage = world % 4, .bf16 = g->bf16,
                                         .bf16_moments = g->bf16_moments, .model = model };
            cw_trip trip = { .load = cw_path(FOLDER, g->name), .save_step = 2, .end_step = 3 };
            cw_run_well(&options, cw_make_trip, &trip);
            assert_string_equal(trip.saved_hash, hex);
        }
        free(hex);
    }
    toy_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(they_load) };
    return cmocka_run_group_tests_name("checkpoint_golden", tests, NULL, NULL);
}
