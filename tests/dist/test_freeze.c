/* test_freeze.c - dsc.freeze and adapters. Frozen parameters keep their weights and have no gradients, masters or
 * moments; the others train, with equal bits at every stage and placement.
 * SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/run_expect.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"

typedef struct variant {
    int32_t world, stage;
    bool bf16;
    const char *zero;   /* members of zero_optimization, each preceded by a comma */
    const char *freeze; /* the key's value */
    bool adapted;       /* the model that has adapters, which is frozen but for these */
    bool fp16;
    int32_t batch;      /* samples of all ranks; 0: two samples a rank */
    const char *own;    /* members of dsc, each preceded by a comma */
} variant;

/* The last arguments: the pattern and, where they are of interest, adapters. */
#define VARIANT(world_, stage_, bf16_, zero_, ...) \
    (variant){ .world = world_, .stage = stage_, .bf16 = bf16_, .zero = zero_, .freeze = __VA_ARGS__ }

static dsc_model *plain, *adapted; /* tied, so that the head is the token table */
static char *dir;

static void run(const variant *v, const run_options *base, run_result *out)
{
    char config[2048], batch[48] = "";
    run_options options = *base;
    const dsc_model *model = v->adapted ? adapted : plain;
    if (v->batch != 0)
        snprintf(batch, sizeof batch, "\"train_batch_size\": %d, ", (int)v->batch);
    snprintf(config, sizeof config,
             "{%s\"train_micro_batch_size_per_gpu\": 2, \"gradient_clipping\": 0.5,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001, \"weight_decay\": 0.1}},"
             " \"bf16\": {\"enabled\": %s}, \"fp16\": {\"enabled\": %s, \"initial_scale_power\": 10},"
             " \"zero_optimization\": {\"stage\": %d%s},"
             " \"dsc\": {\"threads\": 1, \"device\": \"cpu\", \"freeze\": %s%s}}",
             batch, v->bf16 ? "true" : "false", v->fp16 ? "true" : "false", (int)v->stage,
             v->zero != NULL ? v->zero : "", v->freeze, v->own != NULL ? v->own : "");
    options.steps = options.steps != 0 ? options.steps : 3;
    run_model(model, tiny_gpt_data(model, 1 << 20), v->world, config, &options, out);
    if (out->status != DSC_OK)
        print_error("# %s: %s\n", out->error.where, out->error.message);
}

/* Elements of own parameters whose names have `part` in them. */
static int64_t elements_with(const dsc_model *model, const char *part)
{
    int64_t sum = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            int64_t elements = 1;
            for (int32_t d = 0; d < spec->dim_count; d++)
                elements *= spec->dim[d];
            sum += spec->shared_module < 0 && strstr(spec->name, part) != NULL ? elements : 0;
        }
    return sum;
}

/* ---- weights ---- */

typedef struct weights {
    dsc_alloc *alloc;
    dsc_safetensors *file;
} weights;

static weights open_weights(const char *name)
{
    char path[600];
    weights w = { NULL, NULL };
    dsc_error err = DSC_ERROR_INIT;
    snprintf(path, sizeof path, "%s/model.safetensors", cw_path(dir, name));
    assert_int_equal(dsc_alloc_open(&w.alloc, NULL), DSC_OK);
    if (dsc_safetensors_open(&w.file, NULL, w.alloc, path, &err) != DSC_OK)
        fail_msg("%s: %s", path, err.message);
    return w;
}

static void close_weights(weights *w)
{
    dsc_safetensors_close(&w->file);
    dsc_alloc_close(&w->alloc);
}

/* Tensors with `part` in their names have changed, all others are the same. */
static void expect_changed(const weights *before, const weights *after, const char *part)
{
    dsc_error err = DSC_ERROR_INIT;
    for (int64_t i = 0; i < dsc_safetensors_count(before->file); i++) {
        const dsc_safetensors_entry *a = dsc_safetensors_at(before->file, i);
        const dsc_safetensors_entry *b = dsc_safetensors_find(after->file, a->name);
        assert_non_null(b);
        float *x = calloc((size_t)(2 * a->count), sizeof *x), *y = x + a->count;
        assert_non_null(x);
        assert_int_equal(dsc_safetensors_read_f32(before->file, a, 0, a->count, x, &err), DSC_OK);
        assert_int_equal(dsc_safetensors_read_f32(after->file, b, 0, b->count, y, &err), DSC_OK);
        const bool same = memcmp(x, y, (size_t)a->count * sizeof *x) == 0;
        if (same == (strstr(a->name, part) != NULL))
            print_error("# %s is %s\n", a->name, same ? "unchanged" : "changed");
        assert_true(same != (strstr(a->name, part) != NULL));
        free(x);
    }
}

/* ---- tests ---- */

