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
static const char *config;                  /* config.json of the checkpoint; NULL: none */
static uint8_t value_byte;                  /* each byte of the values; 255: they are NaN */
static const dsc_safetensors_spec *buffers; /* [buffer_count] of the checkpoint; NULL: no file of them */
static int64_t buffer_count;
static const char *buffers_text; /* the file's bytes instead; NULL: none */

static int setup(void **state)
{
    dir = cw_memory_tmp_open();
    config = NULL;
    value_byte = 0;
    buffers = NULL;
    buffers_text = NULL;
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

/* A file without blocks has the hash of all its bytes. */
static void hash_whole(dsc_ckpt_file file, dsc_ckpt_file_info *info)
{
    size_t bytes;
    char *const text = cw_read(cw_path(step_dir, dsc_ckpt_file_name[file]), &bytes);
    info->head_bytes = (int64_t)bytes;
    dsc_ckpt_sha256(text, info->head_bytes, info->sha256);
    free(text);
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
            entry[e] = (dsc_ckpt_entry) {
                .name = (char *)(uintptr_t)m->name, .file = m->file, .dtype = dtype, .count = m->rows * m->cols
            };
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
    if (buffers != NULL) {
        write_file(DSC_CKPT_BUFFERS, buffers, buffer_count, &files[DSC_CKPT_BUFFERS]);
        hash_whole(DSC_CKPT_BUFFERS, &files[DSC_CKPT_BUFFERS]);
    }
    if (buffers_text != NULL)
        write_small(DSC_CKPT_BUFFERS, buffers_text, &files[DSC_CKPT_BUFFERS]);
    assert_int_equal(
        dsc_ckpt_manifest_write(alloc, run, &entries, files, NULL, block, entries.count, &text, &bytes, NULL), DSC_OK);
    cw_write(cw_path(step_dir, DSC_CKPT_MANIFEST_FILE), text, (size_t)bytes);
    dsc_alloc_free(alloc, text);
}

static dsc_run_state run_of(dsc_dtype dtype)
{
    return (dsc_run_state) { .step = 1,
                             .update_count = 1,
                             .train_batch_size = 1,
                             .micro_batch = 1,
                             .accumulation_steps = 1,
                             .world_size = 1,
                             .shard_ranks = 1,
                             .document_end = -1,
                             .compute_dtype = dtype,
                             .moment_dtype = DSC_F32,
                             .recipe = DSC_RECIPE_ADAMW,
                             .cpu_level = "any",
                             .versions = "any" };
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
    const dsc_ckpt_export_options options = {
        .out_dir = cw_path(dir, "out"), .dtype = DSC_F32, .shard_bytes = 1 << 20, .merge = true
    };
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
    static const struct {
        size_t tensor;
        int64_t rows, cols;
    } bad[] = {
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

static void expect_buffers(dsc_status expected, const dsc_safetensors_spec *specs, int64_t count, const char *words)
{
    const dsc_run_state run = run_of(DSC_BF16);
    buffers = specs;
    buffer_count = count;
    make(&run, good, DSC_COUNT(good), adapter_json);
    expect_all(expected, words);
}

static void buffers_are_averages_and_counts(void **state)
{
    static const dsc_safetensors_spec mean = { "bn.mean", { DSC_F32, 1, { 4 } } };
    static const struct {
        dsc_safetensors_spec spec;
        const char *words;
    } bad[] = {
        { { "bn.steps", { DSC_I32, 0, { 0 } } }, "tensor \"bn.steps\" is not a buffer" },
        { { "bn.steps", { DSC_I64, 1, { 1 } } }, "tensor \"bn.steps\" is not a buffer" },
        { { "bn.var", { DSC_F32, 2, { 2, 2 } } }, "tensor \"bn.var\" is not a buffer" },
        { { "bn.var", { DSC_F32, 0, { 0 } } }, "tensor \"bn.var\" is not a buffer" },
        { { "bn.var", { DSC_F32, 1, { 0 } } }, "tensor \"bn.var\" is not a buffer" },
        { { "bn.var", { DSC_BF16, 1, { 4 } } }, "tensor \"bn.var\" is not a buffer" },
        { { "bn.var", { DSC_F32, 1, { DSC_BUFFERS_ELEMENTS_MAX } } }, "has more than 3145728 elements" },
        { { "x.weight", { DSC_F32, 1, { 4 } } }, "buffer \"x.weight\" is also a tensor of model.safetensors" },
    };
    dsc_safetensors_spec two[2] = { mean, { "bn.steps", { DSC_I64, 0, { 0 } } } };
    expect_buffers(DSC_OK, two, 2, "");
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        two[1] = bad[i].spec;
        expect_buffers(DSC_ERR_INPUT, two, 2, bad[i].words);
    }
    value_byte = 255;
    two[1] = (dsc_safetensors_spec) { "bn.steps", { DSC_I64, 0, { 0 } } };
    expect_buffers(DSC_ERR_INPUT, two, 2, "buffer \"bn.steps\" counts -1 steps");
    value_byte = 0;
}

/* "ema.NAME" is the average of buffer NAME of the file, and another buffer where there is no such one. */
static void averages_of_buffers_have_their_sizes(void **state)
{
    static const dsc_safetensors_spec fine[] = { { "bn.mean", { DSC_F32, 1, { 4 } } },
                                                 { "ema.bn.mean", { DSC_F32, 1, { 4 } } },
                                                 { "ema.bn.var", { DSC_F32, 1, { 3 } } } };
    static const dsc_safetensors_spec bad[][2] = {
        { { "bn.mean", { DSC_F32, 1, { 4 } } }, { "ema.bn.mean", { DSC_F32, 1, { 3 } } } },
        { { "bn.mean", { DSC_F32, 1, { 4 } } }, { "ema.bn.mean", { DSC_I64, 0, { 0 } } } },
        { { "bn.mean", { DSC_I64, 0, { 0 } } }, { "ema.bn.mean", { DSC_I64, 0, { 0 } } } },
    };
    (void)state;
    expect_buffers(DSC_OK, fine, 3, "");
    for (size_t i = 0; i < DSC_COUNT(bad); i++)
        expect_buffers(DSC_ERR_INPUT, bad[i], 2, "tensor \"ema.bn.mean\" has another size or dtype than its buffer");
}

static void a_file_of_buffers_that_is_none_is_refused(void **state)
{
    static const char *const texts[] = { "", "a text", "\x08\xff\xff\xff\xff\xff\xff\x7f{}", "12345678{\"a\": 1}" };
    const dsc_run_state run = run_of(DSC_BF16);
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        buffers_text = texts[i];
        make(&run, good, DSC_COUNT(good), adapter_json);
        expect_all(DSC_ERR_INPUT, "");
    }
}

/* The size is read whole, so the manifest's word alone must not decide it. */
static void a_huge_file_of_buffers_is_refused_by_its_manifest(void **state)
{
    static const int64_t sizes[] = { DSC_CKPT_SMALL_BYTES_MAX + 1, INT64_C(1) << 50 };
    static const dsc_safetensors_spec mean = { "bn.mean", { DSC_F32, 1, { 4 } } };
    const dsc_run_state run = run_of(DSC_BF16);
    dsc_ckpt_manifest manifest;
    dsc_error err = DSC_ERROR_INIT;
    buffers = &mean;
    buffer_count = 1;
    make(&run, good, DSC_COUNT(good), adapter_json);
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        char *text = NULL;
        int64_t bytes;
        assert_int_equal(dsc_ckpt_manifest_read(NULL, alloc, step_dir, &manifest, &err), DSC_OK);
        manifest.file[DSC_CKPT_BUFFERS].bytes = manifest.file[DSC_CKPT_BUFFERS].head_bytes = sizes[i];
        dsc_ckpt_entry entry[TENSORS_MAX] = { 0 };
        const dsc_ckpt_entries entries = { .entry = entry, .count = (int32_t)manifest.tensor_count };
        for (int32_t t = 0; t < entries.count; t++)
            entry[t] = (dsc_ckpt_entry) { .name = manifest.tensor[t].name,
                                          .file = (dsc_ckpt_file)manifest.tensor[t].file,
                                          .count = manifest.tensor[t].elements,
                                          .dtype = manifest.tensor[t].dtype };
        assert_int_equal(dsc_ckpt_manifest_write(alloc, &run, &entries, manifest.file, NULL, manifest.block,
                                                 manifest.block_count, &text, &bytes, &err),
                         DSC_OK);
        cw_write(cw_path(step_dir, DSC_CKPT_MANIFEST_FILE), text, (size_t)bytes);
        dsc_alloc_free(alloc, text);
        dsc_ckpt_manifest_close(&manifest);
        expect_all(DSC_ERR_INPUT, "damaged manifest");
        make(&run, good, DSC_COUNT(good), adapter_json);
    }
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
        TEST(buffers_are_averages_and_counts),
        TEST(averages_of_buffers_have_their_sizes),
        TEST(a_file_of_buffers_that_is_none_is_refused),
        TEST(a_huge_file_of_buffers_is_refused_by_its_manifest),
        TEST(weights_that_4_bits_cannot_hold_are_refused),
    };
    return cmocka_run_group_tests_name("checkpoint_made", tests, NULL, NULL);
}
