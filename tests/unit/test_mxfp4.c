/* test_mxfp4.c - folders whose experts' matrices are in MXFP4: the values are those of transformers, bit by bit, and
 * files that contradict themselves are refused by name. tests/golden/make_mxfp4.py made the values.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/support/lmrun.h"
#include "tests/support/model_folder.h"

#define CONFIG(more)                                                                                                   \
    "{\"model_type\": \"gpt_oss\", \"vocab_size\": 11, \"hidden_size\": 64, \"num_hidden_layers\": 1,"                 \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"intermediate_size\": 32,"             \
    " \"num_local_experts\": 2, \"num_experts_per_tok\": 1, \"max_position_embeddings\": 16,"                          \
    " \"layer_types\": [\"full_attention\"]" more "}"
#define MXFP4                                                                                                          \
    CONFIG(", \"quantization_config\": {\"quant_method\": \"mxfp4\", \"modules_to_not_convert\": [\"lm_head\"]}")
#define LAYER "model.layers.0."
#define EXPERTS LAYER "mlp.experts."
#define GATE_UP EXPERTS "gate_up_proj"

enum { EXPERTS_COUNT = 2, SIZE = 64, ELEMENTS = EXPERTS_COUNT * SIZE * SIZE, TENSORS_MAX = 24 };

typedef struct tensor {
    const char *name, *dtype, *shape; /* "2,64" */
    const void *data;                 /* NULL: zeros */
    int64_t bytes;
} tensor;

typedef struct folder {
    const char *config;
    tensor tensor[TENSORS_MAX];
    int count;
} folder;

static uint8_t blocks[ELEMENTS / 2], scales[ELEMENTS / 32], spoilt[ELEMENTS / 32];
static float matrices[ELEMENTS];

/* ---- folders ---- */

static void add(folder *f, const char *name, const char *dtype, const char *shape, const void *data)
{
    int64_t bytes = strcmp(dtype, "U8") == 0 ? 1 : 2;
    assert_true(f->count < TENSORS_MAX);
    for (const char *at = shape; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        bytes *= strtol(at, NULL, 10);
    f->tensor[f->count++] = (tensor) { name, dtype, shape, data, bytes };
}

static void make(folder *f)
{
    static const char *const plain[][2] = { { "model.embed_tokens.weight", "11,64" },
                                            { "lm_head.weight", "11,64" },
                                            { "model.norm.weight", "64" },
                                            { LAYER "input_layernorm.weight", "64" },
                                            { LAYER "post_attention_layernorm.weight", "64" },
                                            { LAYER "self_attn.q_proj.weight", "16,64" },
                                            { LAYER "self_attn.q_proj.bias", "16" },
                                            { LAYER "self_attn.k_proj.weight", "8,64" },
                                            { LAYER "self_attn.k_proj.bias", "8" },
                                            { LAYER "self_attn.v_proj.weight", "8,64" },
                                            { LAYER "self_attn.v_proj.bias", "8" },
                                            { LAYER "self_attn.o_proj.weight", "64,16" },
                                            { LAYER "self_attn.o_proj.bias", "64" },
                                            { LAYER "self_attn.sinks", "2" },
                                            { LAYER "mlp.router.weight", "2,64" },
                                            { LAYER "mlp.router.bias", "2" },
                                            { GATE_UP "_bias", "2,64" },
                                            { EXPERTS "down_proj_bias", "2,64" } };
    *f = (folder) { .config = MXFP4 };
    for (size_t i = 0; i < DSC_COUNT(plain); i++)
        add(f, plain[i][0], "BF16", plain[i][1], NULL);
    add(f, GATE_UP "_blocks", "U8", "2,64,2,16", blocks);
    add(f, GATE_UP "_scales", "U8", "2,64,2", scales);
    add(f, EXPERTS "down_proj_blocks", "U8", "2,64,1,16", blocks);
    add(f, EXPERTS "down_proj_scales", "U8", "2,64,1", scales);
}

static void write_folder(const folder *f)
{
    char head[8192];
    int64_t at = 0;
    size_t bytes = 1;
    head[0] = '{';
    for (int i = 0; i < f->count; i++) {
        const tensor *t = &f->tensor[i];
        bytes += (size_t)snprintf(head + bytes, sizeof head - bytes,
                                  "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}",
                                  i > 0 ? "," : "", t->name, t->dtype, t->shape, (long long)at,
                                  (long long)(at + t->bytes));
        at += t->bytes;
    }
    head[bytes++] = '}';
    mf_empty();
    mf_write("config.json", f->config);
    FILE *file = fopen(mf_path("model.safetensors"), "wb");
    assert_non_null(file);
    const uint64_t length = bytes;
    fwrite(&length, 8, 1, file);
    fwrite(head, bytes, 1, file);
    for (int i = 0; i < f->count; i++) {
        void *zeros = calloc(1, (size_t)f->tensor[i].bytes);
        fwrite(f->tensor[i].data != NULL ? f->tensor[i].data : zeros, (size_t)f->tensor[i].bytes, 1, file);
        free(zeros);
    }
    assert_int_equal(fclose(file), 0);
}

static tensor *find(folder *f, const char *name)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->tensor[i].name, name) == 0)
            return &f->tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void read_golden(void)
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    dsc_safetensors *golden = lmrun_open_golden(alloc, "mxfp4");
    const dsc_safetensors_entry *of_blocks = dsc_safetensors_find(golden, "blocks");
    const dsc_safetensors_entry *of_scales = dsc_safetensors_find(golden, "scales");
    assert_true(of_blocks != NULL && of_blocks->bytes == sizeof blocks);
    assert_true(of_scales != NULL && of_scales->bytes == sizeof scales);
    assert_int_equal(dsc_safetensors_read_bytes(golden, of_blocks, 0, sizeof blocks, blocks, &err), DSC_OK);
    assert_int_equal(dsc_safetensors_read_bytes(golden, of_scales, 0, sizeof scales, scales, &err), DSC_OK);
    assert_int_equal(lmrun_read_golden(golden, "", "matrices", matrices, ELEMENTS), ELEMENTS);
    dsc_safetensors_close(&golden);
    dsc_alloc_close(&alloc);
}

