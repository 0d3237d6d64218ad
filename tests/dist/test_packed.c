/* test_packed.c - dsc.quantize_base: frozen weights in NF4 beside adapters. Losses and adapters are those of a run
 * whose base is the unpacked weights, bit by bit, at every stage, world size and placement; the plan is what is taken.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/formats/safetensors.h"
#include "kernels/nf4.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"

typedef struct variant {
    int32_t world, stage;
    const char *zero;  /* members of zero_optimization, each preceded by a comma */
    const char *own;   /* members of dsc, likewise */
    const char *dtype; /* "bf16" or "fp32" */
} variant;

#define NESTED ", \"quantize_base\": {\"format\": \"nf4\"}"
#define PLAIN ", \"quantize_base\": {\"double_quant\": false}"

/* The same first values for both, from a "file": one as they are, one packed and unpacked. */
static dsc_model *opened, filed, another, unpacked_nested, unpacked_plain;
static char *dir;

static void run(const dsc_model *model, const variant *v, const run_options *base, run_result *out)
{
    char config[2048];
    run_options options = *base;
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"fp16\": {\"enabled\": %s, \"initial_scale_power\": 10},"
             " \"zero_optimization\": {\"stage\": %d%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cpu\", \"reproducible\": \"world_size\"%s}}",
             strcmp(v->dtype, "bf16") == 0 ? "true" : "false", strcmp(v->dtype, "fp16") == 0 ? "true" : "false",
             (int)v->stage, v->zero != NULL ? v->zero : "", v->own != NULL ? v->own : "");
    options.steps = options.steps != 0 ? options.steps : 3;
    run_model(model, tiny_gpt_data(model, 1 << 20), v->world, config, &options, out);
    if (out->status != DSC_OK)
        print_error("# %s: %s\n", out->error.where, out->error.message);
}

/* ---- first values ---- */

static bool is_filed(const dsc_param_spec *spec)
{
    return !spec->trainable && spec->dim_count >= 2 && strstr(spec->name, ".layers.") != NULL;
}

static bool is_linear(const dsc_param_spec *spec)
{
    const bool packs = (spec->dim_count == 2 && !spec->as_stored) || spec->experts; /* a router stays as it is */
    return packs && is_filed(spec);
}

static int64_t elements_of(const dsc_param_spec *spec)
{
    int64_t count = 1;
    for (int32_t d = 0; d < spec->dim_count; d++)
        count *= spec->dim[d];
    return count;
}

static float value_at(int64_t i) { return (float)(i * 7919 % 2003 - 1001) / (float)(1 << (13 + i / 64 % 5)); }

static dsc_status load_values(const dsc_model *m, int32_t module, int32_t param, int64_t first, int64_t count,
                              float *out, bool *found, dsc_error *err)
{
    *found = is_filed(&m->modules[module].params[param]);
    for (int64_t i = 0; *found && i < count; i++)
        out[i] = value_at(first + i);
    return DSC_OK;
}

/* One element of one block of another base. */
static dsc_status load_other(const dsc_model *m, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    DSC_TRY(load_values(m, module, param, first, count, out, found, err));
    if (*found && first <= 77 && first + count > 77)
        out[77 - first] = -out[77 - first];
    return DSC_OK;
}

