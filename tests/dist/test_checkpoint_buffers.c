/* test_checkpoint_buffers.c - buffers of modules in checkpoints: saves and loads at any number of ranks go on with
 * equal bits, tools see them, and what does not fit is refused. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/formats/safetensors.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_buffers.h"

#define SAVED 2 /* steps before a save */
#define REST 2  /* steps after a load */

static dsc_model *model;
static dsc_module modules[4]; /* a copy of the model's, to be changed */
static char *dir;

static int setup(void **state)
{
    model = toy_buffers_open();
    memcpy(modules, model->modules, sizeof modules);
    model->modules = modules;
    model->load_buffer = NULL;
    dir = cw_memory_tmp_open();
    return 0;
}

static int teardown(void **state)
{
    toy_buffers_close();
    cw_tmp_close(dir);
    return 0;
}

/* ---- runs ---- */

typedef struct trip {
    const char *load, *save; /* NULL: none */
    int64_t expected;        /* steps that the buffers are expected to have seen at the end; -1: any */
    bool async;
    const char *load_hosts, *save_hosts; /* a letter for each rank, its folder in `load` or `save`; NULL: one folder */
} trip;

static const char *folder(const char *path, const char *hosts, int32_t rank)
{
    const char name[2] = { hosts != NULL ? hosts[rank] : 0, 0 };
    return hosts != NULL ? cw_path(path, name) : path;
}

static dsc_status before(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const trip *t = user;
    return t->load != NULL ? dsc_engine_load(engine, folder(t->load, t->load_hosts, rank), err) : DSC_OK;
}

/* A save beside training ends after another step. */
static dsc_status after(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    trip *t = user;
    if (t->expected >= 0)
        DSC_TRY(toy_buffers_expect(engine, rank, &t->expected, err));
    if (t->save == NULL || !t->async)
        return t->save != NULL ? dsc_engine_save(engine, folder(t->save, t->save_hosts, rank), err) : DSC_OK;
    DSC_TRY(dsc_engine_save_start(engine, t->save, err));
    DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    return dsc_engine_save_wait(engine, NULL, err);
}

static void run(int32_t world, int32_t stage, int64_t steps, trip *t, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d, \"bf16\": {\"enabled\": true},"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}},"
             " \"checkpoint\": {\"use_node_local_storage\": %s},"
             " \"zero_optimization\": {\"stage\": %d}, \"dsc\": {\"threads\": 1, \"device\": \"cpu\","
             " \"reproducible\": \"world_size\", \"save_async\": %s}}",
             TOY_BUFFERS_BATCH, TOY_BUFFERS_MICRO, t->load_hosts != NULL || t->save_hosts != NULL ? "true" : "false",
             (int)stage, t->async ? "true" : "false");
    run_model(model, toy_buffers_data(), world, config,
              &(run_options) { .steps = steps, .before = before, .after = after, .user = t }, out);
}

static void run_on(int32_t world, int32_t stage, int64_t steps, trip t, run_result *out)
{
    run(world, stage, steps, &t, out);
    if (out->status != DSC_OK)
        fail_msg("%d ranks: %s: %s", (int)world, out->error.where, out->error.message);
}

static void save(int32_t world, const char *name)
{
    run_result out;
    run_on(world, 1, SAVED, (trip) { .save = cw_path(dir, name), .expected = SAVED }, &out);
}

static const char *step_of(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "%s/step-%d", name, SAVED);
    return cw_path(dir, path);
}

