/* test_infer.c - texts in parts, with a key and value cache, against the engine's whole forward pass. Greedy tokens are
 * equal, logits do not depend on the cut of a text, and the choice of a token from logits is checked.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dsc/dsc.h>

#include "base/io.h"
#include "engine/generate/infer.h"
#include "engine/generate/sample.h"
#include "engine/generate/settings.h"

#define VOCAB 61
#define PROMPT 75 /* a long part of 64 and another, some of whose tokens come again */
#define NEW 25    /* PROMPT + NEW is all positions */
#define TOKENS (PROMPT + NEW)

static char root[] = "/tmp/dsc-infer-XXXXXX", folder[128];
static dsc_error err;

static void must(dsc_status status)
{
    if (status != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static void put_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    must(dsc_io_write_all_atomic(NULL, path, text, (int64_t)strlen(text), &err));
}

/* A model of fresh weights, saved as a folder, and what the engine continues a prompt with. */
static void engine_continues(const char *config_json, const int32_t *prompt, int32_t *out)
{
    static const char config[] = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"}}";
    char model[160];
    put_file("model.json", config_json);
    snprintf(model, sizeof model, "\"%s/model.json\"", root);
    const dsc_override overrides[] = { { "dsc.model", model, "test" }, { "dsc.seq_length", "100", "test" } };
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.config_text = config;
    options.overrides = overrides;
    options.override_count = 2;
    dsc_engine *engine = NULL;
    must(dsc_engine_open(&engine, &options, &err));
    must(dsc_engine_save(engine, root, &err));
    must(dsc_engine_generate(engine, prompt, PROMPT, NEW, 0, 0, out, &err));
    dsc_engine_close(&engine);
    snprintf(folder, sizeof folder, "%s/step-0", root);
}

static int32_t best_of(const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < VOCAB; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static dsc_infer *start(dsc_alloc *alloc)
{
    dsc_infer *infer = NULL;
    dsc_infer_plan plan;
    const dsc_infer_options options = { .alloc = alloc, .model = folder, .device = "cpu", .dtype = DSC_F32,
                                        .threads = 2 };
    must(dsc_infer_open(&options, &infer, &err));
    assert_int_equal(dsc_infer_vocab(infer), VOCAB);
    assert_int_equal(dsc_infer_positions(infer), TOKENS);
    must(dsc_infer_start(infer, TOKENS, &plan, &err));
    assert_true(plan.weights > 0 && plan.cache >= 2 * TOKENS * 16 * 4 && plan.buffers > 0 && plan.staging > 0);
    return infer;
}

static void near(const float *logits, const float *want, const char *what)
{
    for (int32_t i = 0; i < VOCAB; i++)
        if (!(fabsf(logits[i] - want[i]) < 2e-5f))
            fail_msg("%s: logit %d is %.7g, expected %.7g", what, (int)i, (double)logits[i], (double)want[i]);
}

/* The logits of `count` tokens, computed all at once by a fresh run, are those that `infer` gives now. */
static void same_as_fresh(dsc_alloc *alloc, dsc_infer *infer, const int32_t *tokens, int64_t count, const char *what)
{
    float mine[VOCAB];
    const float *logits = NULL;
    must(dsc_infer_logits(infer, tokens, count, &logits, &err));
    memcpy(mine, logits, sizeof mine);
    dsc_infer *fresh = start(alloc);
    must(dsc_infer_logits(fresh, tokens, count, &logits, &err));
    near(mine, logits, what);
    dsc_infer_close(&fresh);
}

static void check_model(const char *config_json)
{
    int32_t tokens[TOKENS], theirs[NEW];
    const float *logits = NULL;
    dsc_alloc *alloc = NULL;
    for (int32_t i = 0; i < PROMPT; i++)
        tokens[i] = (i * 7 + 3) % VOCAB;
    engine_continues(config_json, tokens, theirs);
    must(dsc_alloc_open(&alloc, &err));
    dsc_infer *infer = start(alloc);
    dsc_alloc_freeze(alloc, true);
    for (int32_t i = 0; i < NEW; i++) {
        must(dsc_infer_logits(infer, tokens, PROMPT + i, &logits, &err));
        tokens[PROMPT + i] = best_of(logits);
        assert_int_equal(tokens[PROMPT + i], theirs[i]);
    }
    dsc_alloc_freeze(alloc, false);
    same_as_fresh(alloc, infer, tokens, TOKENS, "one by one");
    tokens[70] = (tokens[70] + 1) % VOCAB;
    same_as_fresh(alloc, infer, tokens, TOKENS, "another token among those known");
    same_as_fresh(alloc, infer, tokens, 66, "a shorter text");
    tokens[2] = (tokens[2] + 1) % VOCAB;
    same_as_fresh(alloc, infer, tokens, 5, "a text shorter than a part");
    same_as_fresh(alloc, infer, tokens, 20, "its next tokens");
    for (int64_t count = 21; count < 30; count++)
        must(dsc_infer_logits(infer, tokens, count, &logits, &err));
    same_as_fresh(alloc, infer, tokens, 30, "and one by one");
    assert_int_equal(dsc_infer_logits(infer, tokens, TOKENS + 1, &logits, &err), DSC_ERR_INPUT);
    tokens[3] = VOCAB;
    assert_int_equal(dsc_infer_logits(infer, tokens, PROMPT, &logits, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "token 61 at 3"));
    dsc_infer_close(&infer);
    dsc_alloc_close(&alloc);
    must(dsc_io_remove_dir(NULL, folder, &err));
}

#define LLAMA_LIKE                                                                                                    \
    "\"vocab_size\": 61, \"hidden_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"        \
    " \"num_hidden_layers\": 2, \"intermediate_size\": 48, \"max_position_embeddings\": 100,"                   \
    " \"initializer_range\": 0.3"

static void every_decoder_says_what_the_engine_says(void **state)
{
    static const char *const models[] = {
        "{\"model_type\": \"gpt2\", \"vocab_size\": 61, \"n_embd\": 32, \"n_head\": 2, \"n_layer\": 2,"
        " \"n_positions\": 100, \"initializer_range\": 0.3}",
        "{\"model_type\": \"gpt_neox\", \"vocab_size\": 61, \"hidden_size\": 32, \"num_attention_heads\": 2,"
        " \"num_hidden_layers\": 2, \"intermediate_size\": 48, \"max_position_embeddings\": 100,"
        " \"initializer_range\": 0.3}",
        "{\"model_type\": \"opt\", \"vocab_size\": 61, \"hidden_size\": 32, \"num_attention_heads\": 2,"
        " \"num_hidden_layers\": 2, \"ffn_dim\": 48, \"max_position_embeddings\": 100, \"init_std\": 0.3,"
        " \"word_embed_proj_dim\": 32}",
        "{\"model_type\": \"opt\", \"vocab_size\": 61, \"hidden_size\": 32, \"num_attention_heads\": 2,"
        " \"num_hidden_layers\": 2, \"ffn_dim\": 48, \"max_position_embeddings\": 100, \"init_std\": 0.3,"
        " \"word_embed_proj_dim\": 24, \"do_layer_norm_before\": false}",
        "{\"model_type\": \"llama\", " LLAMA_LIKE "}",
        "{\"model_type\": \"qwen2\", " LLAMA_LIKE "}",
        "{\"model_type\": \"qwen3\", \"head_dim\": 8, " LLAMA_LIKE "}",
        "{\"model_type\": \"mistral\", \"sliding_window\": 17, " LLAMA_LIKE "}",
        "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 17,"
        " \"layer_types\": [\"full_attention\", \"sliding_attention\"], " LLAMA_LIKE "}",
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(models); i++) {
        print_message("# %.30s\n", models[i]);
        check_model(models[i]);
    }
}

static void a_model_without_weights_is_refused(void **state)
{
    (void)state;
    dsc_alloc *alloc = NULL;
    dsc_infer *infer = NULL;
    must(dsc_alloc_open(&alloc, &err));
    const dsc_infer_options options = { .alloc = alloc, .model = "gpt2-nano", .device = "cpu", .dtype = DSC_F32,
                                        .threads = 1 };
    assert_int_equal(dsc_infer_open(&options, &infer, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "no weights"));
    assert_null(infer);
    dsc_alloc_close(&alloc);
}

/* How often each of four tokens comes in many draws. */
static void count_draws(const dsc_sample_options *options, int count[4])
{
    static const float logits[4] = { 0.0f, 2.0f, 1.0f, 2.0f }; /* shares 0.054 0.400 0.147 0.400 */
    dsc_sample_work work[4];
    memset(count, 0, 4 * sizeof *count);
    for (int i = 0; i < 1000; i++)
        count[dsc_sample(logits, 4, options, (i + 0.5) / 1000, work)]++;
}

static void tokens_are_drawn_by_their_shares(void **state)
{
    (void)state;
    static const struct { dsc_sample_options options; int count[4]; } cases[] = {
        { { .temperature = 0, .top_p = 1 }, { 0, 1000, 0, 0 } },
        { { .temperature = 1, .top_p = 1 }, { 54, 400, 147, 399 } },
        { { .temperature = 1, .top_k = 4, .top_p = 1 }, { 54, 400, 147, 399 } },
        { { .temperature = 1, .top_k = 1, .top_p = 1 }, { 0, 1000, 0, 0 } },
        { { .temperature = 1, .top_k = 2, .top_p = 1 }, { 0, 500, 0, 500 } },
        { { .temperature = 1, .top_k = 3, .top_p = 1 }, { 0, 422, 155, 423 } },
        { { .temperature = 1, .top_p = 0.3 }, { 0, 1000, 0, 0 } },
        { { .temperature = 1, .top_p = 0.7 }, { 0, 500, 0, 500 } },
        { { .temperature = 1, .top_p = 0.9 }, { 0, 422, 155, 423 } },
        { { .temperature = 1, .top_k = 2, .top_p = 0.4 }, { 0, 1000, 0, 0 } },
        { { .temperature = 0.5, .top_p = 1 }, { 9, 465, 62, 464 } },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        int count[4];
        count_draws(&cases[i].options, count);
        for (int t = 0; t < 4; t++)
            if (abs(count[t] - cases[i].count[t]) > 1)
                fail_msg("case %zu: token %d is drawn %d times, expected %d", i, t, count[t], cases[i].count[t]);
    }
}

static void penalties_count_once_for_each_token(void **state)
{
    (void)state;
    static const float logits[4] = { 2.0f, -2.0f, 3.0f, 0.0f };
    static const int32_t tokens[] = { 1, 0, 1, 3, 0 };
    float out[4];
    dsc_sample_penalize(logits, 4, tokens, 5, 1.25, out);
    static const float want[4] = { 1.6f, -2.5f, 3.0f, 0.0f };
    assert_memory_equal(out, want, sizeof want);
}

/* The settings of a model folder with these files; NULL: no such file. */
static dsc_status read_settings(const char *generation, const char *config, dsc_generation_settings *out)
{
    dsc_alloc *alloc = NULL;
    char path[128];
    must(dsc_alloc_open(&alloc, &err));
    static const char *const names[] = { "generation_config.json", "config.json" };
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        (void)unlink(path);
        if ((i == 0 ? generation : config) != NULL)
            put_file(names[i], i == 0 ? generation : config);
    }
    const dsc_status status = dsc_generation_settings_read(alloc, root, out, &err);
    dsc_alloc_close(&alloc); /* asserts that nothing is left */
    return status;
}

static void settings_of_a_folder_are_those_of_transformers(void **state)
{
    (void)state;
    dsc_generation_settings s;
    must(read_settings(NULL, NULL, &s));
    assert_true(s.end_count == 0 && !s.samples && s.temperature == 0 && s.top_k == 0 && s.top_p == 1 &&
                s.repetition_penalty == 1 && s.max_new_tokens == 0 && s.ignored[0] == 0);
    must(read_settings("{\"do_sample\": true}", "{\"eos_token_id\": [5, -1, 7, 5]}", &s));
    assert_true(s.end_count == 2 && s.end[0] == 5 && s.end[1] == 7); /* ids of config.json, each once */
    assert_true(s.samples && s.temperature == 1 && s.top_k == 50 && s.top_p == 1);
    must(read_settings("{\"temperature\": 0.5, \"top_k\": 3, \"eos_token_id\": 9, \"top_p\": null}",
                       "{\"eos_token_id\": 5}", &s));
    assert_true(s.end_count == 1 && s.end[0] == 9 && s.temperature == 0 && s.top_k == 0);
    must(read_settings("{\"num_beams\": 1, \"min_p\": 0.0, \"stop_strings\": [], \"guidance_scale\": 2}", NULL, &s));
    assert_string_equal(s.ignored, "guidance_scale");
    assert_int_equal(read_settings("{\"eos_token_id\": [1, [2]]}", NULL, &s), DSC_ERR_INPUT);
    assert_int_equal(read_settings("{\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", NULL, &s),
                     DSC_ERR_INPUT);
    assert_int_equal(read_settings("{\"do_sample\": true, \"temperature\": -1}", NULL, &s), DSC_ERR_INPUT);
    assert_int_equal(read_settings("{", NULL, &s), DSC_ERR_INPUT);
}

static int open_folder(void **state)
{
    (void)state;
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int close_folder(void **state)
{
    (void)state;
    return dsc_io_remove_dir(NULL, root, NULL) == DSC_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_decoder_says_what_the_engine_says),
        cmocka_unit_test(a_model_without_weights_is_refused),
        cmocka_unit_test(tokens_are_drawn_by_their_shares),
        cmocka_unit_test(penalties_count_once_for_each_token),
        cmocka_unit_test(settings_of_a_folder_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
