/* test_checkpoint_carried.c - tensors of the model's files that no module has. Every checkpoint and export has their
 * bytes, `dsc ckpt verify` compares them, and a save is whole or not there. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/formats/safetensors.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

#define PATCHES 40000 /* more bytes than one piece of a copy */

static char *dir, *source;
static dsc_model *plain, model;
static dsc_model_carried carried;
static dsc_model_piece piece[3];
static dsc_safetensors_plan layout;
static dsc_alloc *alloc;
static dsc_error err;
static char *bytes; /* of the source */

/* Two tensors and an empty one, in the source in another order and with other bytes before and between them. */
static int setup(void **state)
{
    static const dsc_safetensors_spec specs[3] = {
        { "tower.patch", { .dtype = DSC_F32, .dim_count = 1, .dim = { PATCHES } } },
        { "tower.bias", { .dtype = DSC_BF16, .dim_count = 2, .dim = { 3, 5 } } },
        { "tower.empty", { .dtype = DSC_F32, .dim_count = 1, .dim = { 0 } } },
    };
    const int64_t total = 100 + 30 + 7 + 4 * PATCHES;
    err = (dsc_error)DSC_ERROR_INIT;
    dir = cw_memory_tmp_open();
    source = strdup(cw_path(dir, "source"));
    bytes = malloc((size_t)total);
    for (int64_t i = 0; i < total; i++)
        bytes[i] = (char)(i * 37 + i / 251);
    cw_write(source, bytes, (size_t)total);
    if (dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return -1;
    if (dsc_safetensors_plan_open(&layout, alloc, specs, 3, NULL, 0, NULL) != DSC_OK)
        return -1;
    piece[0] = (dsc_model_piece){ source, 137, layout.offset[2], 0 };
    piece[1] = (dsc_model_piece){ source, 137, layout.offset[0], 4 * PATCHES };
    piece[2] = (dsc_model_piece){ source, 100, layout.offset[1], 30 };
    if (layout.offset[2] > layout.offset[0]) {
        const dsc_model_piece empty = piece[0];
        piece[0] = piece[1];
        piece[1] = empty;
    }
    carried = (dsc_model_carried){ layout.header, layout.header_bytes, piece, 3, layout.file_bytes };
    plain = toy_model_open(3, 8, 1, true);
    model = *plain;
    model.carried = &carried;
    return 0;
}

static int teardown(void **state)
{
    dsc_safetensors_plan_close(&layout);
    dsc_alloc_close(&alloc);
    toy_model_close(plain);
    free(bytes);
    free(source);
    cw_tmp_close(dir);
    return 0;
}

/* The tensors of a file, bit by bit. */
static void has_them(const char *path)
{
    dsc_safetensors *file = NULL;
    static char got[4 * PATCHES];
    assert_int_equal(dsc_safetensors_open(&file, NULL, alloc, path, &err), DSC_OK);
    const dsc_safetensors_entry *patch = dsc_safetensors_find(file, "tower.patch");
    const dsc_safetensors_entry *bias = dsc_safetensors_find(file, "tower.bias");
    assert_non_null(patch);
    assert_non_null(bias);
    assert_non_null(dsc_safetensors_find(file, "tower.empty"));
    assert_int_equal(bias->desc.dtype, DSC_BF16);
    assert_int_equal(dsc_safetensors_read_bytes(file, patch, 0, 4 * PATCHES, got, &err), DSC_OK);
    assert_memory_equal(got, bytes + 137, 4 * PATCHES);
    assert_int_equal(dsc_safetensors_read_bytes(file, bias, 0, 30, got, &err), DSC_OK);
    assert_memory_equal(got, bytes + 100, 30);
    dsc_safetensors_close(&file);
}

static dsc_ckpt_export_options to(const char *folder)
{
    return (dsc_ckpt_export_options){ .out_dir = folder, .dtype = DSC_BF16, .shard_bytes = INT64_C(1) << 40 };
}

static void checkpoints_and_exports_have_them(void **state)
{
    for (int way = 0; way < 3; way++) {
        char name[32], out[4096], step_dir[4096];
        snprintf(name, sizeof name, "run-%d", way);
        cw_trip t = { .save = cw_path(dir, name), .save_step = 2, .end_step = 2 };
        const cw_options options = { .world = 1 + way, .stage = way, .bf16 = way == 1, .async = way == 2,
                                     .model = &model };
        cw_run_well(&options, cw_make_trip, &t);
        snprintf(step_dir, sizeof step_dir, "%s/step-2", t.save);
        has_them(cw_path(step_dir, DSC_MODEL_CARRIED_FILE));
        assert_int_equal(dsc_ckpt_verify(NULL, alloc, step_dir, &err), DSC_OK);
        snprintf(out, sizeof out, "%s/out-%d", dir, way);
        const dsc_ckpt_export_options as = to(out);
        assert_int_equal(dsc_ckpt_export(NULL, alloc, step_dir, &as, &err), DSC_OK);
        has_them(cw_path(out, "model.safetensors"));
    }
}

static void damage_is_found(void **state)
{
    char out[4096], step_dir[4096], *text;
    size_t length;
    cw_trip t = { .save = cw_path(dir, "run"), .save_step = 1, .end_step = 1 };
    cw_run_well(&(cw_options){ .world = 2, .model = &model }, cw_make_trip, &t);
    snprintf(step_dir, sizeof step_dir, "%s/step-1", t.save);
    snprintf(out, sizeof out, "%s/out", dir);
    const dsc_ckpt_export_options options = to(out);
    text = cw_read(cw_path(step_dir, DSC_MODEL_CARRIED_FILE), &length);
    for (size_t at = 0; at < length; at += length / 7) {
        text[at] ^= 4;
        cw_write(cw_path(step_dir, DSC_MODEL_CARRIED_FILE), text, length);
        assert_int_equal(dsc_ckpt_verify(NULL, alloc, step_dir, &err), DSC_ERR_INPUT);
        assert_int_equal(dsc_ckpt_export(NULL, alloc, step_dir, &options, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "its SHA-256 differs"));
        assert_false(cw_exists(out));
        text[at] ^= 4;
    }
    cw_write(cw_path(step_dir, DSC_MODEL_CARRIED_FILE), text, length);
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, step_dir, &err), DSC_OK);
    /* A file that the checkpoint does not list is not taken for one of the model. */
    cw_trip other = { .save = cw_path(dir, "plain"), .save_step = 1, .end_step = 1 };
    cw_run_well(&(cw_options){ .world = 1, .model = plain }, cw_make_trip, &other);
    snprintf(step_dir, sizeof step_dir, "%s/step-1", other.save);
    cw_write(cw_path(step_dir, DSC_MODEL_CARRIED_FILE), text, length);
    assert_int_equal(dsc_ckpt_export(NULL, alloc, step_dir, &options, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "does not list it"));
    free(text);
}

