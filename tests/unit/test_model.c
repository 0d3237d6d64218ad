/* test_model.c - models by name and what options make of them, what they plan, and allocations that fail.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "kernels/kernels.h"
#include "models/families.h"
#include "tests/support/model_folder.h"

static void opens_built_in_models(void **state)
{
    /* Parameters as Hugging Face's config_class counts them. */
    static const struct { const char *name; int64_t elements, layers, sequence; } known[] = {
        { "gpt2", 124439808, 12, 1024 },        { "gpt2-124m", 124439808, 12, 1024 },
        { "gpt2-medium", 354823168, 24, 1024 }, { "gpt2-large", 774030080, 36, 1024 },
        { "gpt2-xl", 1557611200, 48, 1024 },    { "gpt2-small-384", 30044544, 6, 256 },
    };
    for (size_t i = 0; i < DSC_COUNT(known); i++) {
        dsc_model *model = mf_open(known[i].name, NULL);
        assert_int_equal(mf_elements(model), known[i].elements);
        assert_int_equal(model->module_count, known[i].layers + 2);
        assert_int_equal(model->seq_length, known[i].sequence);
        assert_int_equal(model->losses_per_sample, known[i].sequence);
        assert_int_equal(model->batch[1].dim[0], known[i].sequence);
        assert_int_equal(model->vocab_size, 50257);
        assert_null(model->warnings);
        dsc_model_close(&model);
        assert_null(model);
    }
    int count = 0;
    for (; dsc_model_builtin_name(count) != NULL; count++) {
        dsc_model *model = mf_open(dsc_model_builtin_name(count), NULL);
        assert_string_equal(model->name, dsc_model_builtin_name(count));
        dsc_model_close(&model);
    }
    assert_true(count >= 8);
    assert_null(dsc_model_builtin_name(-1));
    dsc_model *nano = mf_open("gpt2-nano", NULL);
    assert_int_equal(nano->vocab_size, 256);
    assert_in_range(mf_elements(nano), 800000, 1000000);
    const dsc_param_spec *proj = &nano->modules[2].params[6];
    assert_string_equal(proj->name, "transformer.h.1.ln_2.weight");
    assert_int_equal(proj->init, DSC_INIT_ONES);
    proj = &nano->modules[1].params[4];
    assert_string_equal(proj->name, "transformer.h.0.attn.c_proj.weight");
    assert_true(fabs(proj->init_std - 0.02 / sqrt(8.0)) < 1e-9);
    assert_int_equal(nano->modules[5].params[2].shared_module, 0);
    assert_int_equal(nano->modules[5].params[2].shared_param, 0);
    bool found = true;
    float x[2];
    assert_int_equal(nano->load_param(nano, 0, 0, 0, 2, x, &found, NULL), DSC_OK);
    assert_false(found);
    dsc_model_close(&nano);
    dsc_model_close(&nano); /* safe on NULL */
}

static void applies_options(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.vocab_multiple = 128;
    options.seq_length = 64;
    dsc_model *model = mf_open("gpt2-124m", &options);
    assert_int_equal(model->vocab_size, 50257);
    assert_int_equal(model->modules[0].params[0].dim[0], 50304);
    assert_int_equal(model->modules[13].params[2].dim[0], 50304);
    assert_int_equal(model->modules[0].params[1].dim[0], 1024);
    assert_int_equal(model->seq_length, 64);
    assert_non_null(strstr(model->config_json, "\"vocab_size\": 50304"));
    /* A saved config is read as an equal model. */
    mf_write("config.json", model->config_json);
    dsc_model *again = mf_open(mf_path("config.json"), NULL);
    assert_int_equal(mf_elements(again), mf_elements(model));
    dsc_model_close(&again);
    dsc_model_close(&model);
    options.vocab_multiple = 0;
    options.seq_length = 1025;
    mf_expect_refusal("gpt2-124m", &options, DSC_ERR_INPUT, "1024 positions");
    options.seq_length = -1;
    mf_expect_refusal("gpt2-124m", &options, DSC_ERR_INPUT, "seq_length");
    options.seq_length = 0;
    options.vocab_multiple = INT64_MAX;
    mf_expect_refusal("gpt2-124m", &options, DSC_ERR_INPUT, "vocab_multiple");
    options.vocab_multiple = 1;
    options.struct_bytes = 4;
    mf_expect_refusal("gpt2-124m", &options, DSC_ERR_STATE, "struct_bytes");
    mf_expect_refusal("llama-7b", NULL, DSC_ERR_INPUT,
                   "expected one of llama-nano, llama-2-7b, llama-3.1-8b");
    mf_expect_refusal("", NULL, DSC_ERR_INPUT, "gpt2-nano");
    mf_expect_refusal("/nowhere/at/all", NULL, DSC_ERR_INPUT, "gpt2-nano");
    mf_expect_refusal("/dev/zero", NULL, DSC_ERR_INPUT, "device");
    mf_empty();
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "config.json");
    mf_write("model.bin", "x");
    mf_expect_refusal(mf_path("model.bin"), NULL, DSC_ERR_INPUT, "*.json");
}

