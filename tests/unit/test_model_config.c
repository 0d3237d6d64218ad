/* test_model_config.c - the model that a config.json describes, and all that is refused in one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/base.h"
#include "tests/support/model_folder.h"

/* The text of a config.json, and what its refusal says. */
typedef struct refused_config {
    const char *text;
    dsc_status status;
    const char *what;
} refused_config;

static void expect_configs_refused(const refused_config *cases, size_t count)
{
    mf_empty();
    for (size_t i = 0; i < count; i++) {
        mf_write("c.json", cases[i].text);
        mf_expect_refusal(mf_path("c.json"), NULL, cases[i].status, cases[i].what);
    }
}

static void reads_configs(void **state)
{
    mf_empty();
    mf_write("c.json", "{\"model_type\": \"gpt2\"}"); /* every key has Hugging Face's default */
    dsc_model *model = mf_open(mf_path("c.json"), NULL);
    assert_int_equal(mf_elements(model), 124439808);
    assert_non_null(strstr(model->warnings, "dropout is off"));
    dsc_model_close(&model);
    mf_write("c.json",
               "{" MF_TINY ", \"n_inner\": 10, \"tie_word_embeddings\": false, \"attn_pdrop\": 0, "
               "\"resid_pdrop\": 0.0, \"embd_pdrop\": 0, \"activation_function\": \"gelu_pytorch_tanh\", \"n_ctx\": 4, "
               "\"reorder_and_upcast_attn\": true, \"initializer_range\": 0.5, \"summary_type\": \"cls_index\"}");
    model = mf_open(mf_path("c.json"), NULL);
    assert_null(model->warnings);
    assert_int_equal(model->seq_length, 5);
    assert_int_equal(model->modules[1].params[8].dim[1], 10);
    assert_string_equal(model->modules[2].params[2].name, "lm_head.weight");
    assert_int_equal(model->modules[2].params[2].shared_module, -1);
    assert_true(model->modules[2].params[2].init_std == 0.5f);
    assert_non_null(strstr(model->config_json, "summary_type")); /* the file's own text */
    dsc_model_close(&model);
    mf_write("c.json", "{\"model_type\": \"gpt2\", \"n_ctx\": 7, \"vocab_size\": 3, \"n_embd\": 4, \"n_head\": 1, "
                         "\"n_layer\": 1, \"n_inner\": null}");
    model = mf_open(mf_path("c.json"), NULL);
    assert_int_equal(model->seq_length, 7); /* the older name of n_positions */
    assert_int_equal(model->modules[1].params[8].dim[1], 16);
    dsc_model_close(&model);
    /* Other models' names of sizes, which transformers takes too, and before GPT-2's own. */
    mf_write("c.json", "{\"model_type\": \"gpt2\", \"vocab_size\": 3, \"hidden_size\": 8, \"n_embd\": 4, "
                         "\"num_attention_heads\": 2, \"num_hidden_layers\": 2, \"max_position_embeddings\": 9}");
    model = mf_open(mf_path("c.json"), NULL);
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
        { "{\"model_type\": \"mamba\"}", DSC_ERR_UNSUPPORTED,
          "model_type \"mamba\" is not built; what exists: gpt2, llama, mistral, qwen2, qwen3, gpt_neox, opt" },
        { "{" MF_TINY ", \"n_embd\": 6}", DSC_ERR_INPUT, "n_embd" }, /* twice */
        { "{" MF_TINY ", }", DSC_ERR_INPUT, "c.json:1" },
        { "{" MF_TINY ", \"n_inner\": 0}", DSC_ERR_INPUT, "\"n_inner\" must be a whole number from 1" },
        { "{" MF_TINY ", \"n_inner\": -4}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{" MF_TINY ", \"n_inner\": 2.5}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{" MF_TINY ", \"n_inner\": 24.0}", DSC_ERR_INPUT, "\"n_inner\" must be a whole number" },
        { "{" MF_TINY ", \"n_inner\": 24e0}", DSC_ERR_INPUT, "\"n_inner\" must be a whole number" },
        { "{" MF_TINY ", \"n_inner\": 1e30}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{" MF_TINY ", \"n_inner\": \"24\"}", DSC_ERR_INPUT, "\"n_inner\"" },
        { "{\"model_type\": \"gpt2\", \"n_layer\": 1000000}", DSC_ERR_INPUT, "\"n_layer\"" },
        { "{\"model_type\": \"gpt2\", \"n_layer\": true}", DSC_ERR_INPUT, "\"n_layer\"" },
        { "{\"model_type\": \"gpt2\", \"vocab_size\": 9007199254740992}", DSC_ERR_INPUT, "\"vocab_size\"" },
        { "{\"model_type\": \"gpt2\", \"vocab_size\": 0}", DSC_ERR_INPUT, "\"vocab_size\"" },
        { "{\"model_type\": \"gpt2\", \"n_positions\": 0}", DSC_ERR_INPUT, "\"n_positions\"" },
        { "{\"model_type\": \"gpt2\", \"n_embd\": 60, \"n_head\": 7}", DSC_ERR_INPUT,
          "60 is not a multiple of \"n_head\" 7" },
        { "{\"model_type\": \"gpt2\", \"n_embd\": 60, \"n_head\": 6, \"num_attention_heads\": 7}", DSC_ERR_INPUT,
          "60 is not a multiple of \"n_head\" 7" },
        { "{" MF_TINY ", \"layer_norm_epsilon\": 0}", DSC_ERR_INPUT, "\"layer_norm_epsilon\"" },
        { "{" MF_TINY ", \"layer_norm_epsilon\": -1e-5}", DSC_ERR_INPUT, "\"layer_norm_epsilon\"" },
        { "{" MF_TINY ", \"initializer_range\": -1}", DSC_ERR_INPUT, "\"initializer_range\"" },
        { "{" MF_TINY ", \"attn_pdrop\": 2}", DSC_ERR_INPUT, "\"attn_pdrop\"" },
        { "{" MF_TINY ", \"tie_word_embeddings\": 1}", DSC_ERR_INPUT, "\"tie_word_embeddings\"" },
        { "{" MF_TINY ", \"activation_function\": \"silu\"}", DSC_ERR_UNSUPPORTED,
          "activation_function \"silu\" is not built" },
        { "{" MF_TINY ", \"activation_function\": \"tanh\"}", DSC_ERR_UNSUPPORTED, "gelu_new" },
        { "{" MF_TINY ", \"activation_function\": 4}", DSC_ERR_INPUT, "activation_function" },
        { "{" MF_TINY ", \"add_cross_attention\": true}", DSC_ERR_UNSUPPORTED, "add_cross_attention" },
        { "{" MF_TINY ", \"quantization_config\": {}}", DSC_ERR_UNSUPPORTED, "quantized" },
        { "// no comments here\n{" MF_TINY "}", DSC_ERR_INPUT, "c.json:1:1" },
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
        dsc_model *model = mf_open(known[i].name, NULL);
        assert_int_equal(mf_elements(model), known[i].elements);
        /* A saved config is read as an equal model. */
        mf_write("config.json", model->config_json);
        options.seq_length = model->seq_length;
        dsc_model *again = mf_open(mf_path("config.json"), &options);
        assert_int_equal(mf_elements(again), known[i].elements);
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
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        mf_write("c.json", cases[i]);
        dsc_model *model = mf_open(mf_path("c.json"), &padded);
        cJSON *given = cJSON_Parse(cases[i]), *kept = cJSON_Parse(model->config_json);
        assert_true(cJSON_ReplaceItemInObject(given, "vocab_size", cJSON_CreateNumber(16)));
        if (!cJSON_Compare(given, kept, true))
            fail_msg("case %zu: %s", i, model->config_json);
        mf_write("again.json", model->config_json);
        dsc_model *again = mf_open(mf_path("again.json"), &padded);
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
    mf_empty();
    mf_write("c.json", "{" LLAMA ", " LONGROPE "}");
    for (int32_t tokens = 16; tokens <= 17; tokens++) {
        for (int documents = 0; documents < 2; documents++) {
            options.seq_length = tokens;
            options.documents = documents == 1;
            options.cache_tokens = documents == 1 ? 0 : tokens;
            if (tokens == 17) {
                mf_expect_refusal(mf_path("c.json"), &options, DSC_ERR_UNSUPPORTED, "longrope");
                continue;
            }
            dsc_model *model = mf_open(mf_path("c.json"), &options);
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
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        mf_write("c.json", cases[i].text);
        dsc_model *model = mf_open(mf_path("c.json"), NULL);
        assert_int_equal(model->seq_length, cases[i].usual);
        dsc_model_close(&model);
        options.seq_length = 64;
        model = mf_open(mf_path("c.json"), &options);
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
        { "{" LLAMA ", \"hidden_act\": \"tanh\"}", DSC_ERR_UNSUPPORTED, "hidden_act \"tanh\" is not built" },
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
        { "{" LLAMA ", \"pad_token_id\": 1.0}", DSC_ERR_INPUT, "\"pad_token_id\" must be a token" },
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
        { "{\"model_type\": \"roberta\", \"pad_token_id\": null}", DSC_ERR_INPUT, "\"pad_token_id\" must be a token" },
        { "{\"model_type\": \"camembert\", \"pad_token_id\": -1}", DSC_ERR_INPUT, "\"pad_token_id\" must be a token" },
        { "{\"model_type\": \"xlm-roberta\", \"max_position_embeddings\": 2}", DSC_ERR_INPUT, "at least 3" },
        { "{\"model_type\": \"modernbert\", \"decoder_bias\": false}", DSC_ERR_UNSUPPORTED, "decoder_bias" },
        { "{\"model_type\": \"modernbert\", \"head_dim\": 32}", DSC_ERR_UNSUPPORTED, "\"head_dim\" 32" },
        { "{\"model_type\": \"modernbert\", \"num_attention_heads\": 7}", DSC_ERR_INPUT, "768 is not a multiple" },
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

/* Layers of linear attention, their heads and their convolution. */
static void refuses_linear_attention_configs(void **state)
{
#define NEXT "\"model_type\": \"qwen3_next\", " SMALL
    static const refused_config cases[] = {
        { "{" NEXT ", \"layer_types\": [\"sliding_attention\"]}", DSC_ERR_UNSUPPORTED,
          "full_attention, linear_attention" },
        { "{" NEXT ", \"layer_types\": [\"linear_attention\", \"full_attention\"]}", DSC_ERR_INPUT,
          "\"layer_types\" must be a list of 1 kinds" },
        { "{" NEXT ", \"linear_num_key_heads\": 3, \"linear_num_value_heads\": 4}", DSC_ERR_INPUT,
          "\"linear_num_value_heads\" 4 is not a multiple of \"linear_num_key_heads\" 3" },
        { "{" NEXT ", \"linear_conv_kernel_dim\": 9}", DSC_ERR_INPUT, "\"linear_conv_kernel_dim\"" },
        { "{" NEXT ", \"linear_key_head_dim\": 1024}", DSC_ERR_INPUT, "\"linear_key_head_dim\"" },
        { "{\"model_type\": \"qwen3_5_text\", " SMALL ", \"attn_output_gate\": false}", DSC_ERR_UNSUPPORTED,
          "\"attn_output_gate\": false is not built" },
    };
#undef NEXT
    (void)state;
    expect_configs_refused(cases, DSC_COUNT(cases));
}

/* Factors, caps, windows and positions by layers of newer decoders. */
static void refuses_decoder_configs(void **state)
{
#define LONG_OF(original)                                                                                              \
    "{\"rope_type\": \"longrope\", \"short_factor\": [1, 1], \"long_factor\": [2, 2], "                                \
    "\"original_max_position_embeddings\": " original "}"
    static const refused_config cases[] = {
        { "{\"model_type\": \"gemma\", \"use_bidirectional_attention\": true}", DSC_ERR_UNSUPPORTED,
          "\"use_bidirectional_attention\": true is not built for gemma" },
        { "{\"model_type\": \"gemma3_text\", \"use_bidirectional_attention\": true}", DSC_ERR_UNSUPPORTED,
          "\"use_bidirectional_attention\": true is not built for gemma3_text" },
        { "{\"model_type\": \"gemma3_text\", \"attn_logit_softcapping\": 50.0}", DSC_ERR_UNSUPPORTED,
          "\"attn_logit_softcapping\" of this value is not built for gemma3_text" },
        { "{\"model_type\": \"gemma3_text\", \"sliding_window_pattern\": 0}", DSC_ERR_INPUT,
          "\"sliding_window_pattern\" must be a whole number from 1" },
        { "{\"model_type\": \"gemma3_text\", \"query_pre_attn_scalar\": 0}", DSC_ERR_INPUT,
          "\"query_pre_attn_scalar\" must be a whole number from 1" },
        { "{\"model_type\": \"gemma2\", \"sliding_window\": null}", DSC_ERR_INPUT,
          "\"sliding_window\" must be a whole number: without \"layer_types\" most layers have a window" },
        { "{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": 0}", DSC_ERR_INPUT,
          "\"attn_logit_softcapping\" must be a number from 0.001" },
        { "{\"model_type\": \"granite\", \"residual_multiplier\": 0}", DSC_ERR_INPUT,
          "\"residual_multiplier\" must be a number from 1e-06" },
        { "{\"model_type\": \"cohere\", \"use_qk_norm\": true}", DSC_ERR_UNSUPPORTED,
          "\"use_qk_norm\": true is not built for cohere" },
        { "{\"model_type\": \"cohere2\", \"logit_scale\": null}", DSC_ERR_INPUT, "\"logit_scale\" must be a number" },
        { "{\"model_type\": \"olmo3\", \"head_dim\": 4, \"rope_parameters\": {\"full_attention\": " LONG_OF(
              "16") ", \"sliding_attention\": " LONG_OF("8") "}}",
          DSC_ERR_UNSUPPORTED,
          "\"original_max_position_embeddings\" 16 and 8 of two kinds of layers are not built; what exists: the same" },
    };
    expect_configs_refused(cases, DSC_COUNT(cases));
}

/* Null where transformers' classes take None; elsewhere they refuse it, and so does every reader here, by the key. */
static void knows_null(void **state)
{
#define ROPE(type) "\"rope_scaling\": {\"rope_type\": \"" type "\", "
    static const struct { const char *model, *taken[8], *refused[16]; } cases[] = {
        { "{" MF_TINY ", ",
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
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const char *const end = strstr(cases[i].model, "rope_") != NULL ? "}}" : "}";
        for (size_t k = 0; k < DSC_COUNT(cases[i].taken) && cases[i].taken[k] != NULL; k++) {
            snprintf(text, sizeof text, "%s\"%s\": null%s", cases[i].model, cases[i].taken[k], end);
            mf_write("c.json", text);
            dsc_model *model = mf_open(mf_path("c.json"), NULL);
            dsc_model_close(&model);
        }
        for (size_t k = 0; k < DSC_COUNT(cases[i].refused) && cases[i].refused[k] != NULL; k++) {
            snprintf(text, sizeof text, "%s\"%s\": null%s", cases[i].model, cases[i].refused[k], end);
            snprintf(what, sizeof what, "\"%s\" must be", cases[i].refused[k]);
            mf_write("c.json", text);
            mf_expect_refusal(mf_path("c.json"), NULL, DSC_ERR_INPUT, what);
        }
    }
}

/* A key that changes the mathematics is read or refused by name, in every family. */
static void refuses_other_mathematics(void **state)
{
    static const char *const families[] = {
        "{" MF_TINY ", ", "{" LLAMA ", ", "{\"model_type\": \"mistral\", " SMALL ", ",
        "{\"model_type\": \"qwen2\", " SMALL ", ", "{\"model_type\": \"qwen3\", " SMALL ", ",
        "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 1, ",
        "{\"model_type\": \"opt\", \"num_hidden_layers\": 1, ",
        "{\"model_type\": \"bert\", \"num_hidden_layers\": 1, ", /* the last: in both directions */
    };
    static const struct { const char *key, *neutral, *other; } keys[] = {
        { "attention_multiplier", "1.0", "0.5" }, { "embedding_multiplier", "1", "12" },
        { "residual_multiplier", "1.0", "0.22" }, { "logits_scaling", "1", "8.0" }, { "logit_scale", "null", "0.0625" },
        { "final_logit_softcapping", "null", "30.0" }, { "attn_logit_softcapping", "null", "50" },
        { "query_pre_attn_scalar", "null", "256" }, { "clip_qkv", "null", "8" }, { "use_mrope", "false", "true" },
        { "alibi", "false", "true" }, { "no_rope_layers", "[]", "[1]" }, { "use_qk_norm", "false", "true" },
        { "use_bidirectional_attention", "false", "true" }, { "num_experts", "0", "8" },
        { "num_local_experts", "null", "8" }, { "pruned_heads", "{}", "{\"0\": [1]}" },
        { "add_cross_attention", "false", "true" }, { "is_encoder_decoder", "false", "true" },
        { "compression_config", "null", "{}" }, { "quantization_config", "null", "{\"bits\": 4}" },
    };
    char text[640], what[64];
    mf_empty();
    for (size_t f = 0; f < DSC_COUNT(families); f++) {
        const bool both = f == DSC_COUNT(families) - 1;
        snprintf(text, sizeof text, "%s\"is_causal\": %s}", families[f], both ? "false" : "true");
        mf_write("c.json", text);
        dsc_model *model = mf_open(mf_path("c.json"), NULL);
        dsc_model_close(&model);
        snprintf(text, sizeof text, "%s\"is_causal\": %s}", families[f], both ? "true" : "false");
        mf_write("c.json", text);
        mf_expect_refusal(mf_path("c.json"), NULL, DSC_ERR_UNSUPPORTED, "\"is_causal\" must be");
        for (size_t k = 0; k < DSC_COUNT(keys); k++) {
            snprintf(text, sizeof text, "%s\"%s\": %s}", families[f], keys[k].key, keys[k].neutral);
            mf_write("c.json", text);
            model = mf_open(mf_path("c.json"), NULL);
            dsc_model_close(&model);
            snprintf(text, sizeof text, "%s\"%s\": %s}", families[f], keys[k].key, keys[k].other);
            snprintf(what, sizeof what, "\"%s\"", keys[k].key);
            mf_write("c.json", text);
            mf_expect_refusal(mf_path("c.json"), NULL, DSC_ERR_UNSUPPORTED, what);
        }
    }
    mf_write("c.json", "{" LLAMA ", \"is_causal\": null}"); /* transformers takes it for false */
    mf_expect_refusal(mf_path("c.json"), NULL, DSC_ERR_UNSUPPORTED, "\"is_causal\" must be true");
}

static void names_keys_that_are_not_read(void **state)
{
    (void)state;
    static const char usual[] = "\"architectures\": [\"LlamaForCausalLM\"], \"torch_dtype\": \"bfloat16\", "
                                "\"transformers_version\": \"4.40.0\", \"use_cache\": true, \"pretraining_tp\": 1, "
                                "\"_name_or_path\": \"x\", \"bos_token_id\": 1, \"eos_token_id\": [2, 3]";
    char text[900];
    mf_empty();
    snprintf(text, sizeof text, "{" LLAMA ", %s}", usual);
    mf_write("c.json", text);
    dsc_model *model = mf_open(mf_path("c.json"), NULL);
    assert_null(model->warnings);
    dsc_model_close(&model);
    snprintf(text, sizeof text,
             "{" LLAMA ", %s, \"head_gate\": true, \"unused\": null, \"k1\": 1, \"k2\": 1, \"k3\": 1, \"k4\": {}, "
             "\"k5\": \"\", \"k6\": 0}",
             usual);
    mf_write("c.json", text);
    model = mf_open(mf_path("c.json"), NULL);
    assert_non_null(model->warnings);
    assert_non_null(strstr(model->warnings, "llama does not read, which have no effect: \"head_gate\", \"k1\", \"k2\", "
                                            "\"k3\", \"k4\", \"k5\" and 1 more"));
    assert_null(strstr(model->warnings, "unused"));
    dsc_model_close(&model);
}

/* Parts of families that some of their files have and that are not built. */
static void refuses_parts_of_families(void **state)
{
#define BLOOM "{\"model_type\": \"bloom\""
#define GPTJ "{\"model_type\": \"gptj\""
#define FALCON "{\"model_type\": \"falcon\""
#define MPT "{\"model_type\": \"mpt\", \"attn_config\": "
#define HUNYUAN "{\"model_type\": \"hunyuan_v1_dense\", " SMALL
    static const refused_config cases[] = {
        { BLOOM ", \"apply_residual_connection_post_layernorm\": true}", DSC_ERR_UNSUPPORTED,
          "\"apply_residual_connection_post_layernorm\": true is not built" },
        { BLOOM ", \"n_inner\": 100}", DSC_ERR_UNSUPPORTED, "\"n_inner\" 100 is not built; what exists: four times" },
        { BLOOM ", \"hidden_size\": 8, \"n_embed\": 6, \"n_head\": 4}", DSC_ERR_INPUT, "6 is not a multiple" },
        { GPTJ ", \"rotary_dim\": 258}", DSC_ERR_UNSUPPORTED, "\"rotary_dim\" 258 of a head's 256 elements" },
        { GPTJ ", \"rotary_dim\": 7}", DSC_ERR_UNSUPPORTED, "\"rotary_dim\" 7 of a head's 256 elements" },
        { GPTJ ", \"rotary_dim\": null}", DSC_ERR_INPUT, "\"rotary_dim\" must be a whole number" },
        { GPTJ ", \"scale_attn_weights\": false}", DSC_ERR_UNSUPPORTED, "\"scale_attn_weights\": false is not built" },
        { "{\"model_type\": \"phi\", \"qk_layernorm\": true}", DSC_ERR_UNSUPPORTED, "\"qk_layernorm\": true" },
        { FALCON ", \"new_decoder_architecture\": true, \"num_kv_heads\": 8}", DSC_ERR_INPUT,
          "\"num_attention_heads\" 71 is not a multiple of \"num_kv_heads\" 8" },
        { FALCON ", \"new_decoder_architecture\": true, \"parallel_attn\": false}", DSC_ERR_INPUT,
          "\"new_decoder_architecture\" needs \"parallel_attn\": true" },
        { FALCON ", \"multi_query\": false, \"num_kv_heads\": 8}", DSC_ERR_UNSUPPORTED, "\"num_kv_heads\" 8 of 71" },
        { HUNYUAN ", \"use_qk_norm\": false}", DSC_ERR_UNSUPPORTED, "\"use_qk_norm\": false is not built" },
        { HUNYUAN ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 1, \"alpha\": -1}}", DSC_ERR_INPUT,
          "\"alpha\" must be a number" },
        { "{\"model_type\": \"helium\", " SMALL "}", DSC_ERR_INPUT, "\"hidden_size\" 12 must be" },
        { "{\"model_type\": \"exaone4\", " SMALL ", \"sliding_window_pattern\": \"LLLG\"}", DSC_ERR_INPUT,
          "\"sliding_window_pattern\" must be a whole number" },
        { "{\"model_type\": \"exaone4\", " SMALL ", \"sliding_window_pattern\": null}", DSC_ERR_INPUT,
          "\"sliding_window_pattern\" null needs \"layer_types\"" },
        { MPT "{\"clip_qkv\": 8}}", DSC_ERR_UNSUPPORTED, "\"clip_qkv\" 8 is not built; what exists: null" },
        { MPT "{\"alibi\": false}}", DSC_ERR_UNSUPPORTED, "\"alibi\": false is not built; what exists: true" },
        { MPT "{\"alibi_bias_max\": 16}}", DSC_ERR_UNSUPPORTED, "\"alibi_bias_max\" 16 is not built; what exists: 8" },
        { MPT "{\"attn_type\": \"multiquery_attention\"}}", DSC_ERR_UNSUPPORTED, "multihead_attention" },
        { MPT "3}", DSC_ERR_INPUT, "\"attn_config\" must be an object" },
        { MPT "{}, \"no_bias\": false}", DSC_ERR_UNSUPPORTED, "\"no_bias\": false is not built" },
        { MPT "{}, \"expansion_ratio\": 3}", DSC_ERR_UNSUPPORTED, "\"expansion_ratio\" 3 is not built" },
        { "{\"model_type\": \"glm\", " SMALL "}", DSC_ERR_INPUT, "\"pad_token_id\"" }, /* the default is 151329 */
    };
    expect_configs_refused(cases, DSC_COUNT(cases));
}

/* Routers and latent attention. */
static void refuses_deepseek_configs(void **state)
{
#define V2 "{\"model_type\": \"deepseek_v2\", \"num_experts_per_tok\": 6, "
#define V3 "{\"model_type\": \"deepseek_v3\", "
    static const refused_config cases[] = {
        { "{\"model_type\": \"deepseek_v2\"}", DSC_ERR_INPUT, "\"num_experts_per_tok\" is missing" },
        { V2 "\"norm_topk_prob\": true}", DSC_ERR_UNSUPPORTED, "\"norm_topk_prob\": true is not built" },
        { V2 "\"scoring_func\": \"sigmoid\"}", DSC_ERR_UNSUPPORTED, "\"sigmoid\" is not built; what exists: softmax" },
        { V2 "\"topk_method\": \"group_limited_greedy\", \"n_group\": 5, \"topk_group\": 2}", DSC_ERR_INPUT,
          "\"num_experts_per_tok\" 6 of \"n_routed_experts\" 64 with \"topk_group\" 2 of \"n_group\" 5 is not "
          "possible" },
        { V3 "\"topk_group\": 1, \"n_group\": 64}", DSC_ERR_INPUT,
          "\"topk_group\" 1 of \"n_group\" 64 is not possible" },
        { V3 "\"topk_method\": \"greedy\"}", DSC_ERR_UNSUPPORTED, "\"greedy\" is not built; what exists: noaux_tc" },
        { V3 "\"num_key_value_heads\": 8}", DSC_ERR_UNSUPPORTED, "\"num_key_value_heads\" 8 beside" },
        { V3 "\"qk_nope_head_dim\": 500}", DSC_ERR_UNSUPPORTED, "make heads of 564 elements" },
        { V3 "\"first_k_dense_replace\": -1}", DSC_ERR_INPUT,
          "\"first_k_dense_replace\" must be a whole number from 0" },
        { V3 "\"moe_intermediate_size\": 1048576, \"n_shared_experts\": 2}", DSC_ERR_INPUT,
          "2 shared experts of 1048576" },
        { "{\"model_type\": \"ernie4_5_moe\", \"use_bias\": true}", DSC_ERR_UNSUPPORTED,
          "\"use_bias\": true is not built" },
        { "{\"model_type\": \"ernie4_5_moe\", \"moe_k\": 9, \"moe_num_experts\": 8}", DSC_ERR_INPUT,
          "\"moe_k\" 9 is more" },
        { "{\"model_type\": \"ernie4_5_moe\", \"moe_norm_min\": 0.5}", DSC_ERR_UNSUPPORTED,
          "\"moe_norm_min\" 0.5 is not" },
        { "{\"model_type\": \"hunyuan_v1_moe\", \"num_experts\": 8, \"moe_topk\": [2, 3]}", DSC_ERR_UNSUPPORTED,
          "\"moe_topk\" with 2 and 3 is not built; what exists: the same for all layers" },
        { "{\"model_type\": \"hunyuan_v1_moe\", \"moe_intermediate_size\": 7}", DSC_ERR_UNSUPPORTED,
          "\"moe_intermediate_size\" 7 beside \"intermediate_size\" 11008 is not built" },
        { V3 "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}}", DSC_ERR_UNSUPPORTED,
          "\"fmt\": \"e5m2\" are not read; expected \"e4m3\"" },
        { V3 "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}}", DSC_ERR_UNSUPPORTED,
          "\"weight_block_size\" must be two numbers from 1" },
    };
    expect_configs_refused(cases, DSC_COUNT(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_configs),
        cmocka_unit_test(refuses_configs),
        cmocka_unit_test(refuses_other_mathematics),
        cmocka_unit_test(names_keys_that_are_not_read),
        cmocka_unit_test(opens_llamas),
        cmocka_unit_test(keeps_a_files_keys),
        cmocka_unit_test(refuses_longrope_over_its_border),
        cmocka_unit_test(knows_windows),
        cmocka_unit_test(refuses_llama_configs),
        cmocka_unit_test(refuses_decoder_configs),
        cmocka_unit_test(refuses_linear_attention_configs),
        cmocka_unit_test(knows_null),
        cmocka_unit_test(refuses_parts_of_families),
        cmocka_unit_test(refuses_deepseek_configs),
    };
    return cmocka_run_group_tests_name("model_config", tests, mf_setup, mf_teardown);
}