static void unpack(dsc_nf4 kind, int64_t count, float *x)
{
    const int64_t blocks = dsc_nf4_blocks(count);
    uint8_t *codes = malloc((size_t)count), *scale_codes = malloc((size_t)blocks);
    float *scales = malloc((size_t)blocks * 4), *tops = malloc((size_t)blocks * 4), offset = 0;
    assert_true(codes != NULL && scale_codes != NULL && scales != NULL && tops != NULL);
    dsc_nf4_pack(x, count, codes, scales);
    dsc_nf4_pack_scales(scales, blocks, scale_codes, tops, &offset);
    for (int64_t i = 0; i < count; i++) {
        const int64_t b = i / DSC_NF4_BLOCK;
        const float scale =
            kind == DSC_NF4_PLAIN ? scales[b] : dsc_nf4_scale(scale_codes[b], tops[b / DSC_NF4_NESTED_BLOCK], offset);
        x[i] = dsc_nf4_values[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * scale;
    }
    free(codes);
    free(scale_codes);
    free(scales);
    free(tops);
}

static dsc_status load_unpacked(const dsc_model *m, dsc_nf4 kind, int32_t module, int32_t param, int64_t first,
                                int64_t count, float *out, bool *found)
{
    const dsc_param_spec *spec = &m->modules[module].params[param];
    *found = is_filed(spec);
    if (!*found)
        return DSC_OK;
    float *all = malloc((size_t)elements_of(spec) * 4);
    assert_non_null(all);
    for (int64_t i = 0; i < elements_of(spec); i++)
        all[i] = value_at(i);
    if (is_linear(spec))
        unpack(kind, elements_of(spec), all);
    memcpy(out, all + first, (size_t)count * 4);
    free(all);
    return DSC_OK;
}

static dsc_status load_nested(const dsc_model *m, int32_t module, int32_t param, int64_t first, int64_t count,
                              float *out, bool *found, dsc_error *err)
{
    return load_unpacked(m, DSC_NF4_NESTED, module, param, first, count, out, found);
}

static dsc_status load_plain(const dsc_model *m, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    return load_unpacked(m, DSC_NF4_PLAIN, module, param, first, count, out, found);
}

/* ---- tests ---- */

static void same_losses(const run_result *a, const run_result *b, int32_t steps)
{
    assert_int_equal(a->status, DSC_OK);
    assert_int_equal(b->status, DSC_OK);
    for (int32_t i = 0; i < steps; i++) {
        assert_true(a->loss[i] == b->loss[i]);
        assert_true(a->norm[i] == b->norm[i]);
    }
}

static void losses_are_those_of_the_unpacked_weights(void **state)
{
    static const char *const dtypes[] = { "bf16", "fp32", "fp16" };
    for (size_t d = 0; d < DSC_COUNT(dtypes); d++) {
        run_result packed, unpacked;
        run(&filed, &(variant) { 1, 0, NULL, NESTED, dtypes[d] }, &(run_options) { .steps = 6 }, &packed);
        run(&unpacked_nested, &(variant) { 1, 0, NULL, NULL, dtypes[d] }, &(run_options) { .steps = 6 }, &unpacked);
        same_losses(&packed, &unpacked, 6);
        run(&filed, &(variant) { 2, 3, NULL, PLAIN, dtypes[d] }, &(run_options) { .steps = 6 }, &packed);
        run(&unpacked_plain, &(variant) { 2, 3, NULL, NULL, dtypes[d] }, &(run_options) { .steps = 6 }, &unpacked);
        same_losses(&packed, &unpacked, 6);
    }
}

/* The hash of the weights of all stages is that of one stage, so a save by stages loads there. */
static void stages_have_the_same_bits(void **state)
{
    static const variant ways[] = {
        { 2, 0, NULL, NESTED ", \"grid\": {\"pipeline\": 2}", "bf16" },
        { 4, 3, NULL, NESTED ", \"grid\": {\"pipeline\": 2}", "bf16" },
        { 4, 2, NULL, NESTED ", \"grid\": {\"pipeline\": 4}, \"recompute\": \"full\"", "bf16" },
    };
    const variant one = { 1, 0, NULL, NESTED, "bf16" };
    run_result first, other;
    run(&filed, &one, &(run_options) { .steps = 4 }, &first);
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        char name[32];
        snprintf(name, sizeof name, "stages-%d", (int)i);
        char *const saved = strdup(cw_path(dir, name));
        assert_non_null(saved);
        run(&filed, &ways[i], &(run_options) { .steps = 4, .after = run_memory_is_planned }, &other);
        assert_int_equal(other.status, DSC_OK);
        run_expect_same(&first, &other);
        run(&filed, &ways[i], &(run_options) { .steps = 2, .after = run_save, .user = saved }, &other);
        assert_int_equal(other.status, DSC_OK);
        run(&filed, &one, &(run_options) { .steps = 2, .before = run_load, .user = saved }, &other);
        assert_int_equal(other.status, DSC_OK);
        assert_string_equal(first.hash, other.hash);
        run(&another, &one, &(run_options) { .steps = 1, .before = run_load, .user = saved }, &other);
        assert_int_equal(other.status, DSC_ERR_INPUT);
        free(saved);
    }
}

