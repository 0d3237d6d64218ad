/* test_checkpoint_best.c - which checkpoint DIR/best names, that retention keeps it, and that a kill in between leaves
 * the earlier name or the new one. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/checkpoint/checkpoint.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

static char *dir, *run_dir;
static dsc_model *model;
static dsc_alloc *alloc;
static dsc_error err;

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    run_dir = strdup(cw_path(dir, "run"));
    model = toy_model_open(3, 8, 1, true);
    err = (dsc_error)DSC_ERROR_INIT;
    return dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    toy_model_close(model);
    free(run_dir);
    cw_tmp_close(dir);
    return 0;
}

/* A run that saves after each step, with these validation losses. */
typedef struct course {
    const char *load;
    int64_t first, count;
    double loss[8];
    bool named[8];
} course;

static dsc_status run_course(cw_rank *rank, dsc_error *error)
{
    course *c = rank->user;
    if (c->load != NULL)
        DSC_TRY(dsc_engine_load(rank->engine, c->load, error));
    for (int64_t i = 0; i < c->count; i++) {
        bool named = false;
        DSC_TRY(cw_train(rank, c->first + i, error));
        DSC_TRY(dsc_engine_save(rank->engine, run_dir, error));
        DSC_TRY(dsc_engine_save_best(rank->engine, run_dir, c->first + i, c->loss[i], &named, error));
        if (rank->rank == 0)
            c->named[i] = named;
    }
    return DSC_OK;
}

static void run(course *c, int32_t world, const char *own)
{
    const cw_options options = { .world = world, .model = model, .own = own };
    cw_run_well(&options, run_course, c);
}

/* "best STEP LOSS, left STEPS" */
static const char *found(void)
{
    static char text[80];
    char name[32];
    dsc_ckpt_best best;
    assert_int_equal(dsc_ckpt_read_best(NULL, alloc, run_dir, &best, &err), DSC_OK);
    int at = snprintf(text, sizeof text, "best %lld %g, left ", (long long)best.step, best.loss);
    for (int step = 1; step <= 9; step++) {
        snprintf(name, sizeof name, "step-%d", step);
        if (cw_exists(cw_path(run_dir, name)))
            text[at++] = (char)('0' + step);
    }
    text[at] = 0;
    return text;
}

static void the_lowest_loss_is_the_best_and_the_earlier_of_equal_ones(void **state)
{
    course c = { .first = 1, .count = 6, .loss = { 3, 2, 2, 2.5, 1.5, 1.5 } };
    run(&c, 2, NULL);
    assert_string_equal(found(), "best 5 1.5, left 123456");
    assert_true(c.named[0] && c.named[1] && !c.named[2] && !c.named[3] && c.named[4] && !c.named[5]);
}

static void a_loss_that_is_not_finite_is_never_the_best(void **state)
{
    course c = { .first = 1, .count = 4, .loss = { NAN, INFINITY, 4, -INFINITY } };
    run(&c, 1, NULL);
    assert_string_equal(found(), "best 3 4, left 1234");
    course lost = { .first = 1, .count = 1, .loss = { NAN } };
    cw_remove(run_dir);
    run(&lost, 1, NULL);
    assert_string_equal(found(), "best -1 0, left 1");
}

static void retention_keeps_the_best_beside_the_newest(void **state)
{
    course c = { .first = 1, .count = 6, .loss = { 3, 2, 4, 4, 1.75, 4 } };
    run(&c, 2, ", \"keep_last\": 1");
    assert_string_equal(found(), "best 5 1.75, left 56");
    const dsc_ckpt_keep keep = { .last = 1 };
    assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_OK);
    assert_string_equal(found(), "best 5 1.75, left 56");
}

/* The earlier best one goes when its name does, not at a save after that. */
static void a_new_best_lets_the_earlier_one_go(void **state)
{
    course c = { .first = 1, .count = 3, .loss = { 3, 4, 2 } };
    run(&c, 1, ", \"keep_last\": 1");
    assert_string_equal(found(), "best 3 2, left 3");
}

static void a_resume_keeps_the_record_and_another_run_does_not(void **state)
{
    course c = { .first = 1, .count = 3, .loss = { 3, 1, 2 } };
    run(&c, 1, ", \"keep_last\": 1");
    course resumed = { .load = run_dir, .first = 4, .count = 2, .loss = { 1.5, 1 } };
    run(&resumed, 2, ", \"keep_last\": 1");
    assert_string_equal(found(), "best 2 1, left 25");
    char best[4096];
    snprintf(best, sizeof best, "%s/best", run_dir);
    course again = { .load = best, .first = 3, .count = 1, .loss = { 0.5 } }; /* step 3 was removed: it is made anew */
    run(&again, 2, NULL);
    assert_string_equal(found(), "best 3 0.5, left 235");
    cw_remove(cw_path(run_dir, "step-2"));
    cw_remove(cw_path(run_dir, "step-3"));
    course other = { .first = 1, .count = 2, .loss = { 9, 10 } };
    run(&other, 1, NULL);
    assert_string_equal(found(), "best 1 9, left 125");
}

