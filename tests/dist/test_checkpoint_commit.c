/* test_checkpoint_commit.c - a save that meets a step-N which is there already: what a cut-short commit left, what this
 * run was loaded from, the same made again, a damaged one, another run's.
 *
 * Kills are faults that stay from one file operation on (see test_checkpoint_faults.c); after each of them what
 * `latest` names must load. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/toy_model.h"

#define SWEEP_MAX 2000 /* operations: more means that the sweep does not end */

static char *dir, *save_dir, *copy_dir;
static dsc_model *model;
static char expected[8][65]; /* [step] of the undisturbed run */

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    save_dir = strdup(cw_path(dir, "run"));
    copy_dir = strdup(cw_path(dir, "copy"));
    model = toy_model_open(3, 40, 1, true);
    return 0;
}

static int teardown(void **state)
{
    toy_model_close(model);
    free(copy_dir);
    free(save_dir);
    cw_tmp_close(dir);
    return 0;
}

static bool there(const char *name) { return cw_exists(cw_path(save_dir, name)); }
static char *in_run(const char *name) { return cw_path(save_dir, name); }

static void expect_step(int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "step-%d", (int)step);
    cw_expect_checkpoint(in_run(name), expected[step]);
}

static void no_rests(void)
{
    static const char *const rests[] = { "latest.tmp", "latest.new", "step-2.tmp", "step-3.tmp", "step-4.tmp" };
    for (size_t i = 0; i < DSC_COUNT(rests); i++)
        assert_false(there(rests[i]));
}

/* ---- a life ---- */

typedef struct life {
    const char *load; /* NULL: a fresh start */
    int64_t train;    /* to this step */
    const char *save; /* NULL: none */
    cw_fault fault;   /* applies to rank 0's save */
    bool check;       /* memory, against the undisturbed run */
    const char *words; /* expected in the save's refusal */
    int64_t latest;    /* after it */
} life;

static dsc_status live(cw_rank *rank, dsc_error *err)
{
    life *l = rank->user;
    char hex[65];
    dsc_error failure = DSC_ERROR_INIT;
    if (l->load != NULL)
        DSC_TRY(dsc_engine_load(rank->engine, l->load, err));
    DSC_TRY(cw_train(rank, l->train, err));
    cw_hash(rank, hex);
    CW_CHECK(!l->check || strcmp(hex, expected[l->train]) == 0);
    if (l->save == NULL)
        return DSC_OK;
    if (rank->rank == 0)
        cw_fault_arm(rank, l->fault.n > 0 ? &l->fault : NULL);
    const dsc_status status = dsc_engine_save(rank->engine, l->save, &failure);
    if (l->words != NULL) {
        if (status != DSC_ERR_INPUT || strstr(failure.message, l->words) == NULL)
            cw_fail(l->words, __FILE__, __LINE__, failure.message);
    } else if (l->fault.n == 0 && status != DSC_OK) {
        *err = failure;
        return status;
    }
    return DSC_OK;
}

static bool live_once(const cw_options *options, life l)
{
    cw_run_well(options, live, &l);
    return atomic_load(&l.fault.fired);
}

static cw_fault kill_at(int64_t n) { return (cw_fault){ .n = n, .persistent = true, .errno_value = EIO }; }

static dsc_status make_steps(cw_rank *rank, dsc_error *err)
{
    for (int64_t step = 1; step <= 6; step++) {
        char hex[65];
        DSC_TRY(cw_train(rank, step, err));
        cw_hash(rank, hex);
        if (rank->rank == 0)
            memcpy(expected[step], hex, 65);
        if (step == 2 || step == 4)
            DSC_TRY(dsc_engine_save(rank->engine, save_dir, err));
    }
    return DSC_OK;
}

/* A folder with step-2, and step-4 as its latest. */
static void start_over(const cw_options *options)
{
    cw_remove(save_dir);
    cw_run_well(options, make_steps, NULL);
}

static void only_step_2(void)
{
    cw_remove(in_run("step-4"));
    cw_write(in_run("latest"), "step-2\n", 7);
}

static void flip(const char *path, size_t at)
{
    size_t bytes;
    char *data = cw_read(path, &bytes);
    data[at < bytes ? at : bytes - 1] ^= 1;
    cw_write(path, data, bytes);
    free(data);
}

/* ---- commits that were cut short ---- */

