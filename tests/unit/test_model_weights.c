/* test_model_weights.c - weights beside a config.json: whole, in shards, under older names; and those that are refused.
 *
 * tests/golden/gpt2_folder is one that PyTorch's numbers were made for. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/support/model_folder.h"

static float first_of(const dsc_model *model, int32_t module, int32_t param)
{
    dsc_error err = DSC_ERROR_INIT;
    bool found = false;
    float x = NAN;
    assert_int_equal(model->load_param(model, module, param, 0, 1, &x, &found, &err), DSC_OK);
    assert_true(found);
    return x;
}

/* A checkpoint's folder has buffers beside its weights. Their file is one of the folder's, unlike any other beside a
 * model.safetensors. */
static void buffers_of_a_checkpoint_are_read_too(void **state)
{
    const dsc_safetensors_spec again = { "transformer.wte.weight", { DSC_F32, 1, { 3 } } };
    mf_write_tiny();
    mf_write_tensors("others.safetensors", &again, 1);
    dsc_model *model = mf_open(mf_dir, NULL);
    dsc_model_close(&model);
    mf_write_tensors("buffers.safetensors", &again, 1);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "is also in another file of the folder");
    unlink(mf_path("others.safetensors"));
    unlink(mf_path("buffers.safetensors"));
}

static void loads_weights(void **state)
{
    mf_write_tiny();
    dsc_model *model = mf_open(mf_dir, NULL);
    assert_null(model->warnings);
    float order = 1;
    for (int32_t m = 0; m < 3; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            assert_true(first_of(model, m, p) == (m == 2 && p == 2 ? 1 : order++)); /* the last one is wte */
    dsc_model_close(&model);
    /* Without the prefix, as the hub's gpt2 is; with the masks of older versions; lm_head beside a tied table. */
    dsc_safetensors_spec specs[MF_TINY_COUNT + 2];
    mf_tiny_specs(specs);
    for (int i = 0; i < MF_TINY_COUNT; i++)
        specs[i].name += strlen("transformer.");
    specs[MF_TINY_COUNT] = (dsc_safetensors_spec){ "h.0.attn.bias", { DSC_U8, 4, { 1, 1, 5, 5 } } };
    specs[MF_TINY_COUNT + 1] = (dsc_safetensors_spec){ "lm_head.weight", { DSC_F32, 2, { 11, 6 } } };
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT + 2);
    model = mf_open(mf_dir, NULL);
    assert_true(first_of(model, 1, 11) == 14);
    dsc_model_close(&model);
    mf_head_value = 2;
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT + 2);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "\"lm_head.weight\" is not \"wte.weight\"");
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "\"tie_word_embeddings\", which is true");
    mf_head_value = 1;
    /* Only the head's name of the tied pair. */
    mf_tiny_specs(specs);
    specs[0].name = "lm_head.weight";
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT);
    model = mf_open(mf_dir, NULL);
    assert_true(first_of(model, 0, 0) == 1);
    assert_true(first_of(model, 2, 2) == 1);
    /* Padded: rows past the file's are zero. */
    dsc_model_close(&model);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.vocab_multiple = 8;
    model = mf_open(mf_dir, &options);
    assert_int_equal(model->modules[0].params[0].dim[0], 16);
    float x[100];
    bool found = false;
    assert_int_equal(model->load_param(model, 0, 0, 0, 96, x, &found, NULL), DSC_OK);
    assert_true(x[0] == 1);
    for (int i = 1; i < 96; i++)
        assert_true(x[i] == 0);
    assert_int_equal(model->load_param(model, 0, 0, 70, 26, x, &found, NULL), DSC_OK);
    dsc_model_close(&model);
    options.want_weights = false;
    model = mf_open(mf_dir, &options);
    assert_int_equal(model->load_param(model, 0, 0, 0, 1, x, &found, NULL), DSC_OK);
    assert_false(found);
    dsc_model_close(&model);
    /* A folder without weights says so. */
    unlink(mf_path("model.safetensors"));
    model = mf_open(mf_dir, NULL);
    assert_non_null(strstr(model->warnings, "initialised afresh"));
    dsc_model_close(&model);
    /* One file with a name of its own. */
    mf_tiny_specs(specs);
    mf_write_tensors("mine.safetensors", specs, MF_TINY_COUNT);
    model = mf_open(mf_dir, NULL);
    assert_true(first_of(model, 0, 1) == 2);
    dsc_model_close(&model);
}

static void loads_the_golden_folder(void **state)
{
    dsc_model *model = mf_open("tests/golden/gpt2_folder", NULL);
    assert_int_equal(model->module_count, 4);
    assert_int_equal(model->vocab_size, 23);
    assert_non_null(strstr(model->warnings, "dropout is off"));
    /* The position table is stored as F16: any range of it is the same numbers. */
    float all[108], part[108];
    bool found = false;
    assert_int_equal(model->load_param(model, 0, 1, 0, 108, all, &found, NULL), DSC_OK);
    for (int64_t first = 0; first < 108; first += 7) {
        const int64_t count = dsc_min_i64(11, 108 - first);
        assert_int_equal(model->load_param(model, 0, 1, first, count, part, &found, NULL), DSC_OK);
        assert_memory_equal(part, all + first, (size_t)count * 4);
    }
    dsc_model_close(&model);
}