static void expect_same_file(const char *a, const char *b)
{
    size_t bytes[2];
    char *const left = cw_read(a, &bytes[0]), *const right = cw_read(b, &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(left, right, bytes[0]);
    free(left);
    free(right);
}

static void any_number_of_ranks_goes_on_with_equal_bits(void **state)
{
    run_result whole, rest;
    run_on(1, 0, SAVED + REST, (trip) { .expected = SAVED + REST }, &whole);
    save(1, "one");
    save(4, "four");
    expect_same_file(cw_path(step_of("one"), "buffers.safetensors"), cw_path(step_of("four"), "buffers.safetensors"));
    for (int32_t world = 1; world <= 4; world *= 2) {
        run_on(world, world - 1, REST,
               (trip) { .load = cw_path(dir, world == 2 ? "one" : "four"), .expected = SAVED + REST }, &rest);
        assert_string_equal(whole.hash, rest.hash);
    }
}

/* A rank that made steps loads earlier values over its own. */
static dsc_status go_back(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    int64_t steps = SAVED;
    DSC_TRY(dsc_engine_load(engine, user, err));
    return toy_buffers_expect(engine, rank, &steps, err);
}

static void a_run_that_made_steps_loads_too(void **state)
{
    run_result out;
    char *const from = strdup(cw_path(dir, "one"));
    save(2, "one");
    run_model(model, toy_buffers_data(), 2,
              "{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true},"
              " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}, \"dsc\": {\"device\": \"cpu\"}}",
              &(run_options) { .steps = 3, .after = go_back, .user = from }, &out);
    assert_int_equal(out.status, DSC_OK);
    free(from);
}

static void a_save_beside_training_has_the_values_of_its_step(void **state)
{
    run_result out;
    run_on(2, 2, SAVED, (trip) { .save = cw_path(dir, "async"), .expected = SAVED, .async = true }, &out);
    save(1, "one");
    expect_same_file(cw_path(step_of("async"), "buffers.safetensors"), cw_path(step_of("one"), "buffers.safetensors"));
    run_on(1, 0, REST, (trip) { .load = cw_path(dir, "async"), .expected = SAVED + REST }, &out);
}

static void a_model_without_buffers_has_no_such_file(void **state)
{
    run_result out;
    for (size_t m = 0; m < DSC_COUNT(modules); m++)
        modules[m].buffer_count = 0;
    run_on(1, 0, SAVED, (trip) { .save = cw_path(dir, "none"), .expected = -1 }, &out);
    assert_true(cw_exists(cw_path(step_of("none"), "model.safetensors")));
    assert_false(cw_exists(cw_path(step_of("none"), "buffers.safetensors")));
    size_t bytes;
    char *const text = cw_read(cw_path(step_of("none"), "manifest.json"), &bytes);
    assert_null(strstr(text, "buffers"));
    free(text);
}

/* Each host's part has all buffers. Ranks on a new host get them from others, and a merge has them once. */
static void hosts_without_a_common_folder_have_them_all(void **state)
{
    run_result out;
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    save(1, "one");
    char *const hosts = strdup(cw_path(dir, "hosts"));
    run_on(4, 2, SAVED, (trip) { .save = hosts, .save_hosts = "aabb", .expected = SAVED }, &out);
    run_on(4, 1, REST, (trip) { .load = hosts, .load_hosts = "cbca", .expected = SAVED + REST }, &out);
    run_on(2, 3, REST, (trip) { .load = hosts, .load_hosts = "ba", .expected = SAVED + REST }, &out);
    char *const parts[2] = { strdup(cw_path(hosts, "a/step-2")), strdup(cw_path(hosts, "b/step-2")) };
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    assert_int_equal(dsc_ckpt_merge(NULL, alloc, (const char *const *)parts, 2, cw_path(dir, "step-2"), &err), DSC_OK);
    dsc_alloc_close(&alloc);
    expect_same_file(cw_path(dir, "step-2/buffers.safetensors"), cw_path(step_of("one"), "buffers.safetensors"));
    run_on(1, 0, REST, (trip) { .load = cw_path(dir, "step-2"), .expected = SAVED + REST }, &out);
    free(parts[0]);
    free(parts[1]);
    free(hosts);
}

/* ---- what does not fit ---- */

static void expect_refusal(const char *from, const char *words)
{
    run_result out;
    trip t = { .load = from, .expected = -1 };
    for (int32_t world = 1; world <= 2; world++) {
        run(world, 1, REST, &t, &out);
        assert_int_equal(out.status, DSC_ERR_INPUT);
        if (strstr(out.error.message, words) == NULL)
            fail_msg("expected \"%s\": %s", words, out.error.message);
    }
}

static void other_buffers_are_refused(void **state)
{
    dsc_buffer_spec specs[4];
    save(2, "saved");
    const char *const from = strdup(cw_path(dir, "saved"));
    memcpy(specs, modules[1].buffers, sizeof specs);
    modules[1].buffers = specs;
    specs[0].count = 6;
    expect_refusal(from, "buffer \"block.0.mean\" has 5 elements in F32; the model's has 6 in F32");
    specs[0].count = 5;
    specs[2].kind = DSC_BUFFER_AVERAGE;
    expect_refusal(from, "buffer \"block.0.steps\" has 1 elements in I64; the model's has 1 in F32");
    specs[2].kind = DSC_BUFFER_STEPS;
    specs[1].name = "block.0.variance";
    expect_refusal(from, "the checkpoint has no buffer \"block.0.variance\", which the model needs");
    specs[1].name = "block.0.wide";
    modules[1].buffer_count = 3;
    expect_refusal(from, "9 buffers; the model has 8");
    for (size_t m = 0; m < DSC_COUNT(modules); m++)
        modules[m].buffer_count = 0;
    expect_refusal(from, "9 buffers; the model has 0");
    run_result out;
    run_on(1, 0, SAVED, (trip) { .save = cw_path(dir, "none"), .expected = -1 }, &out);
    modules[1].buffer_count = 4;
    expect_refusal(cw_path(dir, "none"), "the checkpoint has no buffer \"block.0.mean\", which the model needs");
    free((char *)(uintptr_t)from);
}

/* ---- values of a model's files ---- */

static dsc_status file_status;
static float file_value;
static int64_t file_steps;

static dsc_status load_buffer(const dsc_model *of, int32_t module, int32_t buffer, void *out, bool *found,
                              dsc_error *err)
{
    const dsc_buffer_spec *spec = &of->modules[module].buffers[buffer];
    *found = module == 1 && !spec->frozen;
    if (file_status != DSC_OK)
        return DSC_FAIL(err, file_status, "model.safetensors", "buffer %s cannot be read", spec->name);
    for (int64_t i = 0; *found && spec->kind == DSC_BUFFER_AVERAGE && i < spec->count; i++)
        ((float *)out)[i] = file_value;
    if (*found && spec->kind == DSC_BUFFER_STEPS)
        *(int64_t *)out = file_steps;
    return DSC_OK;
}

static dsc_status expect_loaded(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    float value[TOY_BUFFERS_WIDE];
    int64_t steps;
    DSC_TRY(dsc_probe_buffer(engine, "block.0.wide", value, err));
    CW_CHECK(value[0] == 0.75f && value[TOY_BUFFERS_WIDE - 1] == 0.75f);
    DSC_TRY(dsc_probe_buffer(engine, "block.0.steps", &steps, err));
    CW_CHECK(steps == 40);
    DSC_TRY(dsc_probe_buffer(engine, "block.1.wide", value, err));
    CW_CHECK(value[0] == 0.25f);
    return DSC_OK;
}

static void values_come_from_the_models_files(void **state)
{
    static const char config[] =
        "{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, \"dsc\": {\"device\": \"cpu\"},"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}}";
    const run_options options = { .steps = 1, .before = expect_loaded };
    run_result out;
    model->load_buffer = load_buffer;
    file_status = DSC_OK, file_value = 0.75f, file_steps = 40;
    run_model(model, toy_buffers_data(), 2, config, &options, &out);
    assert_int_equal(out.status, DSC_OK);
    file_status = DSC_ERR_INPUT;
    run_model(model, toy_buffers_data(), 2, config, &options, &out);
    assert_int_equal(out.status, DSC_ERR_INPUT);
    assert_non_null(strstr(out.error.message, "cannot be read"));
    file_status = DSC_OK, file_steps = -1;
    run_model(model, toy_buffers_data(), 2, config, &options, &out);
    assert_int_equal(out.status, DSC_ERR_INPUT);
    assert_non_null(strstr(out.error.message, "buffer \"block.0.steps\" counts -1 steps"));
    file_steps = 0, file_value = (float)1e300;
    run_model(model, toy_buffers_data(), 2, config, &options, &out);
    assert_int_equal(out.status, DSC_ERR_INPUT);
    assert_non_null(strstr(out.error.message, "buffer \"block.0.mean\" has the value inf"));
}

