/* test_model.c - names, configs and folders in, modules and parameters out; and everything that is refused.
 *
 * Folders are written here by hand; tests/golden/gpt2_folder is one that PyTorch's numbers were made for.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <dsc/model.h>

#include "base/base.h"
#include "base/safetensors.h"
#include "kernels/kernels.h"
#include "models/families.h"

static dsc_alloc *alloc;
static char dir[64];

static int setup(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/dsc_model_XXXXXX");
    return mkdtemp(dir) == NULL || dsc_alloc_open(&alloc, NULL) != DSC_OK;
}

static int teardown(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = dsc_io_remove_dir(NULL, dir, &err);
    dsc_alloc_close(&alloc);
    return status != DSC_OK;
}

/* ---- Helpers ----------------------------------------------------------------------------------------------------- */

static const char *in_dir(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void empty_dir(void)
{
    assert_int_equal(dsc_io_remove_dir(NULL, dir, NULL), DSC_OK);
    assert_int_equal(dsc_io_mkdir(NULL, dir, NULL), DSC_OK);
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* A tensor file of zeros but for the first element of the i-th tensor, which is i + 1. */
/* The first element of each is its number, of a head this. */
static float head_value = 1;

static void write_tensors(const char *name, const dsc_safetensors_spec *specs, int64_t count)
{
    dsc_safetensors_plan plan = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    dsc_file file = DSC_FILE_INIT;
    if (dsc_safetensors_plan_open(&plan, alloc, specs, count, NULL, 0, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(dsc_io_open(NULL, in_dir(name), DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_safetensors_write_header(&plan, NULL, &file, &err), DSC_OK);
    for (int64_t i = 0; i < count; i++) {
        const float x = strcmp(specs[i].name, "lm_head.weight") == 0 ? head_value : (float)(i + 1);
        if (specs[i].desc.dtype == DSC_F32)
            assert_int_equal(dsc_io_write(NULL, &file, &x, 4, plan.offset[i], &err), DSC_OK);
    }
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    dsc_safetensors_plan_close(&plan);
}

#define TINY \
    "\"model_type\": \"gpt2\", \"vocab_size\": 11, \"n_positions\": 5, \"n_embd\": 6, \"n_layer\": 1, \"n_head\": 2"

/* The tensors of TINY; the caller may change them. */
#define TINY_COUNT 16
static void tiny_specs(dsc_safetensors_spec specs[TINY_COUNT + 2])
{
    const dsc_safetensors_spec all[TINY_COUNT] = {
        { "transformer.wte.weight", { DSC_F32, 2, { 11, 6 } } },
        { "transformer.wpe.weight", { DSC_F32, 2, { 5, 6 } } },
        { "transformer.h.0.ln_1.weight", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.ln_1.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.attn.c_attn.weight", { DSC_F32, 2, { 6, 18 } } },
        { "transformer.h.0.attn.c_attn.bias", { DSC_F32, 1, { 18 } } },
        { "transformer.h.0.attn.c_proj.weight", { DSC_F32, 2, { 6, 6 } } },
        { "transformer.h.0.attn.c_proj.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.ln_2.weight", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.ln_2.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.mlp.c_fc.weight", { DSC_F32, 2, { 6, 24 } } },
        { "transformer.h.0.mlp.c_fc.bias", { DSC_F32, 1, { 24 } } },
        { "transformer.h.0.mlp.c_proj.weight", { DSC_F32, 2, { 24, 6 } } },
        { "transformer.h.0.mlp.c_proj.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.ln_f.weight", { DSC_F32, 1, { 6 } } },
        { "transformer.ln_f.bias", { DSC_F32, 1, { 6 } } },
    };
    memcpy(specs, all, sizeof all);
}

static void tiny_folder(void)
{
    dsc_safetensors_spec specs[TINY_COUNT + 2];
    tiny_specs(specs);
    empty_dir();
    write_text("config.json", "{" TINY ", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0.0}");
    write_tensors("model.safetensors", specs, TINY_COUNT);
}

static dsc_model *open_ok(const char *name, const dsc_model_options *options)
{
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[800];
    if (dsc_model_open(&model, name, options, &err) != DSC_OK)
        fail_msg("%s: %s", name, dsc_error_format(&err, text, sizeof text));
    if (dsc_model_check(model, &err) != DSC_OK)
        fail_msg("%s: %s", name, dsc_error_format(&err, text, sizeof text));
    return model;
}

static void expect_refusal(const char *name, const dsc_model_options *options, dsc_status status, const char *what)
{
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[800];
    const dsc_status got = dsc_model_open(&model, name, options, &err);
    dsc_error_format(&err, text, sizeof text);
    if (got != status || strstr(text, what) == NULL)
        fail_msg("%s: expected status %d with \"%s\", got %d: \"%s\"", name, (int)status, what, (int)got, text);
    assert_null(model);
}

/* The text of a config.json, and what its refusal says. */
typedef struct refused_config {
    const char *text;
    dsc_status status;
    const char *what;
} refused_config;

static void expect_configs_refused(const refused_config *cases, size_t count)
{
    empty_dir();
    for (size_t i = 0; i < count; i++) {
        write_text("c.json", cases[i].text);
        expect_refusal(in_dir("c.json"), NULL, cases[i].status, cases[i].what);
    }
}

static int64_t elements_of(const dsc_param_spec *spec)
{
    int64_t n = 1;
    for (int32_t i = 0; i < spec->dim_count; i++)
        n *= spec->dim[i];
    return n;
}

static int64_t param_elements(const dsc_model *model)
{
    int64_t n = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (model->modules[m].params[p].shared_module < 0)
                n += elements_of(&model->modules[m].params[p]);
    return n;
}

/* ---- Built-in models --------------------------------------------------------------------------------------------- */

static void opens_built_in_models(void **state)
{
    /* Parameters as Hugging Face's config_class counts them. */
    static const struct { const char *name; int64_t elements, layers, sequence; } known[] = {
        { "gpt2", 124439808, 12, 1024 },        { "gpt2-124m", 124439808, 12, 1024 },
        { "gpt2-medium", 354823168, 24, 1024 }, { "gpt2-large", 774030080, 36, 1024 },
        { "gpt2-xl", 1557611200, 48, 1024 },    { "gpt2-small-384", 30044544, 6, 256 },
    };
    for (size_t i = 0; i < DSC_COUNT(known); i++) {
        dsc_model *model = open_ok(known[i].name, NULL);
        assert_int_equal(param_elements(model), known[i].elements);
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
        dsc_model *model = open_ok(dsc_model_builtin_name(count), NULL);
        assert_string_equal(model->name, dsc_model_builtin_name(count));
        dsc_model_close(&model);
    }
    assert_true(count >= 8);
    assert_null(dsc_model_builtin_name(-1));
    dsc_model *nano = open_ok("gpt2-nano", NULL);
    assert_int_equal(nano->vocab_size, 256);
    assert_in_range(param_elements(nano), 800000, 1000000);
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
    dsc_model *model = open_ok("gpt2-124m", &options);
    assert_int_equal(model->vocab_size, 50257);
    assert_int_equal(model->modules[0].params[0].dim[0], 50304);
    assert_int_equal(model->modules[13].params[2].dim[0], 50304);
    assert_int_equal(model->modules[0].params[1].dim[0], 1024);
    assert_int_equal(model->seq_length, 64);
    assert_non_null(strstr(model->config_json, "\"vocab_size\": 50304"));
    /* What is saved is read again as the same model. */
    write_text("config.json", model->config_json);
    dsc_model *again = open_ok(in_dir("config.json"), NULL);
    assert_int_equal(param_elements(again), param_elements(model));
    dsc_model_close(&again);
    dsc_model_close(&model);
    options.vocab_multiple = 0;
    options.seq_length = 1025;
    expect_refusal("gpt2-124m", &options, DSC_ERR_INPUT, "1024 positions");
    options.seq_length = -1;
    expect_refusal("gpt2-124m", &options, DSC_ERR_INPUT, "seq_length");
    options.seq_length = 0;
    options.vocab_multiple = INT64_MAX;
    expect_refusal("gpt2-124m", &options, DSC_ERR_INPUT, "vocab_multiple");
    options.vocab_multiple = 1;
    options.struct_bytes = 4;
    expect_refusal("gpt2-124m", &options, DSC_ERR_STATE, "struct_bytes");
    expect_refusal("llama-7b", NULL, DSC_ERR_INPUT,
                   "gpt2-nano, gpt2-micro, gpt2-small-384, gpt2-124m, gpt2, gpt2-medium");
    expect_refusal("", NULL, DSC_ERR_INPUT, "gpt2-nano");
    expect_refusal("/nowhere/at/all", NULL, DSC_ERR_INPUT, "gpt2-nano");
    expect_refusal("/dev/zero", NULL, DSC_ERR_INPUT, "device");
    empty_dir();
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "config.json");
    write_text("model.bin", "x");
    expect_refusal(in_dir("model.bin"), NULL, DSC_ERR_INPUT, "*.json");
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static void reads_configs(void **state)
{
    empty_dir();
    write_text("c.json", "{\"model_type\": \"gpt2\"}"); /* every key has Hugging Face's default */
    dsc_model *model = open_ok(in_dir("c.json"), NULL);
    assert_int_equal(param_elements(model), 124439808);
    assert_non_null(strstr(model->warnings, "dropout is off"));
    dsc_model_close(&model);
    write_text("c.json",
               "{" TINY ", \"n_inner\": 10, \"tie_word_embeddings\": false, \"attn_pdrop\": 0, \"resid_pdrop\": 0.0, "
               "\"embd_pdrop\": 0, \"activation_function\": \"gelu_pytorch_tanh\", \"n_ctx\": 4, "
               "\"reorder_and_upcast_attn\": true, \"initializer_range\": 0.5, \"summary_type\": \"cls_index\"}");
    model = open_ok(in_dir("c.json"), NULL);
    assert_null(model->warnings);
    assert_int_equal(model->seq_length, 5);
    assert_int_equal(model->modules[1].params[8].dim[1], 10);
    assert_string_equal(model->modules[2].params[2].name, "lm_head.weight");
    assert_int_equal(model->modules[2].params[2].shared_module, -1);
    assert_true(model->modules[2].params[2].init_std == 0.5f);
    assert_non_null(strstr(model->config_json, "summary_type")); /* the file's own text */
    dsc_model_close(&model);
    write_text("c.json", "{\"model_type\": \"gpt2\", \"n_ctx\": 7, \"vocab_size\": 3, \"n_embd\": 4, \"n_head\": 1, "
                         "\"n_layer\": 1, \"n_inner\": null}");
    model = open_ok(in_dir("c.json"), NULL);
    assert_int_equal(model->seq_length, 7); /* the older name of n_positions */
    assert_int_equal(model->modules[1].params[8].dim[1], 16);
    dsc_model_close(&model);
    /* Other models' names of sizes, which transformers takes too, and before GPT-2's own. */
    write_text("c.json", "{\"model_type\": \"gpt2\", \"vocab_size\": 3, \"hidden_size\": 8, \"n_embd\": 4, "
                         "\"num_attention_heads\": 2, \"num_hidden_layers\": 2, \"max_position_embeddings\": 9}");
    model = open_ok(in_dir("c.json"), NULL);
    assert_int_equal(model->seq_length, 9);
    assert_int_equal(model->module_count, 4);
    assert_int_equal(model->modules[0].params[0].dim[1], 8);
    dsc_model_close(&model);
}

static void refuses_configs(void **state)
{
    static const refused_config cases[] = {
        { "", DSC_ERR_INPUT, "c.json" },
        { "[]", DSC_ERR_INPUT, "model_type" },
        { "{}", DSC_ERR_INPUT, "\"model_type\" is missing" },
        { "{\"model_type\": 3}", DSC_ERR_INPUT, "model_type" },
        { "{\"model_type\": \"gemma\"}", DSC_ERR_UNSUPPORTED,
          "model_type \"gemma\" is not built; what exists: gpt2, llama, mistral, qwen2, qwen3, gpt_neox, opt" },
        { "{" TINY ", \"n_embd\": 6}", DSC_ERR_INPUT, "n_embd" }, /* twice */
        { "{" TINY ", }", DSC_ERR_INPUT, "c.json:1" },
        { "{" TINY ", \"n_inner\": 0}", DSC_ERR_INPUT, "\"n_inner\" must be a whole number from 1" },
        { "{" TINY ", \"n_inner\": -4}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{" TINY ", \"n_inner\": 2.5}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{" TINY ", \"n_inner\": 1e30}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{" TINY ", \"n_inner\": \"24\"}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{\"model_type\": \"gpt2\", \"n_layer\": 1000000}", DSC_ERR_INPUT, "\"n_layer\"" },
        { "{\"model_type\": \"gpt2\", \"n_layer\": true}", DSC_ERR_INPUT, "\"n_layer\"" },
        { "{\"model_type\": \"gpt2\", \"vocab_size\": 9007199254740992}", DSC_ERR_INPUT, "\"vocab_size\"" },
        { "{\"model_type\": \"gpt2\", \"vocab_size\": 0}", DSC_ERR_INPUT, "\"vocab_size\"" },
        { "{\"model_type\": \"gpt2\", \"n_positions\": 0}", DSC_ERR_INPUT, "\"n_positions\"" },
        { "{\"model_type\": \"gpt2\", \"n_embd\": 60, \"n_head\": 7}", DSC_ERR_INPUT,
          "60 is not a multiple of \"n_head\" 7" },
        { "{\"model_type\": \"gpt2\", \"n_embd\": 60, \"n_head\": 6, \"num_attention_heads\": 7}", DSC_ERR_INPUT,
          "60 is not a multiple of \"n_head\" 7" },
        { "{" TINY ", \"layer_norm_epsilon\": 0}", DSC_ERR_INPUT, "\"layer_norm_epsilon\"" },
        { "{" TINY ", \"layer_norm_epsilon\": -1e-5}", DSC_ERR_INPUT, "\"layer_norm_epsilon\"" },
        { "{" TINY ", \"initializer_range\": -1}", DSC_ERR_INPUT, "\"initializer_range\"" },
        { "{" TINY ", \"attn_pdrop\": 2}", DSC_ERR_INPUT, "\"attn_pdrop\"" },
        { "{" TINY ", \"tie_word_embeddings\": 1}", DSC_ERR_INPUT, "\"tie_word_embeddings\"" },
        { "{" TINY ", \"activation_function\": \"silu\"}", DSC_ERR_UNSUPPORTED,
          "activation_function \"silu\" is not built" },
        { "{" TINY ", \"activation_function\": \"tanh\"}", DSC_ERR_UNSUPPORTED, "gelu_new" },
        { "{" TINY ", \"activation_function\": 4}", DSC_ERR_INPUT, "activation_function" },
        { "{" TINY ", \"add_cross_attention\": true}", DSC_ERR_UNSUPPORTED, "add_cross_attention" },
        { "{" TINY ", \"quantization_config\": {}}", DSC_ERR_UNSUPPORTED, "quantized" },
        { "// no comments here\n{" TINY "}", DSC_ERR_INPUT, "c.json:1:1" },
    };
    expect_configs_refused(cases, DSC_COUNT(cases));
}

#define SMALL                                                                                                         \
    "\"vocab_size\": 11, \"hidden_size\": 12, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "                 \
    "\"num_key_value_heads\": 1, \"intermediate_size\": 7, \"max_position_embeddings\": 64"
#define LLAMA "\"model_type\": \"llama\", " SMALL

/* Parameters as the makers count them. */
static void opens_llamas(void **state)
{
    static const struct { const char *name; int64_t elements; } known[] = {
        { "llama-2-7b", 6738415616 },  { "llama-3.1-8b", 8030261248 }, { "llama-3.2-1b", 1235814400 },
        { "mistral-7b", 7248023552 },  { "qwen2.5-0.5b", 494032768 },  { "qwen3-0.6b", 596049920 },
    };
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    for (size_t i = 0; i < DSC_COUNT(known); i++) {
        dsc_model *model = open_ok(known[i].name, NULL);
        assert_int_equal(param_elements(model), known[i].elements);
        /* What is saved is read again as the same model. */
        write_text("config.json", model->config_json);
        options.seq_length = model->seq_length;
        dsc_model *again = open_ok(in_dir("config.json"), &options);
        assert_int_equal(param_elements(again), known[i].elements);
        assert_int_equal(again->module_count, model->module_count);
        assert_null(again->warnings);
        dsc_model_close(&again);
        dsc_model_close(&model);
    }
}

#define LONGROPE                                                                                      \
    "\"rope_parameters\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 1.5, 2], \"long_factor\": [1, 4, 9], " \
    "\"attention_factor\": 1.25, \"original_max_position_embeddings\": 16}"

/* With a padded table too a config.json says what the file said: positions, layers, and keys that nobody here reads. */
static void keeps_a_files_keys(void **state)
{
    static const char *const cases[] = {
        "{" LLAMA ", \"rope_theta\": 5e5, \"eos_token_id\": [1, 3], \"transformers_version\": \"4.57.1\"}",
        "{\"model_type\": \"qwen2\", \"hidden_size\": 24, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
        "\"vocab_size\": 11, \"num_hidden_layers\": 2, \"intermediate_size\": 7, \"use_sliding_window\": true, "
        "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
        "{" LLAMA ", \"rope_scaling\": {}, \"rope_parameters\": {\"type\": \"linear\", \"factor\": 2.5, "
        "\"rope_theta\": 777}}",
        "{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}}",
        "{" LLAMA ", \"original_max_position_embeddings\": 32, \"rope_scaling\": {\"rope_type\": \"yarn\", "
        "\"factor\": 2, \"mscale\": 0.5, \"mscale_all_dim\": 0.25, \"truncate\": false}}",
        "{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
        "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}}",
        "{" LLAMA ", " LONGROPE "}",
        "{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"proportional\", \"factor\": 3, "
        "\"partial_rotary_factor\": 0.5}}",
        "{" LLAMA ", \"partial_rotary_factor\": 0.5, \"rope_parameters\": {\"rope_type\": \"proportional\"}}",
        "{\"model_type\": \"gpt_neox\", \"hidden_size\": 24, \"num_attention_heads\": 2, \"vocab_size\": 11, "
        "\"num_hidden_layers\": 1, \"intermediate_size\": 7, \"rotary_pct\": 0.5, " LONGROPE "}",
    };
    dsc_model_options padded = DSC_MODEL_OPTIONS_INIT;
    padded.vocab_multiple = 8;
    empty_dir();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        write_text("c.json", cases[i]);
        dsc_model *model = open_ok(in_dir("c.json"), &padded);
        cJSON *given = cJSON_Parse(cases[i]), *kept = cJSON_Parse(model->config_json);
        assert_true(cJSON_ReplaceItemInObject(given, "vocab_size", cJSON_CreateNumber(16)));
        if (!cJSON_Compare(given, kept, true))
            fail_msg("case %zu: %s", i, model->config_json);
        write_text("again.json", model->config_json);
        dsc_model *again = open_ok(in_dir("again.json"), &padded);
        assert_string_equal(again->config_json, model->config_json);
        dsc_model_close(&again);
        dsc_model_close(&model);
        cJSON_Delete(given);
        cJSON_Delete(kept);
    }
}

/* Longer texts have other positions: one that goes on over the border has both in transformers, and none here. */
static void refuses_longrope_over_its_border(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    empty_dir();
    write_text("c.json", "{" LLAMA ", " LONGROPE "}");
    for (int32_t tokens = 16; tokens <= 17; tokens++) {
        for (int documents = 0; documents < 2; documents++) {
            options.seq_length = tokens;
            options.documents = documents == 1;
            options.cache_tokens = documents == 1 ? 0 : tokens;
            if (tokens == 17) {
                expect_refusal(in_dir("c.json"), &options, DSC_ERR_UNSUPPORTED, "longrope");
                continue;
            }
            dsc_model *model = open_ok(in_dir("c.json"), &options);
            dsc_model_close(&model);
        }
    }
}

/* Samples are as long as the window unless longer ones are asked for. */
static void knows_windows(void **state)
{
    static const struct { const char *text; int64_t usual; } cases[] = {
        { "{" LLAMA ", \"sliding_window\": 8}", 64 }, /* no key of llama's */
        { "{\"model_type\": \"mistral\", " SMALL ", \"sliding_window\": 8}", 8 },
        { "{\"model_type\": \"mistral\", " SMALL ", \"sliding_window\": null}", 64 },
        { "{\"model_type\": \"mistral\", " SMALL "}", 64 }, /* 4096 by default */
        { "{\"model_type\": \"qwen2\", " SMALL ", \"sliding_window\": 8}", 64 }, /* switched off */
        { "{\"model_type\": \"qwen3\", " SMALL ", \"sliding_window\": 8, \"use_sliding_window\": true, "
          "\"max_window_layers\": 0}", 8 },
        { "{\"model_type\": \"qwen3\", " SMALL ", \"sliding_window\": 8, \"use_sliding_window\": true}", 64 },
        { "{\"model_type\": \"qwen2\", " SMALL ", \"sliding_window\": 8, \"use_sliding_window\": true, "
          "\"layer_types\": [\"sliding_attention\"]}", 8 },
        { "{\"model_type\": \"qwen2\", " SMALL ", \"sliding_window\": 8, \"use_sliding_window\": true, "
          "\"layer_types\": [\"full_attention\"]}", 64 },
        { "{\"model_type\": \"mistral\", " SMALL ", \"sliding_window\": 8, \"layer_types\": "
          "[\"full_attention\"]}", 64 },
        { "{\"model_type\": \"mistral\", " SMALL ", \"sliding_window\": 8, \"layer_types\": "
          "[\"sliding_attention\"]}", 8 },
        { "{" LLAMA ", \"layer_types\": [\"full_attention\"]}", 64 },
    };
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    empty_dir();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        write_text("c.json", cases[i].text);
        dsc_model *model = open_ok(in_dir("c.json"), NULL);
        assert_int_equal(model->seq_length, cases[i].usual);
        dsc_model_close(&model);
        options.seq_length = 64;
        model = open_ok(in_dir("c.json"), &options);
        assert_int_equal(model->seq_length, 64);
        dsc_model_close(&model);
    }
}

static void refuses_llama_configs(void **state)
{
    static const refused_config cases[] = {
        { "{" LLAMA ", \"head_dim\": 7}", DSC_ERR_UNSUPPORTED, "heads of 7 elements" },
        { "{" LLAMA ", \"head_dim\": 514}", DSC_ERR_INPUT, "\"head_dim\"" },
        { "{" LLAMA ", \"head_dim\": -6}", DSC_ERR_INPUT, "\"head_dim\"" },
        { "{" LLAMA ", \"hidden_act\": \"gelu\"}", DSC_ERR_UNSUPPORTED, "hidden_act \"gelu\" is not built" },
        { "{" LLAMA ", \"attention_bias\": 1}", DSC_ERR_INPUT, "\"attention_bias\"" },
        { "{" LLAMA ", \"rope_theta\": 0}", DSC_ERR_INPUT, "\"rope_theta\"" },
        { "{" LLAMA ", \"rope_scaling\": 3}", DSC_ERR_INPUT, "\"rope_scaling\" must be an object" },
        { "{" LLAMA ", \"rope_scaling\": {\"type\": \"su\"}}", DSC_ERR_UNSUPPORTED, "type \"su\"" },
        { "{" LLAMA ", \"rope_scaling\": {\"type\": \"longrope\"}}", DSC_ERR_INPUT, "need \"short_factor\"" },
        { "{" LLAMA ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1], "
          "\"long_factor\": [1, 1, 1]}}",
          DSC_ERR_INPUT, "\"short_factor\" must be a list of 3 numbers" },
        { "{" LLAMA ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1], "
          "\"long_factor\": [1, 0, 1]}}",
          DSC_ERR_INPUT, "\"long_factor\" must be numbers" },
        { "{" LLAMA ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 2}}}",
          DSC_ERR_UNSUPPORTED, "layers \"full_attention\"" },
        { "{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\"}}", DSC_ERR_INPUT, "need \"factor\"" },
        { "{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}", DSC_ERR_INPUT, "\"factor\"" },
        { "{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
          "\"high_freq_factor\": 4}}", DSC_ERR_INPUT, "must be above" },
        { "{" LLAMA ", \"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}}",
          DSC_ERR_UNSUPPORTED, "partial_rotary_factor" },
        { "{" LLAMA ", \"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"rope_type\": \"linear\", "
          "\"factor\": 2}}", DSC_ERR_UNSUPPORTED, "partial_rotary_factor" },
        { "{" LLAMA ", \"pad_token_id\": 11}", DSC_ERR_INPUT, "\"pad_token_id\"" },
        { "{" LLAMA ", \"pad_token_id\": -12}", DSC_ERR_INPUT, "\"pad_token_id\"" },
        { "{" LLAMA ", \"pad_token_id\": 1.5}", DSC_ERR_INPUT, "\"pad_token_id\"" },
        { "{\"model_type\": \"opt\", \"word_embed_proj_dim\": 512}", DSC_ERR_UNSUPPORTED, "word_embed_proj_dim" },
        { "{\"model_type\": \"opt\", \"enable_bias\": false}", DSC_ERR_UNSUPPORTED,
          "\"enable_bias\": false is not built" },
        { "{\"model_type\": \"opt\", \"num_attention_heads\": 7}", DSC_ERR_INPUT, "768 is not a multiple" },
        { "{\"model_type\": \"gpt_neox\", \"rotary_pct\": 0.01}", DSC_ERR_UNSUPPORTED,
          "\"rotary_pct\": rotary positions of 0" },
        { "{\"model_type\": \"gpt_neox\", \"hidden_act\": \"silu\"}", DSC_ERR_UNSUPPORTED, "hidden_act \"silu\"" },
        { "{\"model_type\": \"bert\", \"is_decoder\": true}", DSC_ERR_UNSUPPORTED,
          "\"is_decoder\": true is not built" },
        { "{\"model_type\": \"bert\", \"tie_word_embeddings\": false}", DSC_ERR_UNSUPPORTED, "not built for bert" },
        { "{\"model_type\": \"bert\", \"position_embedding_type\": \"relative_key\"}", DSC_ERR_UNSUPPORTED,
          "relative_key" },
        { "{" LLAMA ", \"quantization_config\": {}}", DSC_ERR_UNSUPPORTED, "quantized" },
        { "{\"model_type\": \"llama\", \"num_attention_heads\": 6, \"num_key_value_heads\": 4}", DSC_ERR_INPUT,
          "6 is not a multiple of \"num_key_value_heads\" 4" },
        { "{\"model_type\": \"llama\", \"num_attention_heads\": 7}", DSC_ERR_INPUT, "4096 is not a multiple" },
        { "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 1, \"use_sliding_window\": true, "
          "\"layer_types\": [\"linear_attention\"]}", DSC_ERR_UNSUPPORTED, "layer_types" },
        { "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}",
          DSC_ERR_INPUT, "\"layer_types\" must be a list of 2 kinds" },
        { "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
          DSC_ERR_INPUT, "\"use_sliding_window\" says that there is no window" },
        { "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 1, \"use_sliding_window\": true, "
          "\"sliding_window\": null, \"layer_types\": [\"sliding_attention\"]}", DSC_ERR_INPUT,
          "\"sliding_window\" says that there is no window" },
        { "{\"model_type\": \"mistral\", \"sliding_window\": 0}", DSC_ERR_INPUT, "\"sliding_window\"" },
        { "{\"model_type\": \"mistral\", " SMALL ", \"sliding_window\": null, \"layer_types\": "
          "[\"sliding_attention\"]}", DSC_ERR_INPUT, "\"sliding_window\" says that there is no window" },
        { "{\"model_type\": \"mistral\", " SMALL ", \"layer_types\": []}", DSC_ERR_INPUT,
          "\"layer_types\" must be a list of 1 kinds" },
        { "{" LLAMA ", \"layer_types\": [\"full_attention\", \"full_attention\"]}", DSC_ERR_INPUT,
          "\"layer_types\" must be a list of 1 kinds" },
        { "{" LLAMA ", \"layer_types\": [\"chunked_attention\"]}", DSC_ERR_UNSUPPORTED, "layer_types" },
        { "{" LLAMA ", \"sliding_window\": 8, \"layer_types\": [\"sliding_attention\"]}", DSC_ERR_INPUT,
          "\"model_type\" says that there is no window" },
        { "{\"model_type\": \"gpt2\", \"tie_word_embeddings\": null}", DSC_ERR_INPUT,
          "\"tie_word_embeddings\" must be" },
        { "{\"model_type\": \"bert\", \"position_embedding_type\": null}", DSC_ERR_INPUT,
          "\"position_embedding_type\" must be" },
    };
    expect_configs_refused(cases, DSC_COUNT(cases));
}

