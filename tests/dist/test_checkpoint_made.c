/* test_checkpoint_made.c - checkpoints whose every hash is right, made here tensor by tensor: what their tensors say
 * about each other is checked before anything is read by it. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "engine/checkpoint/manifest.h"
#include "tests/support/ckpt_world.h"

enum { TENSORS_MAX = 16 };

typedef struct made_tensor {
    const char *name;
    dsc_ckpt_file file;
    int64_t rows, cols; /* 0: none of this name */
} made_tensor;

static dsc_alloc *alloc;
static char *dir, *step_dir;
static const char *config; /* config.json of the checkpoint; NULL: none */
static uint8_t value_byte; /* each byte of the values; 255: they are NaN */

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    config = NULL;
    value_byte = 0;
    step_dir = strdup(cw_path(dir, "step-1"));
    return dsc_alloc_open(&alloc, NULL) == DSC_OK && mkdir(step_dir, 0700) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_alloc_close(&alloc);
    free(step_dir);
    cw_tmp_close(dir);
    return 0;
}

static void write_file(dsc_ckpt_file file, const dsc_safetensors_spec *specs, int64_t count, dsc_ckpt_file_info *info)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_safetensors_plan plan;
    assert_int_equal(dsc_safetensors_plan_open(&plan, alloc, specs, count, NULL, 0, &err), DSC_OK);
    char *bytes = calloc(1, (size_t)plan.file_bytes);
    assert_non_null(bytes);
    memset(bytes, value_byte, (size_t)plan.file_bytes);
    memcpy(bytes, plan.header, (size_t)plan.header_bytes);
    cw_write(cw_path(step_dir, dsc_ckpt_file_name[file]), bytes, (size_t)plan.file_bytes);
    *info = (dsc_ckpt_file_info) { .bytes = plan.file_bytes, .head_bytes = plan.header_bytes };
    dsc_ckpt_sha256(plan.header, plan.header_bytes, info->sha256);
    free(bytes);
    dsc_safetensors_plan_close(&plan);
}

static void write_small(dsc_ckpt_file file, const char *text, dsc_ckpt_file_info *info)
{
    const int64_t length = (int64_t)strlen(text);
    cw_write(cw_path(step_dir, dsc_ckpt_file_name[file]), text, strlen(text));
    *info = (dsc_ckpt_file_info) { .bytes = length, .head_bytes = length };
    dsc_ckpt_sha256(text, length, info->sha256);
}

/* Tensors of the model come first. */
static void make(const dsc_run_state *run, const made_tensor *tensors, size_t count, const char *adapter)
{
    char values[4096];
    dsc_ckpt_file_info files[DSC_CKPT_FILE_COUNT];
    dsc_safetensors_spec specs[TENSORS_MAX];
    dsc_ckpt_entry entry[TENSORS_MAX];
    dsc_ckpt_block block[TENSORS_MAX];
    dsc_ckpt_entries entries = { .entry = entry };
    char *text = NULL;
    int64_t bytes = 0;
    memset(values, value_byte, sizeof values);
    for (int f = 0; f < DSC_CKPT_FILE_COUNT; f++) {
        int64_t in_file = 0;
        files[f] = (dsc_ckpt_file_info) { .bytes = -1 };
        for (size_t t = 0; t < count; t++) {
            const made_tensor *m = &tensors[t];
            if ((int)m->file != f || m->rows == 0)
                continue;
            const dsc_dtype dtype = f == DSC_CKPT_MODEL ? run->compute_dtype : DSC_F32;
            const int32_t e = entries.count++;
            assert_in_range(e, 0, TENSORS_MAX - 1);
            specs[in_file++] = (dsc_safetensors_spec) { m->name, { dtype, 2, { m->rows, m->cols } } };
            entry[e] = (dsc_ckpt_entry) { .name = (char *)(uintptr_t)m->name, .file = m->file, .dtype = dtype,
                                          .count = m->rows * m->cols };
            block[e] = (dsc_ckpt_block) { .entry = e, .count = entry[e].count };
            const int64_t data_bytes = entry[e].count * (int64_t)dsc_dtype_bytes(dtype);
            assert_in_range(data_bytes, 1, sizeof values);
            block[e].hash = dsc_ckpt_block_hash(m->name, &block[e], run->step, values, data_bytes);
        }
        if (f < DSC_CKPT_TENSOR_FILE_COUNT)
            write_file((dsc_ckpt_file)f, specs, in_file, &files[f]);
    }
    if (adapter != NULL)
        write_small(DSC_CKPT_ADAPTER, adapter, &files[DSC_CKPT_ADAPTER]);
    if (config != NULL)
        write_small(DSC_CKPT_CONFIG, config, &files[DSC_CKPT_CONFIG]);
    assert_int_equal(dsc_ckpt_manifest_write(alloc, run, &entries, files, NULL, block, entries.count, &text, &bytes,
                                             NULL), DSC_OK);
    cw_write(cw_path(step_dir, DSC_CKPT_MANIFEST_FILE), text, (size_t)bytes);
    dsc_alloc_free(alloc, text);
}