/* ---- tools ---- */

typedef struct found_rows {
    int buffers, others;
    char last[256];
} found_rows;

static void note_row(void *user, const dsc_ckpt_diff_row *row)
{
    found_rows *found = user;
    found->buffers += strcmp(row->plane, "buffer") == 0;
    found->others += strcmp(row->plane, "buffer") != 0;
    snprintf(found->last, sizeof found->last, "%s %s %d %g", row->tensor, row->what != NULL ? row->what : "values",
             (int)row->differing, row->largest);
}

/* Two runs whose weights are equal and whose buffers are not: another momentum. */
static void tools_see_buffers(void **state)
{
    dsc_buffer_spec specs[4];
    dsc_alloc *alloc = NULL;
    found_rows found = { 0 };
    char hex[3][65];
    int64_t differing = 0;
    dsc_error err = DSC_ERROR_INIT;
    run_result out;
    const dsc_ckpt_diff_sink sink = { note_row, &found };
    save(2, "a");
    memcpy(specs, modules[1].buffers, sizeof specs);
    modules[1].buffers = specs;
    specs[0].momentum = 0.2;
    run_on(1, 0, SAVED, (trip) { .save = cw_path(dir, "b"), .expected = -1 }, &out);
    modules[1].buffer_count = 3;
    run_on(1, 0, SAVED, (trip) { .save = cw_path(dir, "c"), .expected = -1 }, &out);
    cw_hash_of(step_of("a"), hex[0]); /* and verifies */
    cw_hash_of(step_of("b"), hex[1]);
    cw_hash_of(step_of("c"), hex[2]);
    assert_string_not_equal(hex[0], hex[1]);
    assert_string_not_equal(hex[1], hex[2]);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const char *const ab[2] = { step_of("a"), step_of("b") }, *const bc[2] = { step_of("b"), step_of("c") };
    assert_int_equal(dsc_ckpt_diff(NULL, alloc, ab, &sink, &differing, &err), DSC_OK);
    assert_int_equal(differing, 1);
    assert_int_equal(found.buffers, 1);
    assert_int_equal(found.others, 0);
    assert_non_null(strstr(found.last, "block.0.mean values 5 "));
    assert_int_equal(dsc_ckpt_diff(NULL, alloc, bc, &sink, &differing, &err), DSC_OK);
    assert_int_equal(differing, 1);
    assert_non_null(strstr(found.last, "block.0.kept only in the first"));
    dsc_alloc_close(&alloc);
}

