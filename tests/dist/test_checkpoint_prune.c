/* test_checkpoint_prune.c - which checkpoints stay, that `latest` always does, and that a kill in between leaves none
 * in part. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/checkpoint/checkpoint.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/toy_model.h"

#define STEPS 9

static char *dir, *all_dir, *run_dir;
static dsc_model *model;
static dsc_alloc *alloc;
static dsc_error err;

static dsc_status save_all(cw_rank *rank, dsc_error *error)
{
    for (int64_t step = 1; step <= STEPS; step++) {
        DSC_TRY(cw_train(rank, step, error));
        DSC_TRY(dsc_engine_save(rank->engine, all_dir, error));
    }
    return DSC_OK;
}

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    all_dir = strdup(cw_path(dir, "all"));
    run_dir = strdup(cw_path(dir, "run"));
    model = toy_model_open(3, 8, 1, true);
    err = (dsc_error)DSC_ERROR_INIT;
    const cw_options options = { .world = 1, .model = model };
    cw_run_well(&options, save_all, NULL);
    return dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    toy_model_close(model);
    free(run_dir);
    free(all_dir);
    cw_tmp_close(dir);
    return 0;
}

/* A folder with all steps, of which `latest` names one. */
static void start_over(int latest)
{
    char text[32], name[32];
    cw_remove(run_dir);
    assert_int_equal(mkdir(run_dir, 0755), 0);
    for (int step = 1; step <= STEPS; step++) {
        snprintf(name, sizeof name, "step-%d", step);
        cw_copy_dir(cw_path(all_dir, name), cw_path(run_dir, name));
    }
    snprintf(text, sizeof text, "step-%d\n", latest);
    cw_write(cw_path(run_dir, "latest"), text, strlen(text));
}

/* "124": the steps that are there. */
static const char *left(void)
{
    static char text[STEPS + 1];
    char name[32];
    size_t at = 0;
    for (int step = 1; step <= STEPS; step++) {
        snprintf(name, sizeof name, "step-%d", step);
        if (cw_exists(cw_path(run_dir, name)))
            text[at++] = (char)('0' + step);
    }
    text[at] = 0;
    return text;
}

static void pruning_keeps_the_newest_periodic_and_latest_steps(void **state)
{
    static const struct { int latest, last, every; const char *left; } cases[] = {
        { 9, 0, 0, "123456789" }, { 9, 1, 0, "9" },         { 9, 3, 0, "789" },      { 9, 9, 0, "123456789" },
        { 9, 100, 0, "123456789" }, { 9, 2, 4, "489" },     { 9, 1, 1, "123456789" }, { 9, 2, 3, "3689" },
        { 6, 2, 0, "56789" },     { 6, 1, 2, "246789" },    { 1, 1, 0, "123456789" }, { 9, 0, 2, "123456789" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const dsc_ckpt_keep keep = { .last = cases[i].last, .every = cases[i].every };
        start_over(cases[i].latest);
        assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_OK);
        assert_string_equal(left(), cases[i].left);
    }
}

static void remember(void *user, const char *name)
{
    char *names = user;
    snprintf(names + strlen(names), 256 - strlen(names), "%s ", name);
}

static void a_dry_run_lists_the_steps_and_removes_none(void **state)
{
    char names[256] = "";
    dsc_ckpt_keep keep = { .last = 2, .every = 5, .dry_run = true, .on_remove = remember, .user = names };
    start_over(9);
    assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_OK);
    assert_string_equal(names, "step-1 step-2 step-3 step-4 step-6 step-7 ");
    assert_string_equal(left(), "123456789");
}

/* Only our checkpoints are removed, and remains of saves only on request. */
static void foreign_folders_and_links_are_not_removed(void **state)
{
    dsc_ckpt_keep keep = { .last = 1 };
    start_over(9);
    cw_remove(cw_path(run_dir, "step-2/manifest.json"));
    cw_remove(cw_path(run_dir, "step-3"));
    assert_int_equal(symlink(cw_path(all_dir, "step-3"), cw_path(run_dir, "step-3")), 0);
    cw_copy_dir(cw_path(all_dir, "step-4"), cw_path(run_dir, "best"));
    cw_copy_dir(cw_path(all_dir, "step-4"), cw_path(run_dir, "step-4.damaged"));
    cw_copy_dir(cw_path(all_dir, "step-5"), cw_path(run_dir, "step-12.tmp"));
    assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_OK);
    assert_string_equal(left(), "239");
    assert_true(cw_exists(cw_path(all_dir, "step-3/manifest.json")));
    assert_true(cw_exists(cw_path(run_dir, "best")) && cw_exists(cw_path(run_dir, "step-4.damaged")));
    assert_true(cw_exists(cw_path(run_dir, "step-12.tmp")));
    keep.unfinished = true;
    assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_OK);
    assert_false(cw_exists(cw_path(run_dir, "step-12.tmp")));
    /* Without a latest that names a checkpoint nothing goes. */
    static const char *const latest[] = { "step-77\n", "../all/step-1\n", "" };
    for (size_t i = 0; i < DSC_COUNT(latest); i++) {
        start_over(9);
        cw_write(cw_path(run_dir, "latest"), latest[i], strlen(latest[i]));
        assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_ERR_INPUT);
        assert_string_equal(left(), "123456789");
    }
    cw_remove(cw_path(run_dir, "latest"));
    assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_ERR_INPUT);
    assert_string_equal(left(), "123456789");
}

typedef struct fault { int64_t n, count; } fault;

static dsc_status fail_from(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value)
{
    fault *f = user;
    (void)op, (void)path, (void)offset, (void)bytes;
    *errno_value = EIO;
    return ++f->count >= f->n ? DSC_ERR_IO : DSC_OK;
}

static void a_kill_in_between_leaves_whole_ones(void **state)
{
    const dsc_ckpt_keep keep = { .last = 2, .every = 4, .unfinished = true };
    for (int64_t n = 1;; n++) {
        fault f = { .n = n };
        const dsc_io io = { .hook = { fail_from, &f } };
        assert_true(n < 1000);
        start_over(9);
        const dsc_status status = dsc_ckpt_prune(&io, alloc, run_dir, &keep, &err);
        for (const char *step = left(); *step != 0; step++) {
            char name[32];
            snprintf(name, sizeof name, "step-%c", *step);
            assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(run_dir, name), &err), DSC_OK);
        }
        assert_int_equal(cw_latest(run_dir), 9);
        assert_non_null(strstr(left(), "89"));
        assert_int_equal(dsc_ckpt_prune(NULL, alloc, run_dir, &keep, &err), DSC_OK);
        assert_string_equal(left(), "489");
        for (int step = 1; step <= STEPS; step++) {
            char name[32];
            snprintf(name, sizeof name, "step-%d.tmp", step);
            assert_false(cw_exists(cw_path(run_dir, name)));
        }
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_ERR_IO);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(pruning_keeps_the_newest_periodic_and_latest_steps),
        TEST(a_dry_run_lists_the_steps_and_removes_none),
        TEST(foreign_folders_and_links_are_not_removed),
        TEST(a_kill_in_between_leaves_whole_ones),
    };
    return cmocka_run_group_tests_name("checkpoint_prune", tests, NULL, NULL);
}