static void a_removed_checkpoint_and_a_damaged_name_are_replaced(void **state)
{
    static const char *const damaged[] = {
        "",           "step-1",       "step-1 2",    "step-1 x\n",     "step-1 nan\n",
        "../1 2\n",   "step-1 2\n\n", "step-1  2\n", "step-1 1e999\n", "step-1 0x1\n",
    };
    course c = { .first = 1, .count = 2, .loss = { 1, 2 } };
    run(&c, 1, NULL);
    cw_remove(cw_path(run_dir, "step-1"));
    course resumed = { .load = run_dir, .first = 3, .count = 1, .loss = { 5 } };
    run(&resumed, 1, NULL);
    assert_string_equal(found(), "best 3 5, left 23");
    const dsc_ckpt_keep keep = { .last = 1 };
    for (size_t i = 0; i < DSC_COUNT(damaged); i++) {
        dsc_ckpt_best best;
        char step_dir[4096], path[4096];
        cw_write(cw_path(run_dir, "best"), damaged[i], strlen(damaged[i]));
        assert_int_equal(dsc_ckpt_read_best(NULL, alloc, run_dir, &best, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "is not one line"));
        assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_ERR_INPUT);
        snprintf(path, sizeof path, "%s/best", run_dir);
        assert_int_equal(dsc_ckpt_find(NULL, alloc, path, step_dir, sizeof step_dir, &err), DSC_ERR_INPUT);
    }
    course after = { .load = run_dir, .first = 4, .count = 1, .loss = { 7 } };
    run(&after, 1, NULL);
    assert_string_equal(found(), "best 4 7, left 234");
}

typedef struct fault { int64_t n, count; } fault;

static dsc_status fail_from(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value)
{
    fault *f = user;
    (void)op, (void)path, (void)offset, (void)bytes;
    *errno_value = EIO;
    return ++f->count >= f->n ? DSC_ERR_IO : DSC_OK;
}

typedef struct sweep { int64_t n; bool ended; } sweep;

/* Steps 1 and 2 are there and 1 is the best; then each file operation from the n-th on fails while 2 becomes it. */
static dsc_status run_broken(cw_rank *rank, dsc_error *error)
{
    sweep *s = rank->user;
    fault f = { .n = s->n };
    bool named;
    for (int64_t step = 1; step <= 2; step++) {
        DSC_TRY(cw_train(rank, step, error));
        DSC_TRY(dsc_engine_save(rank->engine, run_dir, error));
    }
    DSC_TRY(dsc_engine_save_best(rank->engine, run_dir, 1, 3, &named, error));
    CW_CHECK(named);
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ fail_from, &f });
    const dsc_status status = dsc_engine_save_best(rank->engine, run_dir, 2, 1, &named, error);
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ NULL, NULL });
    CW_CHECK(status == DSC_OK || status == DSC_ERR_IO);
    CW_CHECK((status == DSC_OK) == named);
    s->ended = status == DSC_OK && f.count < f.n;
    return DSC_OK;
}

static void a_kill_in_between_leaves_one_of_the_two_names(void **state)
{
    sweep s = { .n = 1 };
    const cw_options options = { .world = 1, .model = model };
    for (; !s.ended; s.n++) {
        dsc_ckpt_best best;
        assert_true(s.n < 100);
        cw_remove(run_dir);
        cw_run_well(&options, run_broken, &s);
        assert_int_equal(dsc_ckpt_read_best(NULL, alloc, run_dir, &best, &err), DSC_OK);
        assert_true(s.ended ? best.step == 2 : best.step == 1 || best.step == 2);
        assert_true(best.loss == (best.step == 1 ? 3 : 1));
        course resumed = { .load = run_dir, .first = 3, .count = 1, .loss = { 0.5 } };
        run(&resumed, 1, NULL);
        assert_string_equal(found(), "best 3 0.5, left 123");
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_lowest_loss_is_the_best_and_the_earlier_of_equal_ones),
        TEST(a_loss_that_is_not_finite_is_never_the_best),
        TEST(retention_keeps_the_best_beside_the_newest),
        TEST(a_new_best_lets_the_earlier_one_go),
        TEST(a_resume_keeps_the_record_and_another_run_does_not),
        TEST(a_removed_checkpoint_and_a_damaged_name_are_replaced),
        TEST(a_kill_in_between_leaves_one_of_the_two_names),
    };
    return cmocka_run_group_tests_name("checkpoint_best", tests, NULL, NULL);
}
