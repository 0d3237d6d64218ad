/* test_checkpoint_reshard.c - N ranks save, M load and save, N load again: the same states, and the run goes on as if
 * nothing had happened, with "reproducible": "world_size".
 *
 * N and M are the divisors up to 8 of a batch of 24, at any stage, with states in memory or in files. The models are
 * trained whole, with adapters, or frozen in part. A seed (DSC_TEST_SEED) chooses some of the cases;
 * DSC_TEST_NIGHT=1 runs all of them. SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/toy_model.h"

static const int32_t worlds[] = { 1, 2, 3, 4, 6, 8 };
#define WORLDS ((int)DSC_COUNT(worlds))
#define PLACES 7 /* stage 0; stages 1 to 3 in memory; stages 1 to 3 in files */
typedef enum kind { WHOLE, ADAPTERS, FROZEN, KINDS } kind;
#define CASES (KINDS * WORLDS * WORLDS * PLACES * PLACES)
#define SAMPLE 12

static const char *const kind_name[KINDS] = { "", ", adapters", ", frozen in part" };
static char *dir;
static dsc_model *model[KINDS];
static cw_trip whole[KINDS][2]; /* [bf16] of a run that nobody disturbed */

static cw_options options_of(kind k, int32_t world, int place, bool bf16)
{
    return (cw_options){ .world = world, .batch = 24, .stage = place > 3 ? place - 3 : place, .bf16 = bf16,
                         .files = place > 3 ? dir : NULL, .async = (world + place) % 2 == 0, .model = model[k],
                         .own = k == FROZEN ? ", \"freeze\": [\"*\", \"!*.1.*_proj.*\", \"!*norm*\"]" : NULL };
}

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    model[WHOLE] = toy_model_open(3, 120, 2, true); /* slices of 2048 elements at W = 8: every rank has some */
    model[ADAPTERS] = tiny_model_open(tiny_models[0].config, &tiny_lora);
    model[FROZEN] = tiny_model_open(tiny_models[0].config, NULL);
    for (int k = 0; k < KINDS; k++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const cw_options options = options_of((kind)k, 1, 0, bf16);
            whole[k][bf16] = (cw_trip){ .save_step = 1, .end_step = 3 };
            cw_run_well(&options, cw_make_trip, &whole[k][bf16]);
        }
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(model[WHOLE]);
    dsc_model_close(&model[ADAPTERS]);
    dsc_model_close(&model[FROZEN]);
    cw_tmp_close(dir);
    return 0;
}

static void there_and_back(int index)
{
    const kind k = (kind)(index % KINDS);
    const int n = index / KINDS % WORLDS, m = index / (KINDS * WORLDS) % WORLDS;
    const int places = index / (KINDS * WORLDS * WORLDS), from = places % PLACES, to = places / PLACES;
    const int bf16 = (index + n) % 2;
    const cw_options first = options_of(k, worlds[n], from, bf16);
    cw_options other = options_of(k, worlds[m], to, bf16);
    other.seed = 77; /* other first weights: none may be left, frozen ones neither */
    cw_trip out = { .save = cw_path(dir, "out"), .save_step = 1, .end_step = 1 };
    cw_trip over = { .load = out.save, .save = cw_path(dir, "over"), .save_step = 1, .end_step = 3 };
    cw_trip back = { .load = over.save, .save_step = 1, .end_step = 3 };
    cw_run_well(&first, cw_make_trip, &out);
    cw_run_well(&other, cw_make_trip, &over);
    cw_run_well(&first, cw_make_trip, &back);
    const cw_trip *w = &whole[k][bf16];
    if (strcmp(out.saved_hash, w->saved_hash) != 0 || strcmp(over.saved_hash, w->saved_hash) != 0 ||
        strcmp(back.saved_hash, w->saved_hash) != 0 || strcmp(over.end_hash, w->end_hash) != 0 ||
        strcmp(back.end_hash, w->end_hash) != 0 || memcmp(&back.loss[2], &w->loss[2], 2 * sizeof(double)) != 0)
        fail_msg("case %d: %s%s, %d ranks at stage %d%s, then %d at stage %d%s", index, bf16 ? "bf16" : "fp32",
                 kind_name[k], (int)first.world, (int)first.stage, from > 3 ? " in files" : "", (int)other.world,
                 (int)other.stage, to > 3 ? " in files" : "");
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