/* The next life, of another world size, saves other steps: what the dead one left whole but unannounced is gone. */
static void an_unannounced_step_does_not_stay(void **state)
{
    const cw_options two = { .world = 2, .stage = 2, .model = model }, three = { .world = 3, .stage = 1,
                                                                                 .model = model };
    int unannounced = 0;
    start_over(&two);
    for (int64_t n = 1;; n++) {
        assert_true(n < SWEEP_MAX);
        cw_remove(in_run("step-3"));
        only_step_2();
        if (!live_once(&two, (life){ .load = save_dir, .train = 4, .save = save_dir, .fault = kill_at(n) }))
            break;
        const bool left = there("step-4") && cw_latest(save_dir) == 2;
        unannounced += left;
        if (cw_latest(save_dir) == 4)
            continue;
        live_once(&three, (life){ .load = save_dir, .train = 3, .save = save_dir, .check = true });
        assert_int_equal(cw_latest(save_dir), 3);
        expect_step(3);
        expect_step(2);
        assert_false(there("step-4"));
        live_once(&three, (life){ .load = save_dir, .train = 4, .save = save_dir, .check = true });
        assert_int_equal(cw_latest(save_dir), 4);
        expect_step(4);
        no_rests();
    }
    assert_true(unannounced >= 1);
}

/* Loaded by its name, it is what the run goes on from: it stays, as any other. */
static void an_unannounced_step_that_was_loaded_stays(void **state)
{
    const cw_options two = { .world = 2, .stage = 2, .model = model };
    start_over(&two);
    cw_write(in_run("latest"), "step-2\n", 7);
    cw_write(in_run("latest.tmp"), "step-4\n", 7);
    live_once(&two, (life){ .load = in_run("step-4"), .train = 5, .save = save_dir, .check = true });
    assert_int_equal(cw_latest(save_dir), 5);
    expect_step(4);
    expect_step(5);
    no_rests();
    /* Saved again where it is: announced. */
    cw_write(in_run("latest"), "step-2\n", 7);
    cw_write(in_run("latest.tmp"), "step-4\n", 7);
    live_once(&two, (life){ .load = in_run("step-4"), .train = 4, .save = save_dir, .check = true });
    assert_int_equal(cw_latest(save_dir), 4);
    no_rests();
    live_once(&two, (life){ .train = 2, .save = save_dir, .words = "exists already" });
    expect_step(4);
}

/* Going back to an older step makes it the latest. A kill while doing so leaves both, and neither may be replaced. */
static void going_back_never_loses_a_step(void **state)
{
    const cw_options two = { .world = 2, .stage = 2, .bf16 = true, .model = model };
    start_over(&two);
    for (int64_t n = 1;; n++) {
        assert_true(n < SWEEP_MAX);
        const life back = { .load = in_run("step-2"), .train = 2, .save = save_dir, .fault = kill_at(n) };
        const bool fired = live_once(&two, back);
        assert_true(cw_latest(save_dir) == 2 || cw_latest(save_dir) == 4);
        expect_step(2);
        expect_step(4);
        live_once(&two, (life){ .train = 2, .save = save_dir, .words = "exists already" });
        live_once(&two, (life){ .train = 4, .save = save_dir, .words = "exists already" });
        live_once(&two, (life){ .load = save_dir, .train = 6, .save = save_dir, .check = true });
        expect_step(2);
        expect_step(4);
        expect_step(6);
        no_rests();
        cw_remove(in_run("step-6"));
        cw_write(in_run("latest"), "step-4\n", 7);
        if (!fired)
            break;
    }
}

/* ---- the same step made again ---- */

