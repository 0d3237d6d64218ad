/* test_checkpoint_async.c - saves that are written while training goes on. A save holds the states of the step that
 * started it, does not change training, and reports its own failures. Faults at every operation and losses of power
 * are in test_checkpoint_faults.c and test_checkpoint_power.c. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/io_fault.h"
#include "tests/support/probe.h"
#include "tests/support/sanitizer.h"
#include "tests/support/toy_model.h"

/* ---- threads that are slow to start: what does not wait for one is found out ---- */

#if !SANITIZE_THREAD && !SANITIZE_ADDRESS /* sanitizers have their own allocator */
typedef struct late_start {
    void *(*run)(void *);
    void *argument;
} late_start;

static void *start_late(void *user)
{
    const late_start late = *(late_start *)user;
    free(user);
    usleep(20000);
    return late.run(late.argument);
}

static _Thread_local bool late_threads; /* those that this thread starts */
DSC_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (real == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_create");
        memcpy(&real, &found, sizeof real);
    }
    late_start *late = late_threads ? malloc(sizeof *late) : NULL;
    if (late == NULL)
        return real(thread, attributes, run, argument);
    *late = (late_start){ run, argument };
    return real(thread, attributes, start_late, late);
}
#else
static _Thread_local bool late_threads;
#endif

static char *dir; /* folder of the running test */
static dsc_model *model, *wide;

static int setup(void **state)
{
    dir = cw_tmp_open();
    model = toy_model_open(3, 40, 2, true);
    wide = toy_model_open(3, 700, 1, true); /* a tensor of two blocks */
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(wide);
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

#define STEPS 6
typedef struct course {
    double loss[16];
    char hex[STEPS + 1][65]; /* in memory, after each step */
    io_fault fault;          /* applies to long writes of rank `faulty` */
    int32_t faulty;
} course;

static void keep(cw_rank *rank, course *c)
{
    char hex[65];
    cw_hash(rank, hex);
    if (rank->rank == 0)
        memcpy(c->hex[dsc_probe_step(rank->engine)], hex, 65);
}

static dsc_status calm(cw_rank *rank, dsc_error *err)
{
    course *c = rank->user;
    for (int64_t step = 1; step <= STEPS; step++) {
        DSC_TRY(cw_train(rank, step, err));
        keep(rank, c);
    }
    if (rank->rank == 0)
        memcpy(c->loss, rank->loss, sizeof c->loss);
    return DSC_OK;
}

/* Saves of steps 2 and 5, each as early as it can be; no step waits for the files. */
static dsc_status meanwhile(cw_rank *rank, dsc_error *err)
{
    course *c = rank->user;
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    int64_t saved = -1;
    bool ended = false;
    DSC_TRY(cw_train(rank, 2, err));
    late_threads = true;
    DSC_TRY(dsc_engine_save_start(rank->engine, dir, err));
    late_threads = false;
    while (dsc_probe_step(rank->engine) < 5) {
        DSC_TRY(dsc_engine_train_batch(rank->engine, &result, err));
        rank->loss[result.step] = result.loss;
        CW_CHECK(!ended || result.save_ended);
        ended = result.save_ended;
    }
    DSC_TRY(dsc_engine_save_wait(rank->engine, &saved, err));
    CW_CHECK(saved == 2);
    DSC_TRY(dsc_engine_save_wait(rank->engine, &saved, err));
    CW_CHECK(saved == -1);
    DSC_TRY(dsc_engine_save_start(rank->engine, dir, err));
    DSC_TRY(cw_train(rank, STEPS, err));
    DSC_TRY(dsc_engine_save_wait(rank->engine, &saved, err));
    CW_CHECK(saved == 5);
    keep(rank, c);
    if (rank->rank == 0)
        memcpy(c->loss, rank->loss, sizeof c->loss);
    return DSC_OK;
}

static void a_save_holds_the_step_at_which_it_was_started(void **state)
{
    for (int i = 0; i < 14; i++) {
        const bool large = i >= 12;
        const cw_options options = { .world = 1 + i % 3, .stage = i % 4, .bf16 = i % 2 == 0, .async = true,
                                     .bf16_moments = i % 5 == 0, .model = large ? wide : model,
                                     .files = i % 4 > 0 && i % 3 == 2 ? dir : NULL };
        course undisturbed = { 0 }, disturbed = { 0 };
        cw_run_well(&options, calm, &undisturbed);
        cw_run_well(&options, meanwhile, &disturbed);
        assert_memory_equal(disturbed.loss, undisturbed.loss, sizeof disturbed.loss);
        assert_string_equal(disturbed.hex[STEPS], undisturbed.hex[STEPS]);
        cw_expect_checkpoint(cw_path(dir, "step-2"), undisturbed.hex[2]);
        cw_expect_checkpoint(cw_path(dir, "step-5"), undisturbed.hex[5]);
        assert_int_equal(cw_latest(dir), 5);
        cw_remove(cw_path(dir, "step-2"));
        cw_remove(cw_path(dir, "step-5"));
        cw_remove(cw_path(dir, "latest"));
    }
}

/* ---- out of turn ---- */

static void expect_state(dsc_status status, const dsc_error *err, const char *words)
{
    if (status != DSC_ERR_STATE || (strstr(err->message, words) == NULL && strstr(err->where, words) == NULL))
        cw_fail(words, __FILE__, __LINE__, err->message);
}

static dsc_status out_of_turn(cw_rank *rank, dsc_error *err)
{
    dsc_error why = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 1, err));
    if (!rank->options->async) {
        expect_state(dsc_engine_save_start(rank->engine, dir, &why), &why, "dsc.save_async");
        return DSC_OK;
    }
    DSC_TRY(dsc_engine_save_start(rank->engine, dir, err));
    expect_state(dsc_engine_save_start(rank->engine, dir, &why), &why, "dsc_engine_save_wait");
    expect_state(dsc_engine_save(rank->engine, dir, &why), &why, "dsc_engine_save_wait");
    expect_state(dsc_engine_load(rank->engine, dir, &why), &why, "dsc_engine_save_wait");
    DSC_TRY(dsc_engine_save_wait(rank->engine, NULL, err));
    DSC_TRY(dsc_engine_load(rank->engine, dir, err));
    return cw_train(rank, 2, err);
}