/* Null where transformers' classes take None; elsewhere they refuse it, and so does every reader here, by the key. */
static void knows_null(void **state)
{
#define ROPE(type) "\"rope_scaling\": {\"rope_type\": \"" type "\", "
    static const struct { const char *model, *taken[8], *refused[16]; } cases[] = {
        { "{" TINY ", ",
          { "n_inner", "is_encoder_decoder", "quantization_config" },
          { "layer_norm_epsilon", "initializer_range", "resid_pdrop", "scale_attn_weights", "reorder_and_upcast_attn",
            "tie_word_embeddings", "activation_function", "scale_attn_by_inverse_layer_idx" } },
        { "{" LLAMA ", ",
          { "head_dim", "rope_scaling", "rope_parameters", "pad_token_id", "layer_types" },
          { "rms_norm_eps", "initializer_range", "rope_theta", "attention_dropout", "attention_bias", "mlp_bias",
            "tie_word_embeddings", "hidden_act" } },
        { "{\"model_type\": \"mistral\", " SMALL ", ", { "head_dim", "sliding_window" }, { "rms_norm_eps" } },
        { "{\"model_type\": \"qwen2\", " SMALL ", ",
          { "sliding_window", "layer_types" },
          { "use_sliding_window", "max_window_layers" } },
        { "{\"model_type\": \"qwen3\", " SMALL ", ", { "sliding_window" }, { "head_dim", "attention_bias" } },
        { "{\"model_type\": \"gpt_neox\", ",
          { "rope_scaling" },
          { "vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size",
            "max_position_embeddings", "rotary_pct", "rotary_emb_base", "layer_norm_eps", "initializer_range",
            "use_parallel_residual", "attention_bias", "hidden_dropout" } },
        { "{\"model_type\": \"opt\", ",
          { "word_embed_proj_dim", "pad_token_id" },
          { "vocab_size", "ffn_dim", "init_std", "dropout", "layerdrop", "do_layer_norm_before",
            "_remove_final_layer_norm", "enable_bias" } },
        { "{\"model_type\": \"bert\", ",
          { "pad_token_id", "classifier_dropout" },
          { "type_vocab_size", "layer_norm_eps", "initializer_range", "hidden_dropout_prob", "is_decoder" } },
        { "{" LLAMA ", " ROPE("yarn") "\"factor\": 2, ",
          { "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim" },
          { "original_max_position_embeddings", "rope_theta", "truncate" } },
        { "{" LLAMA ", " ROPE("longrope") "\"short_factor\": [1, 1, 1], \"long_factor\": [1, 1, 1], ",
          { "attention_factor", "factor" },
          { "original_max_position_embeddings" } },
        { "{" LLAMA ", " ROPE("proportional"), { NULL }, { "factor", "partial_rotary_factor" } },
        { "{" LLAMA ", \"rope_parameters\": {\"factor\": 2, ", { NULL }, { "rope_type" } },
    };
    char text[512], what[64];
    empty_dir();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const char *const end = strstr(cases[i].model, "rope_") != NULL ? "}}" : "}";
        for (size_t k = 0; k < DSC_COUNT(cases[i].taken) && cases[i].taken[k] != NULL; k++) {
            snprintf(text, sizeof text, "%s\"%s\": null%s", cases[i].model, cases[i].taken[k], end);
            write_text("c.json", text);
            dsc_model *model = open_ok(in_dir("c.json"), NULL);
            dsc_model_close(&model);
        }
        for (size_t k = 0; k < DSC_COUNT(cases[i].refused) && cases[i].refused[k] != NULL; k++) {
            snprintf(text, sizeof text, "%s\"%s\": null%s", cases[i].model, cases[i].refused[k], end);
            snprintf(what, sizeof what, "\"%s\" must be", cases[i].refused[k]);
            write_text("c.json", text);
            expect_refusal(in_dir("c.json"), NULL, DSC_ERR_INPUT, what);
        }
    }
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