static dsc_status read_param(const dsc_model *model, const char *name, int64_t first, int64_t count, float *out,
                             dsc_error *err)
{
    bool found = false;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (strcmp(model->modules[m].params[p].name, name) == 0) {
                const dsc_status status = model->load_param(model, m, p, first, count, out, &found, err);
                assert_true(found);
                return status;
            }
    fail_msg("no parameter %s", name);
    return DSC_ERR_STATE;
}

/* ---- tests ---- */

static void values_are_those_of_transformers(void **state)
{
    static const int64_t firsts[] = { 0, 1, 63, 64, 65, 2047, 2048, 4095, 4096, 6000, 8191 };
    float got[ELEMENTS];
    dsc_error err = DSC_ERROR_INIT;
    folder f;
    make(&f);
    write_folder(&f);
    dsc_model *model = mf_open(mf_dir, NULL);
    assert_null(strstr(model->config_json, "quantization_config")); /* what this model saves is not in 4 bits */
    for (size_t i = 0; i < DSC_COUNT(firsts); i++)
        for (int64_t count = 1; count <= ELEMENTS - firsts[i]; count = count * 3 + 1) {
            assert_int_equal(read_param(model, GATE_UP, firsts[i], count, got, &err), DSC_OK);
            assert_memory_equal(got, matrices + firsts[i], (size_t)count * sizeof *got);
        }
    assert_int_equal(read_param(model, GATE_UP, 0, ELEMENTS, got, &err), DSC_OK);
    assert_memory_equal(got, matrices, sizeof matrices);
    dsc_model_close(&model);
}

/* As our export has them: without quantization_config. */
static void whole_matrices_are_read_too(void **state)
{
    float got[4] = { 1, 1, 1, 1 };
    dsc_error err = DSC_ERROR_INIT;
    folder f;
    make(&f);
    f.config = CONFIG("");
    f.count -= 4;
    add(&f, GATE_UP, "BF16", "2,64,64", NULL);
    add(&f, EXPERTS "down_proj", "BF16", "2,32,64", NULL);
    write_folder(&f);
    dsc_model *model = mf_open(mf_dir, NULL);
    assert_int_equal(read_param(model, GATE_UP, 100, 4, got, &err), DSC_OK);
    assert_true(got[0] == 0 && got[3] == 0);
    dsc_model_close(&model);
    find(&f, GATE_UP)->shape = "2,32,128";
    write_folder(&f);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT,
                      "\"" GATE_UP "\" has 3 dimensions or other sizes; config.json needs [2,64,64]");
}