static void one_at_a_time(void **state)
{
    for (int async = 0; async < 2; async++)
        cw_run_well(&(cw_options){ .world = 2, .stage = 1, .async = async, .model = model }, out_of_turn, NULL);
}

/* A run that ends without waiting leaves a checkpoint or nothing. */
static dsc_status leave_early(cw_rank *rank, dsc_error *err)
{
    const int *steps = rank->user;
    DSC_TRY(cw_train(rank, 1, err));
    DSC_TRY(dsc_engine_save_start(rank->engine, dir, err));
    return cw_train(rank, 1 + *steps, err);
}

static void a_run_that_does_not_wait(void **state)
{
    for (int steps = 0; steps < 4; steps++)
        for (int32_t world = 1; world <= 2; world++) {
            const cw_options options = { .world = world, .stage = 2, .async = true, .model = steps % 2 ? wide : model };
            cw_run_well(&options, leave_early, &steps);
            assert_false(cw_exists(cw_path(dir, "step-1.tmp")));
            assert_int_equal(cw_exists(cw_path(dir, "latest")), cw_exists(cw_path(dir, "step-1")));
            if (cw_exists(cw_path(dir, "step-1")))
                assert_int_equal(cw_latest(dir), 1);
            cw_remove(cw_path(dir, "step-1"));
            cw_remove(cw_path(dir, "latest"));
        }
}

/* ---- long writes that fail ---- */

static dsc_status save_with_fault(cw_rank *rank, dsc_error *err)
{
    course *c = rank->user;
    dsc_error failure = DSC_ERROR_INIT;
    const dsc_aio_hook hook = io_fault_hook(&c->fault);
    const dsc_status expected = io_fault_status(c->fault.kind);
    DSC_TRY(cw_train(rank, 1, err));
    if (rank->rank == c->faulty)
        dsc_probe_set_block_hook(rank->engine, &hook);
    const dsc_status status = cw_save(rank, dir, &failure);
    dsc_probe_set_block_hook(rank->engine, NULL);
    CW_CHECK(atomic_load(&c->fault.fired));
    CW_CHECK(status == expected);
    if (status != DSC_OK && strstr(failure.message, io_fault_message(c->fault.kind)) == NULL)
        cw_fail(io_fault_text(c->fault.kind), __FILE__, __LINE__, failure.message);
    cw_barrier(rank);
    CW_CHECK(cw_exists(cw_path(dir, "step-1")) == (status == DSC_OK));
    CW_CHECK(!cw_exists(cw_path(dir, "step-1.tmp")));
    cw_barrier(rank);
    if (status != DSC_OK)
        DSC_TRY(cw_save(rank, dir, err));
    keep(rank, c);
    return cw_train(rank, 2, err);
}

static void long_writes_that_fail(void **state)
{
    for (int kind = 0; kind < IO_FAULT_NEVER; kind++) /* that one waits for a timeout */
        for (int async = 0; async < 2; async++) {
            const cw_options options = { .world = 2, .stage = 1, .bf16 = kind % 2, .async = async, .model = wide };
            course c = { .fault = { .kind = (io_fault_kind)kind, .at = 1 + kind % 3 }, .faulty = kind % 2 };
            cw_run_well(&options, save_with_fault, &c);
            cw_expect_checkpoint(cw_path(dir, "step-1"), c.hex[1]);
            cw_remove(cw_path(dir, "step-1"));
            cw_remove(cw_path(dir, "latest"));
        }
}

/* The same bytes from every engine. */
static dsc_status save_one(cw_rank *rank, dsc_error *err)
{
    DSC_TRY(cw_train(rank, 1, err));
    keep(rank, rank->user);
    return cw_save(rank, dir, err);
}

static void every_engine_writes_the_same(void **state)
{
    static const char *const engines[] = { "threads", "auto" };
    for (size_t i = 0; i < DSC_COUNT(engines); i++)
        for (int32_t world = 1; world <= 3; world++) {
            course c = { 0 };
            cw_run_well(&(cw_options){ .world = world, .stage = world, .bf16 = true, .aio = engines[i], .model = wide },
                        save_one, &c);
            cw_expect_checkpoint(cw_path(dir, "step-1"), c.hex[1]);
            cw_remove(cw_path(dir, "step-1"));
            cw_remove(cw_path(dir, "latest"));
        }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_save_holds_the_step_at_which_it_was_started),
        TEST(one_at_a_time),
        TEST(a_run_that_does_not_wait),
        TEST(long_writes_that_fail),
        TEST(every_engine_writes_the_same),
    };
    return cmocka_run_group_tests_name("checkpoint_async", tests, NULL, NULL);
}