static float first_of(const dsc_model *model, int32_t module, int32_t param)
{
    dsc_error err = DSC_ERROR_INIT;
    bool found = false;
    float x = NAN;
    assert_int_equal(model->load_param(model, module, param, 0, 1, &x, &found, &err), DSC_OK);
    assert_true(found);
    return x;
}

static void loads_weights(void **state)
{
    tiny_folder();
    dsc_model *model = open_ok(dir, NULL);
    assert_null(model->warnings);
    float order = 1;
    for (int32_t m = 0; m < 3; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            assert_true(first_of(model, m, p) == (m == 2 && p == 2 ? 1 : order++)); /* the last one is wte */
    dsc_model_close(&model);
    /* Without the prefix, as the hub's gpt2 is; with the masks of older versions; lm_head beside a tied table. */
    dsc_safetensors_spec specs[TINY_COUNT + 2];
    tiny_specs(specs);
    for (int i = 0; i < TINY_COUNT; i++)
        specs[i].name += strlen("transformer.");
    specs[TINY_COUNT] = (dsc_safetensors_spec){ "h.0.attn.bias", { DSC_U8, 4, { 1, 1, 5, 5 } } };
    specs[TINY_COUNT + 1] = (dsc_safetensors_spec){ "lm_head.weight", { DSC_F32, 2, { 11, 6 } } };
    write_tensors("model.safetensors", specs, TINY_COUNT + 2);
    model = open_ok(dir, NULL);
    assert_true(first_of(model, 1, 11) == 14);
    dsc_model_close(&model);
    head_value = 2;
    write_tensors("model.safetensors", specs, TINY_COUNT + 2);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "\"lm_head.weight\" is not \"wte.weight\"");
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "\"tie_word_embeddings\", which is true");
    head_value = 1;
    /* Only the head's name of the tied pair. */
    tiny_specs(specs);
    specs[0].name = "lm_head.weight";
    write_tensors("model.safetensors", specs, TINY_COUNT);
    model = open_ok(dir, NULL);
    assert_true(first_of(model, 0, 0) == 1);
    assert_true(first_of(model, 2, 2) == 1);
    /* Padded: rows past the file's are zero. */
    dsc_model_close(&model);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.vocab_multiple = 8;
    model = open_ok(dir, &options);
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
    model = open_ok(dir, &options);
    assert_int_equal(model->load_param(model, 0, 0, 0, 1, x, &found, NULL), DSC_OK);
    assert_false(found);
    dsc_model_close(&model);
    /* A folder without weights says so. */
    unlink(in_dir("model.safetensors"));
    model = open_ok(dir, NULL);
    assert_non_null(strstr(model->warnings, "initialised afresh"));
    dsc_model_close(&model);
    /* One file with a name of its own. */
    tiny_specs(specs);
    write_tensors("mine.safetensors", specs, TINY_COUNT);
    model = open_ok(dir, NULL);
    assert_true(first_of(model, 0, 1) == 2);
    dsc_model_close(&model);
}