static void the_same_tensors_are_kept_whoever_wrote_them(void **state)
{
    size_t bytes, bytes_after;
    const cw_options two = { .world = 2, .stage = 2, .bf16 = true, .model = model };
    start_over(&two);
    char *was = cw_read(in_run("step-4/manifest.json"), &bytes);
    for (int32_t world = 1; world <= 4; world++)
        for (int64_t n = 1;; n += 7) {
            const cw_options again = { .world = world, .stage = world - 1, .bf16 = true, .model = model };
            assert_true(n < SWEEP_MAX);
            cw_write(in_run("latest"), "step-2\n", 7);
            /* Killed somewhere, then in peace. */
            const bool fired = live_once(&again, (life){ .load = in_run("step-2"), .train = 4, .save = save_dir,
                                                         .fault = kill_at(n) });
            assert_true(cw_latest(save_dir) == 2 || cw_latest(save_dir) == 4);
            expect_step(4);
            live_once(&again, (life){ .load = in_run("step-2"), .train = 4, .save = save_dir, .check = true });
            assert_int_equal(cw_latest(save_dir), 4);
            no_rests();
            if (!fired)
                break;
        }
    char *is = cw_read(in_run("step-4/manifest.json"), &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(was, is, bytes);
    free(was);
    free(is);
}

static void other_tensors_are_refused_with_what_differs(void **state)
{
    const cw_options own = { .world = 2, .stage = 1, .own_samples = true, .model = model };
    start_over(&own);
    static const struct { int32_t world; bool bf16; const char *words; } others[] = {
        { 3, false, "2 ranks with micro-batches of 1 wrote it, and here are 3 with 1" },
        { 2, true, "the other precision" },
    };
    for (size_t i = 0; i < DSC_COUNT(others); i++) {
        const cw_options other = { .world = others[i].world, .bf16 = others[i].bf16, .own_samples = true,
                                   .model = model };
        live_once(&other, (life){ .load = in_run("step-2"), .train = 4, .save = save_dir, .words = others[i].words });
        assert_int_equal(cw_latest(save_dir), 4);
        expect_step(4);
        no_rests();
    }
}

/* A later step that does not verify gives its place to the one that this run makes. */
static void a_damaged_step_is_moved_aside(void **state)
{
    const cw_options two = { .world = 2, .stage = 2, .model = model };
    int aside = 0;
    start_over(&two);
    cw_copy_dir(in_run("step-4"), copy_dir);
    static const char *const files[] = { "step-4/optimizer.safetensors", "step-4/model.safetensors",
                                         "step-4/ds_config.json" };
    for (size_t i = 0; i < DSC_COUNT(files); i++)
        for (int64_t n = 1;; n += 5) {
            assert_true(n < SWEEP_MAX);
            cw_remove(in_run("step-4.damaged"));
            cw_copy_dir(copy_dir, in_run("step-4"));
            cw_write(in_run("latest"), "step-4\n", 7);
            flip(in_run(files[i]), (size_t)-1);
            const bool fired = live_once(&two, (life){ .load = in_run("step-2"), .train = 4, .save = save_dir,
                                                       .fault = kill_at(n) });
            /* `latest` never names what is not there. */
            assert_true(cw_latest(save_dir) == 2 || there("step-4"));
            expect_step(2);
            aside += there("step-4.damaged");
            if (there("step-4.damaged"))
                cw_remove(in_run("step-4.damaged")); /* the second one would not fit beside it */
            live_once(&two, (life){ .load = in_run("step-2"), .train = 4, .save = save_dir, .check = true });
            assert_int_equal(cw_latest(save_dir), 4);
            expect_step(4);
            no_rests();
            if (!fired)
                break;
        }
    assert_true(aside > 0);
}

/* A folder without our manifest is not moved. */
static void a_folder_that_is_no_checkpoint_is_refused(void **state)
{
    const cw_options two = { .world = 2, .stage = 2, .model = model };
    start_over(&two);
    const life again = { .load = in_run("step-2"), .train = 4, .save = save_dir, .words = "exists already" };
    cw_remove(in_run("step-4/manifest.json"));
    live_once(&two, again);
    assert_true(there("step-4/model.safetensors"));
    cw_remove(in_run("step-4"));
    cw_write(in_run("step-4"), "", 0);
    live_once(&two, again);
    assert_true(there("step-4"));
    no_rests();
}

/* ---- what the user hears ---- */

static void keep_line(void *user, dsc_log_level level, const char *text)
{
    char *line = user;
    if (level == DSC_LOG_WARNING)
        snprintf(line, 256, "%s", text);
}

static void a_later_step_is_reported_at_load(void **state)
{
    char line[256] = "";
    const cw_options two = { .world = 2, .stage = 2, .model = model, .log = { keep_line, line } };
    start_over(&two);
    live_once(&two, (life){ .load = save_dir, .train = 4 });
    assert_string_equal(line, "");
    live_once(&two, (life){ .load = in_run("step-2"), .train = 2 });
    assert_non_null(strstr(line, "already holds step-4"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(an_unannounced_step_does_not_stay),
        TEST(an_unannounced_step_that_was_loaded_stays),
        TEST(going_back_never_loses_a_step),
        TEST(the_same_tensors_are_kept_whoever_wrote_them),
        TEST(other_tensors_are_refused_with_what_differs),
        TEST(a_damaged_step_is_moved_aside),
        TEST(a_folder_that_is_no_checkpoint_is_refused),
        TEST(a_later_step_is_reported_at_load),
    };
    return cmocka_run_group_tests_name("checkpoint_commit", tests, NULL, NULL);
}