static void only_the_others_change(void **state)
{
    static const struct { const char *freeze, *trained; bool adapted; } cases[] = {
        { "[\"*\", \"!*.v_proj.*\"]", ".v_proj.", false },
        { "[\"*\", \"!*norm.weight\"]", "norm.weight", false },
        { "[\"*.weight\"]", ".bias", false },                   /* norms and products keep their biases alone */
        { "[\"*\", \"!*embed_tokens*\"]", "embed_tokens", false }, /* both uses of a tied table */
        { "[\"model.layers.?.*\", \"model.norm*\", \"model.embed_tokens.weight\", \"!model.layers.1.*\"]",
          ".layers.1.", false },
        { "[]", ".lora_", true },
        { "[\"*.lora_A.*\"]", ".lora_B.", true },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        run_result r;
        const variant v = { 2, (int32_t)(i + 1) % 4, i % 2 != 0, NULL, cases[i].freeze,
                            cases[i].adapted, false, 0, NULL };
        cw_remove(cw_path(dir, "before"));
        cw_remove(cw_path(dir, "after"));
        run(&v, &(run_options){ .steps = -1, .after = run_save, .user = (void *)(uintptr_t)cw_path(dir, "before") },
            &r);
        assert_int_equal(r.status, DSC_OK);
        run(&v, &(run_options){ .after = run_save, .user = (void *)(uintptr_t)cw_path(dir, "after") }, &r);
        assert_int_equal(r.status, DSC_OK);
        assert_true(r.norm[0] > 0);
        weights before = open_weights("before/step-0"), after = open_weights("after/step-3");
        expect_changed(&before, &after, cases[i].trained);
        close_weights(&before);
        close_weights(&after);
    }
}

/* By the memory that was taken: gradients, masters and moments are those of what trains, and the peak is the plan's. */
static void expect_no_states(const char *freeze, bool with_adapters, int64_t trained)
{
    const int64_t padding = 2 * 1024 * 2; /* groups times slices */
    for (int32_t stage = 0; stage <= 3; stage++) {
        run_result all, some;
        run(&VARIANT(2, stage, true, NULL, "[]"), &(run_options){ .steps = 2 }, &all);
        run(&VARIANT(2, stage, true, NULL, freeze, with_adapters), &(run_options){ .steps = 2 }, &some);
        assert_int_equal(some.status, DSC_OK);
        const int64_t owners = stage == 0 ? 1 : 2, bytes = 4 * trained / owners;
        const int64_t most = 4 * (trained + padding) / owners;
        assert_true(some.state_bytes[2] >= bytes && some.state_bytes[2] <= most);
        assert_true(some.state_bytes[3] >= 2 * bytes && some.state_bytes[3] <= 2 * most);
        assert_true(some.state_bytes[1] * 4 < all.state_bytes[1]);
        assert_true(some.state_bytes[0] <= all.state_bytes[0] + 4 * padding + (with_adapters ? 2 * trained : 0));
        assert_true(some.tracked_peak <= some.planned);
        assert_true(some.tracked_peak * 100 >= some.planned * 99);
        assert_int_equal(some.alloc_calls_after_first, some.alloc_calls_at_end);
    }
}

static void frozen_has_no_states(void **state)
{
    expect_no_states("[\"*\", \"!*.v_proj.*\"]", false, elements_with(plain, ".v_proj."));
    expect_no_states("[]", true, elements_with(adapted, ".lora_"));
}

static void expect_same_bits(const char *freeze, bool with_adapters)
{
    char nvme[700];
    snprintf(nvme, sizeof nvme, ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}", dir);
    const variant ways[] = {
        { 3, 1, true, NULL, freeze, with_adapters, false, 0, NULL },
        { 3, 2, true, ", \"offload_optimizer\": {\"device\": \"cpu\"}", freeze, with_adapters, false, 0, NULL },
        { 3, 3, true, NULL, freeze, with_adapters, false, 0, NULL },
        { 3, 3, true, nvme, freeze, with_adapters, false, 0, NULL },
    };
    run_result first, other;
    run(&VARIANT(3, 0, true, NULL, freeze, with_adapters), &(run_options){ 0 }, &first);
    assert_int_equal(first.status, DSC_OK);
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        run(&ways[i], &(run_options){ 0 }, &other);
        assert_int_equal(other.status, DSC_OK);
        run_expect_same(&first, &other);
    }
}

static void same_bits_wherever(void **state)
{
    expect_same_bits("[\"*\", \"!*.q_proj.*\", \"!*layernorm.*\"]", false);
    expect_same_bits("[]", true);
}