static void loads_the_golden_folder(void **state)
{
    dsc_model *model = open_ok("tests/golden/gpt2_folder", NULL);
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
    dsc_safetensors_spec specs[TINY_COUNT + 2];
    char index[4000] = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {";
    tiny_folder();
    unlink(in_dir("model.safetensors"));
    tiny_specs(specs);
    write_tensors("model-00001-of-00002.safetensors", specs, 5);
    write_tensors("model-00002-of-00002.safetensors", specs + 5, TINY_COUNT - 5);
    for (int i = 0; i < TINY_COUNT; i++)
        snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\": \"model-0000%d-of-00002.safetensors\"",
                 i == 0 ? "" : ", ", specs[i].name, i < 5 ? 1 : 2);
    snprintf(index + strlen(index), sizeof index - strlen(index), "}}");
    write_text("model.safetensors.index.json", index);
    dsc_model *model = open_ok(dir, NULL);
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
        write_text("model.safetensors.index.json", cases[i].text);
        expect_refusal(dir, NULL, DSC_ERR_INPUT, cases[i].what);
    }
    unlink(in_dir("model.safetensors.index.json"));
    write_tensors("model-00003.safetensors", specs, 1);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "also in another file");
}

static void refuses_weights(void **state)
{
    dsc_safetensors_spec specs[TINY_COUNT + 2];
    tiny_folder();
    tiny_specs(specs);
    write_tensors("model.safetensors", specs, TINY_COUNT - 1);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "\"transformer.ln_f.bias\" is missing");
    specs[4].desc.dim[1] = 12;
    write_tensors("model.safetensors", specs, TINY_COUNT);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "is [6,12], config.json needs [6,18]");
    tiny_specs(specs);
    specs[3].desc = (dsc_tensor_desc){ DSC_F32, 2, { 6, 1 } };
    write_tensors("model.safetensors", specs, TINY_COUNT);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "is [6,1], config.json needs [6]");
    tiny_specs(specs);
    specs[3].desc.dtype = DSC_I64;
    write_tensors("model.safetensors", specs, TINY_COUNT);
    expect_refusal(dir, NULL, DSC_ERR_UNSUPPORTED, "is in I64");
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
        tiny_specs(specs);
        specs[TINY_COUNT] = (dsc_safetensors_spec){ strangers[i], { DSC_F32, 1, { 6 } } };
        write_tensors("model.safetensors", specs, TINY_COUNT + 1);
        expect_refusal(dir, NULL, DSC_ERR_INPUT, "is not one of a gpt2 with n_layer 1");
    }
    specs[TINY_COUNT].name = "ln_f.bias";
    write_tensors("model.safetensors", specs, TINY_COUNT + 1);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "both");
    specs[TINY_COUNT] = (dsc_safetensors_spec){ "lm_head.weight", { DSC_F32, 2, { 11, 7 } } };
    write_tensors("model.safetensors", specs, TINY_COUNT + 1);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "lm_head.weight");
    write_text("model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "safetensors");
    unlink(in_dir("model.safetensors"));
    assert_int_equal(symlink("/nowhere/blob", in_dir("model.safetensors")), 0);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "model.safetensors");
    unlink(in_dir("model.safetensors"));
    write_text("pytorch_model.bin", "PK");
    expect_refusal(dir, NULL, DSC_ERR_UNSUPPORTED, "python3 -c");
    expect_refusal(dir, NULL, DSC_ERR_UNSUPPORTED, "safe_serialization=True");
    write_text("config.json", "{" TINY ", \"tie_word_embeddings\": false}");
    tiny_specs(specs);
    write_tensors("model.safetensors", specs, TINY_COUNT);
    expect_refusal(dir, NULL, DSC_ERR_INPUT, "\"lm_head.weight\" is missing");
}