static dsc_run_state run_of(dsc_dtype dtype)
{
    return (dsc_run_state) { .step = 1, .update_count = 1, .train_batch_size = 1, .micro_batch = 1,
                             .accumulation_steps = 1, .world_size = 1, .shard_ranks = 1, .document_end = -1,
                             .compute_dtype = dtype, .moment_dtype = DSC_F32, .recipe = DSC_RECIPE_ADAMW,
                             .cpu_level = "any", .versions = "any" };
}

static const made_tensor good[] = {
    { "x.weight", DSC_CKPT_MODEL, 4, 4 },
    { "x.lora_A.weight", DSC_CKPT_MODEL, 2, 4 },
    { "x.lora_B.weight", DSC_CKPT_MODEL, 4, 2 },
    { "master.x.lora_A.weight", DSC_CKPT_OPTIMIZER, 2, 4 },
    { "master.x.lora_B.weight", DSC_CKPT_OPTIMIZER, 4, 2 },
    { "master.x.weight", DSC_CKPT_OPTIMIZER, 4, 4 },
    { "exp_avg.x.weight", DSC_CKPT_OPTIMIZER, 4, 4 },
    { "exp_avg_sq.x.weight", DSC_CKPT_OPTIMIZER, 4, 4 },
};
static const char adapter_json[] = "{\"r\": 2, \"lora_alpha\": 2}";

/* As `dsc ckpt verify`, `dsc ckpt hash` and `dsc ckpt export --merge`. */
static void expect_all(dsc_status expected, const char *words)
{
    char hex[65];
    dsc_error err[3] = { DSC_ERROR_INIT, DSC_ERROR_INIT, DSC_ERROR_INIT };
    const dsc_ckpt_export_options options = { .out_dir = cw_path(dir, "out"), .dtype = DSC_F32, .shard_bytes = 1 << 20,
                                              .merge = true };
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, step_dir, &err[0]), expected);
    assert_int_equal(dsc_ckpt_hash(NULL, alloc, step_dir, hex, &err[1]), expected);
    assert_int_equal(dsc_ckpt_export(NULL, alloc, step_dir, &options, &err[2]), expected);
    assert_true(cw_exists(options.out_dir) == (expected == DSC_OK));
    for (size_t i = 0; i < DSC_COUNT(err) && expected != DSC_OK; i++)
        if (strstr(err[i].message, words) == NULL)
            fail_msg("expected \"%s\": %s", words, err[i].message);
    cw_remove(options.out_dir);
}

static void a_state_has_the_shape_of_its_weights(void **state)
{
    static const struct { size_t tensor; int64_t rows, cols; } bad[] = {
        { 5, 64, 4 }, { 5, 4, 3 }, { 5, 2, 8 }, { 3, 2, 64 }, { 4, 64, 2 }, { 6, 1, 4 }, { 7, 8, 4 },
    };
    const dsc_run_state run = run_of(DSC_BF16);
    made_tensor tensors[DSC_COUNT(good)];
    make(&run, good, DSC_COUNT(good), adapter_json);
    expect_all(DSC_OK, "");
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        memcpy(tensors, good, sizeof good);
        tensors[bad[i].tensor].rows = bad[i].rows;
        tensors[bad[i].tensor].cols = bad[i].cols;
        make(&run, tensors, DSC_COUNT(good), adapter_json);
        expect_all(DSC_ERR_INPUT, "has not the shape of its tensor in model.safetensors");
    }
}