/* As torch's state_dict: fp32 and int64 whatever the weights are in, and a count has no dimension. */
static void exports_have_buffers_in_pytorchs_dtypes(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    save(4, "a");
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    for (int sharded = 0; sharded < 2; sharded++) {
        const dsc_ckpt_export_options options = { .out_dir = cw_path(dir, "out"),
                                                  .dtype = DSC_BF16,
                                                  .shard_bytes = sharded ? 200 : 1 << 20 };
        assert_int_equal(dsc_ckpt_export(NULL, alloc, step_of("a"), &options, &err), DSC_OK);
        assert_true(cw_exists(cw_path(options.out_dir, "model.safetensors.index.json")) == (sharded == 1));
        assert_false(cw_exists(cw_path(options.out_dir, "buffers.safetensors")));
        dsc_safetensors *file = NULL;
        double wanted[TOY_BUFFERS_WIDE], there[TOY_BUFFERS_WIDE];
        if (sharded == 0) {
            assert_int_equal(
                dsc_safetensors_open(&file, NULL, alloc, cw_path(options.out_dir, "model.safetensors"), &err), DSC_OK);
            static const char *const names[] = { "block.0.mean", "block.1.wide", "block.1.kept", "block.0.steps",
                                                 "loss.mean" };
            for (size_t i = 0; i < DSC_COUNT(names); i++) {
                const dsc_safetensors_entry *e = dsc_safetensors_find(file, names[i]);
                const int64_t bytes = toy_buffers_expected(names[i], SAVED, wanted);
                assert_non_null(e);
                assert_int_equal(e->desc.dtype, i == 3 ? DSC_I64 : DSC_F32);
                assert_int_equal(e->desc.dim_count, i == 3 ? 0 : 1);
                assert_int_equal(e->bytes, bytes);
                assert_int_equal(dsc_safetensors_read_bytes(file, e, 0, bytes, there, &err), DSC_OK);
                assert_memory_equal(wanted, there, (size_t)bytes);
            }
            assert_int_equal(dsc_safetensors_find(file, "block.0.weight")->desc.dtype, DSC_BF16);
            dsc_safetensors_close(&file);
        }
        cw_remove(options.out_dir);
    }
    dsc_alloc_close(&alloc);
}

/* A batch norm of PyTorch takes them by load_state_dict. */
static void pytorch_loads_an_export(void **state)
{
    static const char script[] =
        "import sys, torch; from safetensors.torch import load_file; d = load_file(sys.argv[1]);"
        " bn = torch.nn.BatchNorm1d(5);"
        " bn.load_state_dict({'weight': torch.ones(5), 'bias': torch.zeros(5), 'running_mean': d['block.0.mean'],"
        " 'running_var': d['block.1.mean'], 'num_batches_tracked': d['block.0.steps']});"
        " assert bn.num_batches_tracked.item() == 23, bn.num_batches_tracked;"
        " assert bn.num_batches_tracked.dtype == d['block.0.steps'].dtype;"
        " assert d['block.0.weight'].dtype == torch.bfloat16 and d['block.0.mean'].dtype == torch.float32";
    const char *python = getenv("DSC_TEST_PYTHON");
    const dsc_ckpt_export_options options = { .out_dir = cw_path(dir, "out"),
                                              .dtype = DSC_BF16,
                                              .shard_bytes = 1 << 20 };
    char command[2048];
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    if (python == NULL) {
        print_message("DSC_TEST_PYTHON, a Python with torch, is not set\n");
        skip();
    }
    save(2, "a");
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    assert_int_equal(dsc_ckpt_export(NULL, alloc, step_of("a"), &options, &err), DSC_OK);
    dsc_alloc_close(&alloc);
    snprintf(command, sizeof command, "'%s' -c \"%s\" '%s/model.safetensors'", python, script, options.out_dir);
    assert_int_equal(system(command), 0);
}