typedef struct sweep { int64_t n; bool ended; } sweep;
typedef struct fault {
    int64_t n;
    atomic_llong count; /* writes of several threads */
} fault;

static dsc_status fail_once(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t count, int *errno_value)
{
    fault *f = user;
    (void)op, (void)path, (void)offset, (void)count;
    if (atomic_fetch_add(&f->count, 1) + 1 != f->n)
        return DSC_OK;
    *errno_value = EIO;
    return DSC_ERR_IO;
}

static dsc_status save_broken(cw_rank *rank, dsc_error *error)
{
    sweep *s = rank->user;
    fault f = { .n = s->n };
    DSC_TRY(cw_train(rank, 1, error));
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ fail_once, &f });
    const dsc_status status = dsc_engine_save(rank->engine, cw_path(dir, "swept"), error);
    dsc_probe_set_io_hook(rank->engine, (dsc_io_hook){ NULL, NULL });
    s->ended = f.count < f.n;
    CW_CHECK(status == DSC_OK || !s->ended);
    CW_CHECK((status == DSC_OK) == cw_exists(cw_path(dir, "swept/step-1/manifest.json")));
    return DSC_OK;
}

static void a_failure_at_any_operation_leaves_a_whole_checkpoint_or_none(void **state)
{
    sweep s = { .n = 1 };
    for (; !s.ended; s.n++) {
        assert_true(s.n < 500);
        cw_remove(cw_path(dir, "swept"));
        cw_run_well(&(cw_options){ .world = 1, .model = &model }, save_broken, &s);
        if (!cw_exists(cw_path(dir, "swept/step-1")))
            continue;
        assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(dir, "swept/step-1"), &err), DSC_OK);
        has_them(cw_path(dir, "swept/step-1/" DSC_MODEL_CARRIED_FILE));
    }
    assert_true(s.n > 20);
}

static dsc_status save_without_source(cw_rank *rank, dsc_error *error)
{
    dsc_error why = DSC_ERROR_INIT;
    DSC_TRY(cw_train(rank, 1, error));
    DSC_TRY(dsc_engine_save(rank->engine, cw_path(dir, "run"), error));
    DSC_TRY(dsc_engine_barrier(rank->engine, error));
    if (rank->rank == 0)
        CW_CHECK(unlink(source) == 0);
    DSC_TRY(dsc_engine_barrier(rank->engine, error));
    DSC_TRY(cw_train(rank, 2, error));
    CW_CHECK(dsc_engine_save(rank->engine, cw_path(dir, "run"), &why) == DSC_ERR_INPUT);
    CW_CHECK(strstr(why.where, "source") != NULL);
    return DSC_OK;
}

static void a_model_folder_that_is_gone_fails_the_save_and_the_earlier_one_stays(void **state)
{
    cw_run_well(&(cw_options){ .world = 2, .model = &model }, save_without_source, NULL);
    assert_int_equal(cw_latest(cw_path(dir, "run")), 1);
    assert_false(cw_exists(cw_path(dir, "run/step-2")));
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, cw_path(dir, "run/step-1"), &err), DSC_OK);
}

/* The disk's free space is compared with all that a folder will hold, before a run and before each save. */
static dsc_status check_and_save(cw_rank *rank, dsc_error *error)
{
    const char *to = cw_path(dir, "run");
    dsc_error why = DSC_ERROR_INIT;
    CW_CHECK(dsc_engine_save_check(rank->engine, to, 0, 1, &why) == DSC_ERR_IO);
    CW_CHECK(strstr(why.message, "a checkpoint needs 1073741824") != NULL);
    CW_CHECK(dsc_engine_save(rank->engine, to, &why) == DSC_ERR_IO);
    CW_CHECK(strstr(why.message, "nothing was written") != NULL);
    return DSC_OK;
}

static void more_than_the_disk_has_is_refused_before_anything_is_written(void **state)
{
    carried.file_bytes = INT64_C(1) << 50; /* 1073741824 MiB */
    cw_run_well(&(cw_options) { .world = 2, .model = &model }, check_and_save, NULL);
    assert_int_equal(cw_latest(cw_path(dir, "run")), -1); /* there is none */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(checkpoints_and_exports_have_them),
        TEST(damage_is_found),
        TEST(a_failure_at_any_operation_leaves_a_whole_checkpoint_or_none),
        TEST(a_model_folder_that_is_gone_fails_the_save_and_the_earlier_one_stays),
        TEST(more_than_the_disk_has_is_refused_before_anything_is_written),
    };
    return cmocka_run_group_tests_name("checkpoint_carried", tests, NULL, NULL);
}
