/* test_checkpoint_reshard.c - N ranks save, M load and save, N load again: the same states, and the run goes on as if
 * nothing had happened, with "reproducible": "world_size".
 *
 * N and M are all that divide a batch of 24 up to 8, at any stage, with states in memory or in files. A seed
 * (DSC_TEST_SEED) chooses some; DSC_TEST_NIGHT=1: all of them. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/toy_model.h"

static const int32_t worlds[] = { 1, 2, 3, 4, 6, 8 };
#define WORLDS ((int)DSC_COUNT(worlds))
#define PLACES 7 /* stage 0; stages 1 to 3 in memory; stages 1 to 3 in files */
#define CASES (WORLDS * WORLDS * PLACES * PLACES)
#define SAMPLE 10

static char *dir;
static dsc_model *model;
static cw_trip whole[2]; /* [bf16] of a run that nobody disturbed */

static cw_options options_of(int32_t world, int place, bool bf16)
{
    return (cw_options){ .world = world, .batch = 24, .stage = place > 3 ? place - 3 : place, .bf16 = bf16,
                         .files = place > 3 ? dir : NULL, .async = (world + place) % 2 == 0, .model = model };
}

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    model = toy_model_open(3, 120, 2, true); /* slices of 2048 elements at W = 8: every rank has some */
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const cw_options options = options_of(1, 0, bf16);
        whole[bf16] = (cw_trip){ .save_step = 1, .end_step = 3 };
        cw_run_well(&options, cw_make_trip, &whole[bf16]);
    }
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

static void there_and_back(int index)
{
    const int n = index % WORLDS, m = index / WORLDS % WORLDS, from = index / (WORLDS * WORLDS) % PLACES;
    const int to = index / (WORLDS * WORLDS * PLACES), bf16 = (index + n) % 2;
    const cw_options first = options_of(worlds[n], from, bf16), other = options_of(worlds[m], to, bf16);
    cw_trip out = { .save = cw_path(dir, "out"), .save_step = 1, .end_step = 1 };
    cw_trip over = { .load = out.save, .save = cw_path(dir, "over"), .save_step = 1, .end_step = 3 };
    cw_trip back = { .load = over.save, .save_step = 1, .end_step = 3 };
    cw_run_well(&first, cw_make_trip, &out);
    cw_run_well(&other, cw_make_trip, &over);
    cw_run_well(&first, cw_make_trip, &back);
    const cw_trip *w = &whole[bf16];
    if (strcmp(out.saved_hash, w->saved_hash) != 0 || strcmp(over.saved_hash, w->saved_hash) != 0 ||
        strcmp(back.saved_hash, w->saved_hash) != 0 || strcmp(over.end_hash, w->end_hash) != 0 ||
        strcmp(back.end_hash, w->end_hash) != 0 || memcmp(&back.loss[2], &w->loss[2], 2 * sizeof(double)) != 0)
        fail_msg("case %d: %s, %d ranks at stage %d%s, then %d at stage %d%s", index, bf16 ? "bf16" : "fp32",
                 (int)first.world, (int)first.stage, from > 3 ? " in files" : "", (int)other.world, (int)other.stage,
                 to > 3 ? " in files" : "");
    cw_expect_checkpoint(cw_path(over.save, "step-1"), w->saved_hash);
    cw_remove(out.save);
    cw_remove(over.save);
}

static void any_number_of_ranks_takes_it_and_gives_it_back(void **state)
{
    const char *given = getenv("DSC_TEST_SEED"), *night = getenv("DSC_TEST_NIGHT");
    const uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    const bool all = night != NULL && strcmp(night, "1") == 0;
    fprintf(stderr, "# seed %llu; rerun: DSC_TEST_SEED=%llu\n", (unsigned long long)seed, (unsigned long long)seed);
    /* A step that has no divisor in common with the number of cases comes to each of them. */
    for (int i = 0; i < (all ? CASES : SAMPLE); i++)
        there_and_back((int)((seed + (uint64_t)i * 431) % CASES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_number_of_ranks_takes_it_and_gives_it_back, setup, teardown),
    };
    return cmocka_run_group_tests_name("checkpoint_reshard", tests, NULL, NULL);
}