static void same_bits_wherever(void **state)
{
    char files[700], all_files[1500];
    snprintf(files, sizeof files,
             ", \"stage3_param_persistence_threshold\": 0, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\":"
             " \"%s\", \"max_in_cpu\": 0}",
             dir);
    snprintf(all_files, sizeof all_files, "%s, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             files, dir);
    const variant ways[] = {
        { 1, 1, NULL, NESTED, "bf16" },
        { 1, 3, NULL, NESTED ", \"recompute\": \"full\"", "bf16" },
        { 2, 0, NULL, NESTED, "bf16" },
        { 2, 1, ", \"overlap_comm\": false", NESTED, "bf16" },
        { 4, 2, NULL, NESTED, "bf16" },
        { 2, 3, ", \"stage3_prefetch_bucket_size\": 0", NESTED, "bf16" },
        { 4, 3, ", \"stage3_max_live_parameters\": 1", NESTED, "bf16" },
        { 4, 3, ", \"allgather_bucket_size\": 5000", NESTED, "bf16" },
        { 4, 3, ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}", NESTED,
          "bf16" },
        { 1, 3, files, NESTED, "bf16" },
        { 2, 3, files, NESTED ", \"micro_batches_together\": 2", "bf16" },
        { 4, 3, all_files, NESTED, "bf16" },
        { 4, 3, ", \"zero_hpz_partition_size\": 2", NESTED, "bf16" },
    };
    run_result first, other;
    run(&filed, &(variant) { 1, 0, NULL, NESTED, "bf16" }, &(run_options) { 0 }, &first);
    assert_int_equal(first.status, DSC_OK);
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        print_message("# %d ranks, stage %d%s\n", (int)ways[i].world, (int)ways[i].stage,
                      ways[i].zero != NULL ? ways[i].zero : "");
        run(&filed, &ways[i], &(run_options) { 0 }, &other);
        assert_int_equal(other.status, DSC_OK);
        run_expect_same(&first, &other);
        /* hpZ gathers frozen groups from all ranks in the first of three steps, and then from neighbours. */
        run_expect_planned_beside(&other, ways[i].zero != NULL && strstr(ways[i].zero, "hpz") != NULL ? 2048 : 0);
        assert_int_equal(other.alloc_calls_after_first, other.alloc_calls_at_end);
    }
}

/* Bytes of parameters: the linear weights of blocks, 2 bytes an element less 33 / 64. */
static void weights_take_a_quarter(void **state)
{
    int64_t linear = 0;
    for (int32_t m = 0; m < filed.module_count; m++)
        for (int32_t p = 0; p < filed.modules[m].param_count; p++)
            linear += is_linear(&filed.modules[m].params[p]) ? elements_of(&filed.modules[m].params[p]) : 0;
    for (int32_t stage = 0; stage <= 3; stage++) {
        run_result packed, whole;
        run(&filed, &(variant) { 1, stage, NULL, NESTED, "bf16" }, &(run_options) { 0 }, &packed);
        run(&filed, &(variant) { 1, stage, NULL, NULL, "bf16" }, &(run_options) { 0 }, &whole);
        const int64_t saved = whole.state_bytes[0] - packed.state_bytes[0], expected = 2 * linear - linear * 33 / 64;
        assert_true(saved < expected + 8192);
        assert_true(saved > expected - 8192); /* paddings of groups, scales of scales */
    }
}