static void expect_refusal(const char *name, const char *dtype, const char *shape, const char *what)
{
    folder f;
    make(&f);
    tensor *t = find(&f, name);
    const tensor last = f.tensor[--f.count];
    *t = last; /* it may be that one */
    if (shape != NULL)
        add(&f, name, dtype, shape, NULL);
    write_folder(&f);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, what);
}

static void contradictions_are_refused_by_name(void **state)
{
    expect_refusal(GATE_UP "_scales", "", NULL, "tensor \"" GATE_UP "_scales\" is missing");
    expect_refusal(GATE_UP "_blocks", "", NULL, "tensor \"" GATE_UP "_blocks\" is missing");
    expect_refusal(GATE_UP "_blocks", "BF16", "2,64,2,16",
                   "\"" GATE_UP "_blocks\" is [2,64,2,16] in BF16; config.json needs [2,64,2,16] in U8 for MXFP4");
    expect_refusal(GATE_UP "_blocks", "U8", "2,64,1,32",
                   "\"" GATE_UP "_blocks\" is [2,64,1,32] in U8; config.json needs [2,64,2,16] in U8");
    expect_refusal(GATE_UP "_blocks", "U8", "2,64,32", "\"" GATE_UP "_blocks\" is [2,64,32] in U8");
    expect_refusal(EXPERTS "down_proj_scales", "U8", "2,64,2",
                   "\"" EXPERTS "down_proj_scales\" is [2,64,2] in U8; config.json needs [2,64,1] in U8");
    folder f;
    make(&f);
    f.config = CONFIG("");
    write_folder(&f);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT,
                      "\"" GATE_UP "_blocks\" is in MXFP4, and config.json has no \"quantization_config\"");
    make(&f);
    f.config = CONFIG(", \"quantization_config\": {\"quant_method\": \"gptq\"}");
    write_folder(&f);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_UNSUPPORTED, "\"quant_method\": \"gptq\"");
}

/* 255 is NaN in the format's scales, and 254 times 6 is infinite. */
static void values_that_are_not_finite_are_refused(void **state)
{
    static const uint8_t bad[] = { 255, 254 };
    float got[ELEMENTS];
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        dsc_error err = DSC_ERROR_INIT;
        folder f;
        make(&f);
        memcpy(spoilt, scales, sizeof spoilt);
        spoilt[0] = bad[i];
        find(&f, GATE_UP "_scales")->data = spoilt;
        write_folder(&f);
        dsc_model *model = mf_open(mf_dir, NULL);
        assert_int_equal(read_param(model, GATE_UP, 0, ELEMENTS, got, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "tensor \"" GATE_UP "_scales\" makes element "));
        assert_int_equal(read_param(model, GATE_UP, ELEMENTS / 2, ELEMENTS / 2, got, &err), DSC_OK); /* the other one */
        dsc_model_close(&model);
    }
}

/* bitsandbytes packs linear layers alone: neither the router, which transformers has as a parameter, nor biases that
 * have two dimensions. */
static void other_matrices_stay_as_they_are(void **state)
{
    folder f;
    int32_t stored = 0, packed = 0;
    make(&f);
    write_folder(&f);
    dsc_model *model = mf_open(mf_dir, NULL);
    for (int32_t p = 0; p < model->modules[1].param_count; p++) {
        const dsc_param_spec *spec = &model->modules[1].params[p];
        stored += spec->dim_count == 2 && spec->as_stored;
        packed += spec->dim_count == 2 && !spec->as_stored;
    }
    assert_int_equal(stored, 3);
    assert_int_equal(packed, 4); /* q, k, v and o */
    dsc_model_close(&model);
}

static int setup(void **state)
{
    read_golden();
    return mf_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_transformers),
        cmocka_unit_test(whole_matrices_are_read_too),
        cmocka_unit_test(contradictions_are_refused_by_name),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(other_matrices_stay_as_they_are),
    };
    return cmocka_run_group_tests_name("mxfp4", tests, setup, mf_teardown);
}