static void a_state_belongs_to_a_tensor_of_the_model(void **state)
{
    const dsc_run_state run = run_of(DSC_BF16);
    made_tensor tensors[DSC_COUNT(good)];
    memcpy(tensors, good, sizeof good);
    tensors[5].name = "master.y.weight";
    make(&run, tensors, DSC_COUNT(good), adapter_json);
    expect_all(DSC_ERR_INPUT, "belongs to no tensor of model.safetensors");
}

/* Saves of older versions have no loss scaler. A merge of parts writes what it has read. */
static void fp16_without_a_loss_scaler_is_read_back(void **state)
{
    const dsc_run_state run = run_of(DSC_F16);
    dsc_ckpt_manifest manifest;
    dsc_error err = DSC_ERROR_INIT;
    make(&run, good, DSC_COUNT(good), adapter_json);
    assert_int_equal(dsc_ckpt_manifest_read(NULL, alloc, step_dir, &manifest, &err), DSC_OK);
    assert_true(manifest.state.loss_scaler.scale == 0);
    dsc_ckpt_manifest_close(&manifest);
    expect_all(DSC_OK, "");
}

static void expect_in_4_bits(dsc_status expected, const char *words)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_ckpt_export_options options = {
        .out_dir = cw_path(dir, "out"), .dtype = DSC_BF16, .shard_bytes = 1 << 20, .nf4 = DSC_NF4_NESTED
    };
    const dsc_run_state run = run_of(DSC_BF16);
    static const made_tensor tensors[] = {
        { "layers.0.x.weight", DSC_CKPT_MODEL, 5, 13 },
        { "head.weight", DSC_CKPT_MODEL, 4, 4 },
    };
    make(&run, tensors, DSC_COUNT(tensors), NULL);
    assert_int_equal(dsc_ckpt_export(NULL, alloc, step_dir, &options, &err), expected);
    assert_true(cw_exists(options.out_dir) == (expected == DSC_OK));
    if (expected != DSC_OK && strstr(err.message, words) == NULL)
        fail_msg("expected \"%s\": %s", words, err.message);
    cw_remove(options.out_dir);
}

static void weights_that_4_bits_cannot_hold_are_refused(void **state)
{
    static const struct {
        dsc_status status;
        const char *config, *words;
        uint8_t value_byte;
    } bad[] = {
        { DSC_ERR_INPUT, NULL, "has no config.json", 0 },
        { DSC_ERR_UNSUPPORTED, "{}", "\"model_type\" is \"\"", 0 },
        { DSC_ERR_UNSUPPORTED, "{\"model_type\": 1}", "\"model_type\" is \"\"", 0 },
        { DSC_ERR_UNSUPPORTED, "{\"model_type\": \"mpt\"}", "\"model_type\" is \"mpt\"", 0 },
        { DSC_ERR_UNSUPPORTED, "[\"llama\"]", "\"model_type\" is \"\"", 0 },
        { DSC_ERR_INPUT, "{\"model_type\": \"llama\", \"quantization_config\": {}}", "is there already", 0 },
        { DSC_ERR_INPUT, "{\"model_type\": \"llama\"}", "tensor \"layers.0.x.weight\" has the value", 255 },
    };
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        config = bad[i].config;
        value_byte = bad[i].value_byte;
        expect_in_4_bits(bad[i].status, bad[i].words);
    }
    config = "{\"model_type\": \"llama\"}";
    value_byte = 0;
    expect_in_4_bits(DSC_OK, "");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_state_has_the_shape_of_its_weights),
        TEST(a_state_belongs_to_a_tensor_of_the_model),
        TEST(fp16_without_a_loss_scaler_is_read_back),
        TEST(weights_that_4_bits_cannot_hold_are_refused),
    };
    return cmocka_run_group_tests_name("checkpoint_made", tests, NULL, NULL);
}