static void loads_shards(void **state)
{
    dsc_safetensors_spec specs[MF_TINY_COUNT + 2];
    char index[4000] = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {";
    mf_write_tiny();
    unlink(mf_path("model.safetensors"));
    mf_tiny_specs(specs);
    mf_write_tensors("model-00001-of-00002.safetensors", specs, 5);
    mf_write_tensors("model-00002-of-00002.safetensors", specs + 5, MF_TINY_COUNT - 5);
    for (int i = 0; i < MF_TINY_COUNT; i++)
        snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\": \"model-0000%d-of-00002.safetensors\"",
                 i == 0 ? "" : ", ", specs[i].name, i < 5 ? 1 : 2);
    snprintf(index + strlen(index), sizeof index - strlen(index), "}}");
    mf_write("model.safetensors.index.json", index);
    dsc_model *model = mf_open(mf_dir, NULL);
    assert_true(first_of(model, 0, 1) == 2);
    assert_true(first_of(model, 1, 3) == 1);
    dsc_model_close(&model);
    /* Every way out of the folder, and every disagreement. */
    static const struct { const char *text; const char *what; } cases[] = {
        { "{}", "\"weight_map\" must be" },
        { "{\"weight_map\": []}", "\"weight_map\" must be" },
        { "{\"weight_map\": {\"a\": 1}}", "without a path" },
        { "{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "without a path" },
        { "{\"weight_map\": {\"a\": \"/etc/x.safetensors\"}}", "without a path" },
        { "{\"weight_map\": {\"a\": \"sub/x.safetensors\"}}", "without a path" },
        { "{\"weight_map\": {\"a\": \"..\"}}", "without a path" },
        { "{\"weight_map\": {\"a\": \"config.json\"}}", "without a path" },
        { "{\"weight_map\": {\"a\": \"gone.safetensors\"}}", "gone.safetensors" },
        { "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}", "tensor \"a\" is not in" },
        { "{\"weight_map\": {\"transformer.wte.weight\": \"model-00001-of-00002.safetensors\"}}", "the index names 1" },
        { "{\"weight_map\": {\"transformer.wte.weight\": \"model-00002-of-00002.safetensors\"}}", "is not in" },
        { "{\"weight_map\": {", "index.json:1" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        mf_write("model.safetensors.index.json", cases[i].text);
        mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, cases[i].what);
    }
    unlink(mf_path("model.safetensors.index.json"));
    mf_write_tensors("model-00003.safetensors", specs, 1);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "also in another file");
}

static void refuses_weights(void **state)
{
    dsc_safetensors_spec specs[MF_TINY_COUNT + 2];
    mf_write_tiny();
    mf_tiny_specs(specs);
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT - 1);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "\"transformer.ln_f.bias\" is missing");
    specs[4].desc.dim[1] = 12;
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "is [6,12], config.json needs [6,18]");
    mf_tiny_specs(specs);
    specs[3].desc = (dsc_tensor_desc){ DSC_F32, 2, { 6, 1 } };
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "is [6,1], config.json needs [6]");
    mf_tiny_specs(specs);
    specs[3].desc.dtype = DSC_I64;
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_UNSUPPORTED, "is in I64");
    static const char *const strangers[] = { "transformer.h.1.ln_1.weight",
                                             "h.0.attn.bias2",
                                             "h..attn.bias",
                                             "h.1.attn.bias",
                                             "h.-0.attn.bias",
                                             "h. 0.attn.bias",
                                             "transformer.transformer.wte.weight",
                                             "score.weight",
                                             "h.99999999999999999999.attn.bias",
                                             "transformer.h.0.ln_1.weight.x" };
    for (size_t i = 0; i < DSC_COUNT(strangers); i++) {
        mf_tiny_specs(specs);
        specs[MF_TINY_COUNT] = (dsc_safetensors_spec){ strangers[i], { DSC_F32, 1, { 6 } } };
        mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT + 1);
        mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "is not one of a gpt2 with n_layer 1");
    }
    specs[MF_TINY_COUNT].name = "ln_f.bias";
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT + 1);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "both");
    specs[MF_TINY_COUNT] = (dsc_safetensors_spec){ "lm_head.weight", { DSC_F32, 2, { 11, 7 } } };
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT + 1);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "lm_head.weight");
    mf_write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "safetensors");
    unlink(mf_path("model.safetensors"));
    assert_int_equal(symlink("/nowhere/blob", mf_path("model.safetensors")), 0);
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_INPUT, "model.safetensors");
    unlink(mf_path("model.safetensors"));
    mf_write("pytorch_model.bin", "PK");
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_UNSUPPORTED, "python3 -c");
    mf_expect_refusal(mf_dir, NULL, DSC_ERR_UNSUPPORTED, "safe_serialization=True");
    mf_write("config.json", "{" MF_TINY ", \"tie_word_embeddings\": false}");
    mf_tiny_specs(specs);
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT);
    dsc_model_options complete = DSC_MODEL_OPTIONS_INIT;
    complete.complete_weights = true;
    mf_expect_refusal(mf_dir, &complete, DSC_ERR_INPUT, "\"lm_head.weight\" is missing");
    dsc_model *model = mf_open(mf_dir, NULL);
    assert_non_null(strstr(model->warnings, "\"lm_head.weight\" is in no file and begins with fresh values"));
    dsc_model_close(&model);
}

/* Each allocation fails once; the model's own allocator asserts that nothing of it is left. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_of_a_checkpoint_are_read_too),
        cmocka_unit_test(loads_weights),
        cmocka_unit_test(loads_the_golden_folder),
        cmocka_unit_test(loads_shards),
        cmocka_unit_test(refuses_weights),
    };
    return cmocka_run_group_tests_name("model_weights", tests, mf_setup, mf_teardown);
}