static void resumes(void **state)
{
    char *const saved = strdup(cw_path(dir, "packed"));
    run_result whole, part, rest;
    assert_non_null(saved);
    run(&filed, &(variant) { 2, 1, NULL, NESTED, "bf16" }, &(run_options) { .steps = 4 }, &whole);
    run(&filed, &(variant) { 2, 3, NULL, NESTED, "bf16" },
        &(run_options) { .steps = 2, .after = run_save, .user = saved }, &part);
    assert_int_equal(part.status, DSC_OK);
    run(&filed, &(variant) { 4, 0, NULL, NESTED, "bf16" },
        &(run_options) { .steps = 2, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_OK);
    assert_string_equal(whole.hash, rest.hash);
    for (int i = 0; i < 2; i++)
        assert_true(whole.loss[2 + i] == rest.loss[i]);
    /* The weights in 4 bits are not in the checkpoint, so that a run without them misses its base. */
    run(&filed, &(variant) { 2, 1, NULL, NULL, "bf16" },
        &(run_options) { .steps = 1, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_ERR_INPUT);
    free(saved);
}

/* A hash of the weights in 4 bits stands for them in the checkpoint, whatever the layout of the ranks was. */
static void resumes_beside_the_saved_base_alone(void **state)
{
    static const variant same[] = { { 1, 0, NULL, NESTED, "bf16" },
                                    { 4, 3, NULL, NESTED, "bf16" },
                                    { 1, 2, NULL, NESTED, "fp32" } };
    char *const saved = strdup(cw_path(dir, "based"));
    run_result r;
    assert_non_null(saved);
    const variant v = { 2, 3, NULL, NESTED, "bf16" };
    const run_options resume = { .steps = 1, .before = run_load, .user = saved };
    run(&filed, &v, &(run_options) { .steps = 1, .after = run_save, .user = saved }, &r);
    assert_int_equal(r.status, DSC_OK);
    for (size_t i = 0; i < DSC_COUNT(same); i++) {
        run_options options = resume;
        options.steps = 1;
        run(&filed, &same[i], &options, &r);
        assert_int_equal(r.status, DSC_OK);
    }
    run(&another, &v, &resume, &r);
    assert_int_equal(r.status, DSC_ERR_INPUT);
    const char *was = strstr(r.error.message, "beside the weights nf4-"),
               *is = strstr(r.error.message, "in 4 bits are nf4-");
    assert_non_null(was);
    assert_non_null(is);
    assert_int_not_equal(strncmp(was + 23, is + 18, 32), 0);
    run(&filed, &(variant) { 2, 3, NULL, PLAIN, "bf16" }, &resume, &r);
    assert_int_equal(r.status, DSC_ERR_INPUT);
    assert_non_null(strstr(r.error.message, "beside the weights nf4-"));
    free(saved);
}

static void checkpoint_has_no_packed_weights(void **state)
{
    char path[600];
    dsc_alloc *alloc = NULL;
    dsc_safetensors *file = NULL;
    bool any = false;
    snprintf(path, sizeof path, "%s/step-2/model.safetensors", cw_path(dir, "packed"));
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    assert_int_equal(dsc_safetensors_open(&file, NULL, alloc, path, NULL), DSC_OK);
    for (int32_t m = 0; m < filed.module_count; m++)
        for (int32_t p = 0; p < filed.modules[m].param_count; p++) {
            const dsc_param_spec *spec = &filed.modules[m].params[p];
            if (spec->shared_module >= 0)
                continue;
            any |= is_linear(spec);
            assert_true((dsc_safetensors_find(file, spec->name) == NULL) == is_linear(spec));
        }
    assert_true(any);
    dsc_safetensors_close(&file);
    dsc_alloc_close(&alloc);
}

static void refuses_a_model_without_adapters(void **state)
{
    static const char config[] = "{\"model_type\": \"llama\", " TINY_SIZES ", \"tie_word_embeddings\": true}";
    dsc_model *model = tiny_model_open(config, NULL);
    run_result r;
    run(model, &(variant) { 1, 0, NULL, NESTED, "bf16" }, &(run_options) { 0 }, &r);
    assert_int_equal(r.status, DSC_ERR_CONFIG);
    assert_string_equal(r.error.where, "dsc.quantize_base");
    assert_non_null(strstr(r.error.message, "give dsc.lora too"));
    dsc_model_close(&model);
}

/* Matrices of experts, with a low-rank pair each, in 4 bits and not. */
static void experts_are_packed_where_they_are_asked_for(void **state)
{
    static const char with[] = ", \"quantize_base\": {\"experts\": true}";
    static const variant ways[] = {
        { 2, 3, NULL, with, "bf16" },
        { 4, 2, NULL, with, "bf16" },
        { 2, 3, ", \"offload_param\": {\"device\": \"cpu\"}", with, "bf16" },
    };
    dsc_model *model = tiny_model_open(TINY_EXPERTS, &tiny_expert_lora), files = *model, unpacked = *model;
    run_result first, other;
    files.load_param = load_values;
    unpacked.load_param = load_nested;
    run(&unpacked, &(variant) { 1, 0, NULL, NULL, "bf16" }, &(run_options) { 0 }, &first);
    const int64_t whole = first.state_bytes[0];
    run(&files, &(variant) { 1, 0, NULL, with, "bf16" }, &(run_options) { 0 }, &other);
    same_losses(&other, &first, 3);
    const int64_t all = other.state_bytes[0];
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        run(&files, &ways[i], &(run_options) { 0 }, &first);
        run_expect_same(&other, &first);
        run_expect_planned(&first);
    }
    run(&files, &(variant) { 1, 0, NULL, NESTED, "bf16" }, &(run_options) { 0 }, &first);
    assert_int_equal(first.status, DSC_OK);
    assert_true(all < first.state_bytes[0]);
    assert_true(first.state_bytes[0] < whole);
    dsc_model_close(&model);
}

static int setup(void **state)
{
    static const char config[] =
        "{\"model_type\": \"llama\", " TINY_SIZES ", \"tie_word_embeddings\": true, \"attention_bias\": true}";
    dir = cw_tmp_open();
    opened = tiny_model_open(config, &tiny_lora);
    filed = another = unpacked_nested = unpacked_plain = *opened;
    filed.load_param = load_values;
    another.load_param = load_other;
    unpacked_nested.load_param = load_nested;
    unpacked_plain.load_param = load_plain;
    return 0;
}

static int teardown(void **state)
{
    dsc_model_close(&opened);
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_the_unpacked_weights),
        cmocka_unit_test(same_bits_wherever),
        cmocka_unit_test(stages_have_the_same_bits),
        cmocka_unit_test(weights_take_a_quarter),
        cmocka_unit_test(resumes),
        cmocka_unit_test(resumes_beside_the_saved_base_alone),
        cmocka_unit_test(checkpoint_has_no_packed_weights),
        cmocka_unit_test(refuses_a_model_without_adapters),
        cmocka_unit_test(experts_are_packed_where_they_are_asked_for),
    };
    return cmocka_run_group_tests_name("packed", tests, setup, teardown);
}
