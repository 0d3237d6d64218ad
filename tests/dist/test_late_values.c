/* test_late_values.c - an engine whose parameters get their values when they are needed (DSC_ENGINE_LATE_VALUES): none
 * are made where a load comes first, and the run is the same run. The model's files have values of some tensors and not
 * of others, as those of a model with new adapters. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

static char *dir; /* folder of the running test */
static dsc_model *model, filed;
static atomic_int asked, damaged;

/* Every second parameter of a module has values. */
static dsc_status load_param(const dsc_model *m, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    atomic_fetch_add(&asked, 1);
    if (atomic_load(&damaged))
        return DSC_FAIL(err, DSC_ERR_INPUT, "model.safetensors", "is damaged");
    *found = (module + param) % 2 == 1;
    for (int64_t i = 0; *found && i < count; i++)
        out[i] = 0.25f / (float)(1 + (first + i) % 7);
    return DSC_OK;
}

static int setup(void **state)
{
    dir = cw_tmp_open();
    model = toy_model_open(5, 37, 2, true);
    filed = *model;
    filed.load_param = load_param;
    atomic_store(&asked, 0);
    atomic_store(&damaged, 0);
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

static void a_fresh_run_is_the_same(void **state)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            cw_trip trip[2];
            for (int late = 0; late < 2; late++) {
                const cw_options options = { .world = 3, .stage = stage, .bf16 = bf16, .model = &filed,
                                             .flags = late ? DSC_ENGINE_LATE_VALUES : 0 };
                trip[late] = (cw_trip){ .save_step = 1, .end_step = 2 };
                cw_run_well(&options, cw_make_trip, &trip[late]);
            }
            assert_string_equal(trip[0].end_hash, trip[1].end_hash);
            assert_memory_equal(trip[0].loss, trip[1].loss, sizeof trip[0].loss);
        }
}

static void a_load_makes_none(void **state)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            cw_options options = { .world = 2, .stage = stage, .bf16 = bf16, .model = &filed };
            cw_trip whole = { .save = dir, .save_step = 2, .end_step = 4 }, rest = { .load = dir, .save_step = 2,
                                                                                     .end_step = 4 };
            cw_run_well(&options, cw_make_trip, &whole);
            options.flags = DSC_ENGINE_LATE_VALUES;
            options.files = stage == 3 ? dir : NULL;
            atomic_store(&asked, 0);
            cw_run_well(&options, cw_make_trip, &rest);
            assert_int_equal(atomic_load(&asked), 0);
            assert_string_equal(whole.saved_hash, rest.saved_hash);
            assert_string_equal(whole.end_hash, rest.end_hash);
            cw_remove(cw_path(dir, "step-2"));
            cw_remove(cw_path(dir, "latest"));
        }
}

/* ---- whoever needs them ---- */

typedef dsc_status (*call)(dsc_engine *engine, dsc_error *err);

static dsc_status forward(dsc_engine *engine, dsc_error *err) { return dsc_engine_forward(engine, NULL, NULL, err); }

static dsc_status evaluate(dsc_engine *engine, dsc_error *err)
{
    const dsc_data_source data = toy_data(model, 16);
    double loss;
    return dsc_engine_evaluate(engine, &data, 1, &loss, err);
}

static dsc_status save(dsc_engine *engine, dsc_error *err) { return dsc_engine_save(engine, dir, err); }

static dsc_status save_start(dsc_engine *engine, dsc_error *err)
{
    DSC_TRY(dsc_engine_save_start(engine, dir, err));
    return dsc_engine_save_wait(engine, NULL, err);
}

static dsc_status load_what_is_not_there(dsc_engine *engine, dsc_error *err)
{
    dsc_error why = DSC_ERROR_INIT;
    CW_CHECK(dsc_engine_load(engine, cw_path(dir, "nowhere"), &why) == DSC_ERR_INPUT);
    CW_CHECK(dsc_probe_values_due(engine));
    return dsc_engine_barrier(engine, err);
}

static const call calls[] = { forward, evaluate, save, save_start, dsc_engine_barrier, load_what_is_not_there };

static dsc_status need(cw_rank *rank, dsc_error *err)
{
    const call *c = rank->user;
    CW_CHECK(dsc_probe_values_due(rank->engine));
    const dsc_status status = (*c)(rank->engine, err);
    CW_CHECK(atomic_load(&asked) > 0);
    return status;
}

static void each_call_that_needs_them_makes_them(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(calls); i++)
        for (int bad = 0; bad < 2; bad++) {
            const cw_options options = { .world = 2, .stage = 2, .model = &filed, .async = true,
                                         .flags = DSC_ENGINE_LATE_VALUES };
            cw_rank ranks[CW_RANKS_MAX];
            call c = calls[i];
            atomic_store(&asked, 0);
            atomic_store(&damaged, bad);
            cw_run(&options, need, &c, ranks);
            for (int r = 0; r < 2; r++) {
                assert_int_equal(ranks[r].status, bad ? DSC_ERR_INPUT : DSC_OK);
                assert_true(!bad || strstr(ranks[r].error.message, "is damaged") != NULL);
            }
            cw_remove(cw_path(dir, "step-0"));
            cw_remove(cw_path(dir, "latest"));
        }
}

/* ---- a load that fails half way ---- */

static dsc_status train_after_damage(cw_rank *rank, dsc_error *err)
{
    char *end = rank->user, hex[65];
    dsc_error why = DSC_ERROR_INIT;
    CW_CHECK(dsc_engine_load(rank->engine, dir, &why) == DSC_ERR_INPUT);
    CW_CHECK(strstr(why.message, "is damaged at elements") != NULL && dsc_probe_values_due(rank->engine));
    DSC_TRY(cw_train(rank, 2, err));
    cw_hash(rank, hex);
    if (rank->rank == 0)
        memcpy(end, hex, 65);
    return DSC_OK;
}

static void a_bad_load_leaves_them_due(void **state)
{
    for (int stage = 1; stage <= 3; stage++) {
        cw_options options = { .world = 2, .stage = stage, .bf16 = true, .model = &filed };
        cw_trip whole = { .save = dir, .save_step = 2, .end_step = 2 };
        cw_run_well(&options, cw_make_trip, &whole);
        size_t bytes;
        const char *const file = cw_path(dir, "step-2/optimizer.safetensors");
        char *data = cw_read(file, &bytes), end[65];
        data[bytes - 1] ^= 1;
        cw_write(file, data, bytes);
        free(data);
        options.flags = DSC_ENGINE_LATE_VALUES;
        atomic_store(&asked, 0);
        cw_run_well(&options, train_after_damage, end);
        assert_string_equal(end, whole.end_hash);
        cw_remove(cw_path(dir, "step-2"));
        cw_remove(cw_path(dir, "latest"));
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_fresh_run_is_the_same),
        TEST(a_load_makes_none),
        TEST(each_call_that_needs_them_makes_them),
        TEST(a_bad_load_leaves_them_due),
    };
    return cmocka_run_group_tests_name("late_values", tests, NULL, NULL);
}