/* Each allocation fails once; the model's own allocator asserts that nothing of it is left. */
static void survives_failing_allocations(void **state)
{
    const dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    char config_path[128];
    dsc_error err = DSC_ERROR_INIT;
    tiny_folder();
    snprintf(config_path, sizeof config_path, "%s", in_dir("config.json"));
    int64_t n = 1;
    for (;; n++) {
        dsc_alloc *own = NULL;
        dsc_model *model = NULL;
        assert_int_equal(dsc_alloc_open(&own, &err), DSC_OK);
        dsc_alloc_fail_at(own, n, false);
        const dsc_status status = dsc_hf_open(&model, own, config_path, dir, &options, NULL, &err);
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

/* What a block of "gpt2-small-384" with a batch of 4 and 256 tokens launches. */
static dsc_status check_attention(void *user, const dsc_attention_fwd_args *shape, dsc_error *err)
{
    assert_int_equal(shape->batch * shape->tokens, 1024);
    assert_int_equal(shape->heads * shape->head_size, 384);
    assert_int_equal(shape->kv_heads, shape->heads);
    assert_int_equal(shape->q_stride, 3 * 384);
    assert_int_equal(shape->kv_stride, 3 * 384);
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

static void plans(void **state)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.vocab_multiple = 64;
    dsc_model *model = open_ok("gpt2-small-384", &options);
    dsc_module_plan plan;
    dsc_error err = DSC_ERROR_INIT;
    int count = 0;
    const dsc_plan_sink sink = { count_gemm, &count, check_attention };
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
        cmocka_unit_test(opens_built_in_models),   cmocka_unit_test(applies_options), cmocka_unit_test(reads_configs),
        cmocka_unit_test(opens_llamas),
        cmocka_unit_test(keeps_a_files_keys),
        cmocka_unit_test(refuses_longrope_over_its_border),
        cmocka_unit_test(knows_windows),
        cmocka_unit_test(refuses_llama_configs),
        cmocka_unit_test(knows_null),
        cmocka_unit_test(refuses_configs),         cmocka_unit_test(loads_weights),   cmocka_unit_test(loads_shards),
        cmocka_unit_test(loads_the_golden_folder), cmocka_unit_test(refuses_weights),
        cmocka_unit_test(survives_failing_allocations), cmocka_unit_test(plans),
    };
    return cmocka_run_group_tests_name("model", tests, setup, teardown);
}