static void survives_failing_allocations(void **state)
{
    const dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    char config_path[128];
    dsc_error err = DSC_ERROR_INIT;
    mf_write_tiny();
    snprintf(config_path, sizeof config_path, "%s", mf_path("config.json"));
    int64_t n = 1;
    for (;; n++) {
        dsc_alloc *own = NULL;
        dsc_model *model = NULL;
        assert_int_equal(dsc_alloc_open(&own, &err), DSC_OK);
        dsc_alloc_fail_at(own, n, false);
        const dsc_status status = dsc_hf_open(&model, own, config_path, mf_dir, &options, NULL, &err);
        if (status == DSC_OK) {
            dsc_model_close(&model);
            break;
        }
        assert_int_equal(status, DSC_ERR_NOMEM);
        assert_null(model);
        dsc_alloc_close(&own);
    }
    assert_true(n > 20);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* Launches of a block of "gpt2-small-384" with a batch of 4 and 256 tokens. */
static dsc_status check_attention(void *user, const dsc_attention_fwd_args *shape, dsc_error *err)
{
    assert_int_equal(shape->batch * shape->tokens, 1024);
    assert_int_equal(shape->heads * shape->head_size, 384);
    assert_int_equal(shape->kv_heads, shape->heads);
    assert_int_equal(shape->q_stride, 3 * 384);
    assert_int_equal(shape->k_stride, 3 * 384);
    assert_int_equal(shape->v_stride, 3 * 384);
    assert_int_equal(shape->head_stride, shape->head_size);
    assert_int_equal(shape->dtype, DSC_BF16);
    assert_true(shape->scale == (float)(1 / sqrt((double)shape->head_size)));
    *(int *)user += 100;
    return DSC_OK;
}

static dsc_status count_gemm(void *user, const dsc_gemm_args *shape, dsc_error *err)
{
    assert_true(shape->m > 0);
    assert_true(shape->n > 0);
    assert_true(shape->k > 0);
    (*(int *)user)++;
    return DSC_OK;
}

/* Bytes of logits in the head's plan, between the norm's output and up to 64 KiB of other things. */
static void expect_chunk(const dsc_model *model, int64_t batch, dsc_dtype dtype, int64_t chunk_bytes, int64_t rows)
{
    const dsc_module *head = &model->modules[model->module_count - 1];
    const int64_t element = (int64_t)dsc_dtype_bytes(dtype), logits = rows * 50304 * element;
    const int64_t norm = batch * 256 * 384 * element, stats = batch * 256 * 8;
    const dsc_plan_sink sink = { .chunk_bytes = chunk_bytes };
    dsc_module_plan plan;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(head->plan(head, batch, dtype, &sink, &plan, &err), DSC_OK);
    assert_in_range(plan.forward_scratch_bytes, logits + norm, logits + norm + stats + 65536);
}

/* 256 tokens in a sample. */
static void chunks_of_a_head(void **state)
{
    const int64_t mib = 1 << 20;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.vocab_multiple = 64;
    dsc_model *model = mf_open("gpt2-small-384", &options);
    expect_chunk(model, 2, DSC_BF16, 0, 512);        /* 51.5 MB: whole */
    expect_chunk(model, 4, DSC_BF16, 64 * mib, 512); /* the limit of a CPU is the module's own */
    expect_chunk(model, 128, DSC_BF16, 0, 576);
    expect_chunk(model, 128, DSC_BF16, 64 * mib, 576);
    expect_chunk(model, 20, DSC_BF16, 512 * mib, 5120);  /* that of a GPU: whole up to it */
    expect_chunk(model, 21, DSC_BF16, 512 * mib, 2688);  /* then in halves */
    expect_chunk(model, 128, DSC_BF16, 512 * mib, 4096); /* and in eighths */
    expect_chunk(model, 128, DSC_F32, 512 * mib, 2048);
    expect_chunk(model, 128, DSC_BF16, 1, 64); /* the least */
    dsc_model_close(&model);
}

static void plans(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.vocab_multiple = 64;
    dsc_model *model = mf_open("gpt2-small-384", &options);
    dsc_module_plan plan;
    dsc_error err = DSC_ERROR_INIT;
    int count = 0;
    const dsc_plan_sink sink = { .gemm = count_gemm, .user = &count, .attention = check_attention };
    const dsc_module *block = &model->modules[1];
    assert_int_equal(block->plan(block, 4, DSC_BF16, &sink, &plan, &err), DSC_OK);
    assert_int_equal(count, 112); /* one attention and twelve products */
    assert_int_equal(plan.out_elements, 1024 * 384);
    /* 5C of two bytes and a log-sum-exp a head, and I that one product of twelve squares makes again; each a multiple
     * of 256. */
    assert_int_equal(plan.saved_bytes, 1024 * (5 * 384 * 2 + 6 * 4));
    assert_int_equal(plan.rebuilt_bytes, 1024 * 4 * 384 * 2);
    assert_true(plan.rebuild_flops == 2.0 * 1024 * 384 * 384 * 4);
    assert_true(plan.forward_flops == 2.0 * 1024 * 384 * 384 * 12 + 2 * 2.0 * 1024 * 128.5 * 384);
    assert_true(plan.backward_flops == 2 * plan.forward_flops);
    /* Two chunks of 512 rows of logits, 52 MB. */
    const dsc_module *head = &model->modules[7];
    count = 0;
    assert_int_equal(head->plan(head, 4, DSC_BF16, &sink, &plan, &err), DSC_OK);
    assert_int_equal(count, 5); /* the table's gradient with and without accumulation, and one row's logits */
    assert_in_range(plan.forward_scratch_bytes, 512 * 50304 * 2, 512 * 50304 * 2 + 1024 * 384 * 2 + 65536);
    assert_int_equal(plan.out_elements, 0);
    count = 0;
    assert_int_equal(head->plan(head, 1, DSC_BF16, &sink, &plan, &err), DSC_OK);
    assert_int_equal(count, 4);
    for (int32_t m = 0; m < model->module_count; m++) {
        assert_int_equal(model->modules[m].plan(&model->modules[m], 0, DSC_F32, NULL, &plan, &err), DSC_ERR_STATE);
        assert_int_equal(model->modules[m].plan(&model->modules[m], INT64_MAX / 2, DSC_F32, NULL, &plan, &err),
                         DSC_ERR_STATE);
        assert_int_equal(model->modules[m].plan(&model->modules[m], 1 << 20, DSC_F32, NULL, &plan, &err), DSC_OK);
        assert_true(plan.saved_bytes >= 0);
        assert_true(plan.forward_scratch_bytes >= 0);
        assert_true(plan.backward_scratch_bytes >= 0);
    }
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_built_in_models),
        cmocka_unit_test(applies_options),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(plans),
        cmocka_unit_test(chunks_of_a_head),
    };
    return cmocka_run_group_tests_name("model", tests, mf_setup, mf_teardown);
}
