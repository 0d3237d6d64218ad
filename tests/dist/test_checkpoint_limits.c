/* test_checkpoint_limits.c - a checkpoint that could not be read back is refused before a byte is written, and the
 * memory of a load stays small for any size of the model. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/checkpoint/manifest.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/toy_model.h"

static dsc_alloc *alloc;

static int setup(void **state) { return dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1; }

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    return 0;
}

static dsc_status save_refused(cw_rank *rank, dsc_error *err)
{
    const char *dir = rank->user;
    DSC_TRY(cw_train(rank, 1, err));
    CW_CHECK(dsc_engine_save(rank->engine, dir, err) == DSC_ERR_UNSUPPORTED);
    if (strstr(err->message, "bytes; at most") == NULL || strcmp(err->where, "config.json") != 0)
        cw_fail(err->where, __FILE__, __LINE__, err->message);
    return cw_train(rank, 2, err);
}

static void a_config_too_large_to_read_back(void **state)
{
    char *dir = cw_tmp_open(), *text = malloc(DSC_CKPT_SMALL_BYTES_MAX + 2);
    dsc_model *model = toy_model_open(3, 16, 1, true);
    dsc_model large = *model;
    memset(text, ' ', DSC_CKPT_SMALL_BYTES_MAX + 1);
    text[DSC_CKPT_SMALL_BYTES_MAX + 1] = 0;
    large.config_json = text;
    cw_run_well(&(cw_options){ .world = 2, .stage = 2, .model = &large }, save_refused, cw_path(dir, "run"));
    assert_false(cw_exists(cw_path(dir, "run"))); /* not even the folder was made */
    toy_model_close(model);
    free(text);
    cw_tmp_close(dir);
}

/* As many tensors as make a manifest of `bytes` or a little more. */
static dsc_status check_manifest(int64_t bytes, dsc_error *err)
{
    char name[DSC_CKPT_PATH_BYTES];
    int64_t each = DSC_SAFETENSORS_NAME_BYTES_MAX;
    memset(name, 'n', (size_t)each);
    name[each] = 0;
    const int32_t count = (int32_t)(bytes / (each + 100));
    const dsc_run_state run = { .step = 1 };
    dsc_ckpt_file_info files[DSC_CKPT_FILE_COUNT] = {
        { .bytes = 1 }, { .bytes = 1 }, { .bytes = -1 }, { .bytes = -1 }, { .bytes = -1 }, { .bytes = -1 }
    };
    dsc_ckpt_entries entries = { .count = count };
    dsc_ckpt_block *block;
    char *text = NULL;
    int64_t length = 0;
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_IO, count, sizeof *entries.entry, &entries.entry, err), DSC_OK);
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_IO, count, sizeof *block, &block, err), DSC_OK);
    for (int32_t e = 0; e < count; e++) {
        entries.entry[e] = (dsc_ckpt_entry) { .name = name, .count = 1, .dtype = DSC_F32 };
        block[e] = (dsc_ckpt_block) { .entry = e, .count = 1 };
    }
    const dsc_status status = dsc_ckpt_manifest_check(&run, &entries, files, NULL, block, count, err);
    assert_int_equal(dsc_ckpt_manifest_write(alloc, &run, &entries, files, NULL, block, count, &text, &length, NULL),
                     DSC_OK);
    assert_int_equal(status == DSC_OK, length <= DSC_CKPT_MANIFEST_BYTES_MAX);
    assert_int_equal(length, (int64_t)strlen(text));
    dsc_alloc_free(alloc, text);
    dsc_alloc_free(alloc, block);
    dsc_alloc_free(alloc, entries.entry);
    return status;
}

static void a_manifest_too_large_to_read_back(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(check_manifest(DSC_CKPT_MANIFEST_BYTES_MAX / 2, &err), DSC_OK);
    assert_int_equal(check_manifest(DSC_CKPT_MANIFEST_BYTES_MAX + (8 << 20), &err), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "so it was not written"));
}

/* Beside its buffer. test_checkpoint.c's memory_is_planned holds loads to this number. */
static void a_load_takes_little_whatever_the_model(void **state)
{
    static const char *const names[] = { "gpt2-124m", "gpt2-xl", "llama-3.1-8b" };
    dsc_error err = DSC_ERROR_INIT;
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        for (int32_t world = 1; world <= 64; world *= 8) {
            const dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
            dsc_model *model = NULL;
            dsc_layout layout;
            assert_int_equal(dsc_model_open(&model, names[i], &options, &err), DSC_OK);
            assert_int_equal(
                dsc_layout_open(
                    alloc, model,
                    &(dsc_layout_rules) { .recipe = DSC_RECIPE_ADAMW, .moment_dtype = DSC_F32, .world_size = world },
                    &layout, &err),
                DSC_OK);
            const int64_t bytes =
                dsc_ckpt_plan_bytes(&layout, DSC_BF16, DSC_F32, DSC_RECIPE_ADAMW, &(dsc_ckpt_uses) { .loads = true });
            assert_true(bytes + DSC_CKPT_BUFFER_BYTES_MOST < INT64_C(64) << 20);
            dsc_layout_close(&layout);
            dsc_model_close(&model);
        }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_config_too_large_to_read_back),
        TEST(a_manifest_too_large_to_read_back),
        TEST(a_load_takes_little_whatever_the_model),
    };
    return cmocka_run_group_tests_name("checkpoint_limits", tests, NULL, NULL);
}