/* Micro-steps, ranks, stages and recomputation in any mixture, in every precision. */
static void adapters_have_same_bits_any_way(void **state)
{
    static const char plan[] = ", \"reproducible\": \"world_size\"";
    static const char recompute[] = ", \"reproducible\": \"world_size\", \"recompute\": \"full\"";
    for (int precision = 0; precision < 3; precision++) {
        const bool bf16 = precision == 1, fp16 = precision == 2;
        const variant ways[] = {
            { 1, 0, bf16, NULL, "[]", true, fp16, 8, plan },
            { 2, 3, bf16, NULL, "[]", true, fp16, 8, recompute },
            { 4, 2, bf16, NULL, "[]", true, fp16, 8, plan },
        };
        run_result first, other;
        run(&ways[0], &(run_options){ 0 }, &first);
        assert_int_equal(first.status, DSC_OK);
        for (size_t i = 1; i < DSC_COUNT(ways); i++) {
            run(&ways[i], &(run_options){ 0 }, &other);
            assert_int_equal(other.status, DSC_OK);
            run_expect_same(&first, &other);
        }
    }
}

/* A resumed run may freeze more than the one that saved; less would need moments that nobody has. */
static void resumes(void **state)
{
    static const char freeze[] = "[\"*\", \"!*.v_proj.*\"]", more[] = "[\"*\", \"!*.0.*.v_proj.*\"]";
    char *const saved = strdup(cw_path(dir, "resumed"));
    run_result whole, part, rest;
    assert_non_null(saved);
    run(&VARIANT(2, 1, true, NULL, freeze), &(run_options){ .steps = 4 }, &whole);
    run(&VARIANT(2, 3, true, NULL, freeze), &(run_options){ .steps = 2, .after = run_save, .user = saved }, &part);
    assert_int_equal(part.status, DSC_OK);
    run(&VARIANT(2, 2, true, NULL, freeze), &(run_options){ .steps = 2, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_OK);
    assert_string_equal(whole.hash, rest.hash);
    run(&VARIANT(2, 2, true, NULL, more), &(run_options){ .steps = 1, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_OK);
    run(&VARIANT(2, 2, true, NULL, "[]"), &(run_options){ .steps = 1, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_ERR_INPUT);
    assert_non_null(strstr(rest.error.message, "the checkpoint has no \"master."));
    free(saved);
}

static void adapters_resume(void **state)
{
    char *const saved = strdup(cw_path(dir, "adapters"));
    run_result whole, part, rest;
    assert_non_null(saved);
    run(&VARIANT(2, 1, true, NULL, "[]", true), &(run_options){ .steps = 4 }, &whole);
    run(&VARIANT(2, 3, true, NULL, "[]", true), &(run_options){ .steps = 2, .after = run_save, .user = saved }, &part);
    assert_int_equal(part.status, DSC_OK);
    run(&VARIANT(2, 0, true, NULL, "[]", true), &(run_options){ .steps = 2, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_OK);
    assert_string_equal(whole.hash, rest.hash);
    run(&VARIANT(3, 2, true, NULL, "[]", true), &(run_options){ .steps = 1, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_OK);
    run(&VARIANT(2, 2, true, NULL, "[]"), &(run_options){ .steps = 1, .before = run_load, .user = saved }, &rest);
    assert_int_equal(rest.status, DSC_ERR_INPUT);
    free(saved);
}


static void refuses(void **state)
{
    static const struct { const char *freeze, *what; } cases[] = {
        { "[\"model.layers.2.*\"]", "\"model.layers.2.*\" is the name of no parameter" },
        { "[\"*\", \"!lm_head.*\"]", "\"!lm_head.*\" is the name of no parameter" },
        { "\"*\"", "nothing is left to train" },
        { "[\"\"]", "\"\" is the name of no parameter" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        run_result r;
        run(&VARIANT(1, 1, false, NULL, cases[i].freeze), &(run_options){ 0 }, &r);
        assert_int_equal(r.status, DSC_ERR_CONFIG);
        assert_string_equal(r.error.where, "dsc.freeze");
        assert_non_null(strstr(r.error.message, cases[i].what));
    }
}

static int setup(void **state)
{
    static const char config[] = "{\"model_type\": \"llama\", " TINY_SIZES
                                 ", \"tie_word_embeddings\": true, \"attention_bias\": true, \"mlp_bias\": true}";
    dir = cw_tmp_open();
    plain = tiny_model_open(config, NULL);
    adapted = tiny_model_open(config, &tiny_lora);
    return 0;
}

static int teardown(void **state)
{
    dsc_model_close(&plain);
    dsc_model_close(&adapted);
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_others_change),
        cmocka_unit_test(frozen_has_no_states),
        cmocka_unit_test(same_bits_wherever),
        cmocka_unit_test(adapters_have_same_bits_any_way),
        cmocka_unit_test(resumes),
        cmocka_unit_test(adapters_resume),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests_name("freeze", tests, setup, teardown);
}