/* Every allocation of a save and a load may fail: an error, and nothing leaked (close asserts). */
static void allocations_that_fail_leak_nothing(void **state)
{
    trip t = { .load = strdup(cw_path(dir, "a")), .save = strdup(cw_path(dir, "b")), .expected = SAVED + 1 };
    const char config[] = "{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2,"
                          " \"bf16\": {\"enabled\": true}, \"dsc\": {\"threads\": 1, \"device\": \"cpu\"},"
                          " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}}";
    run_options options = { .world = 1,
                            .steps = 1,
                            .model = model,
                            .data = toy_buffers_data(),
                            .config = config,
                            .before = before,
                            .after = after,
                            .user = &t };
    run_result out = { .status = DSC_ERR_NOMEM };
    save(1, "a");
    for (options.fail_alloc_at = 1; out.status != DSC_OK; options.fail_alloc_at += 5) {
        run_world(&options, &out);
        if (out.status != DSC_OK && out.status != DSC_ERR_NOMEM)
            fail_msg("allocation %d: %s", (int)options.fail_alloc_at, out.error.message);
    }
    assert_true(options.fail_alloc_at > 200);
    free((char *)(uintptr_t)t.load);
    free((char *)(uintptr_t)t.save);
}

/* Each byte of the file is covered by its hash. */
static void damage_is_found(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    size_t bytes;
    save(1, "a");
    char *const step = strdup(step_of("a")), *const path = strdup(cw_path(step, "buffers.safetensors"));
    char *const whole = cw_read(path, &bytes);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    for (size_t i = 0; i < bytes; i += 7) {
        whole[i] = (char)(whole[i] ^ 4);
        cw_write(path, whole, bytes);
        assert_int_equal(dsc_ckpt_verify(NULL, alloc, step, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "SHA-256 differs"));
        whole[i] = (char)(whole[i] ^ 4);
    }
    cw_write(path, whole, bytes - 1);
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, step, &err), DSC_ERR_INPUT);
    cw_remove(path);
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, step, &err), DSC_ERR_INPUT);
    cw_write(path, whole, bytes);
    assert_int_equal(dsc_ckpt_verify(NULL, alloc, step, &err), DSC_OK);
    free(whole);
    free(path);
    free(step);
    dsc_alloc_close(&alloc);
}

/* A step that is made again after a load: the same bytes are kept, other buffers are refused. */
static void an_existing_step_is_compared_with_its_buffers(void **state)
{
    dsc_buffer_spec specs[4];
    run_result out;
    trip again = { .load = cw_path(dir, "a/step-2"), .save = cw_path(dir, "a"), .expected = -1 };
    save(1, "a");
    run_on(1, 0, REST, (trip) { .load = cw_path(dir, "a"), .save = cw_path(dir, "a"), .expected = -1 }, &out);
    again.load = cw_path(dir, "a/step-2"), again.save = cw_path(dir, "a");
    run(2, 1, REST, &again, &out);
    assert_int_equal(out.status, DSC_OK);
    memcpy(specs, modules[1].buffers, sizeof specs);
    modules[1].buffers = specs;
    specs[0].momentum = 0.2;
    run(2, 1, REST, &again, &out);
    assert_int_equal(out.status, DSC_ERR_INPUT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(any_number_of_ranks_goes_on_with_equal_bits),
        TEST(a_run_that_made_steps_loads_too),
        TEST(a_save_beside_training_has_the_values_of_its_step),
        TEST(hosts_without_a_common_folder_have_them_all),
        TEST(a_model_without_buffers_has_no_such_file),
        TEST(other_buffers_are_refused),
        TEST(values_come_from_the_models_files),
        TEST(tools_see_buffers),
        TEST(exports_have_buffers_in_pytorchs_dtypes),
        TEST(pytorch_loads_an_export),
        TEST(allocations_that_fail_leak_nothing),
        TEST(damage_is_found),
        TEST(an_existing_step_is_compared_with_its_buffers),
    };
    return cmocka_run_group_tests_name("checkpoint_buffers", tests, NULL, NULL);
}
