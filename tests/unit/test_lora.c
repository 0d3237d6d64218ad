/* test_lora.c - low-rank adapters on models of every block: logits, losses and gradients against peft's in double, and
 * against themselves; which layers get one; what is trained; PEFT's config read and written.
 *
 * The golden files and configs come from tests/golden/make_hf.py. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "models/families.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/lmrun.h"

#define OPTIONS(rank_, alpha_, stabilized, names)                                                                      \
    {                                                                                                                  \
        .struct_bytes = sizeof(dsc_lora_options), .rank = (rank_), .alpha = (alpha_), .rank_stabilized = (stabilized), \
        .targets = (names), .target_count = DSC_COUNT(names)                                                           \
    }

static const char *const all[] = { "all-linear" }, *const gpt2[] = { "c_attn", "mlp.c_proj" };
static const char *const neox[] = { "query_key_value", "dense_h_to_4h", "attention.dense" };
static const char *const opt[] = { "q_proj", "v_proj", "out_proj", "fc1", "fc2" };
static const char *const wide[] = { "project_in", "project_out", "fc1" };
static const dsc_lora_options options[] = { OPTIONS(5, 12, false, all), OPTIONS(3, 6, true, gpt2),
                                            OPTIONS(4, 4, false, neox), OPTIONS(2, 3, false, opt),
                                            OPTIONS(3, 5, false, wide), OPTIONS(3, 7, false, all) };

/* As make_hf.py; attention: C. */
static const lmrun_case cases[] = {
    { "lora_llama", 3, 7, 2, 24, false, 0, &options[0] },
    { "lora_gpt2", 3, 7, 2, 16, false, 0, &options[1] },
    { "lora_neox", 3, 7, 2, 24, false, 0, &options[2] },
    { "lora_opt", 3, 7, 2, 16, false, 0, &options[3] },
    { "lora_opt_wide", 3, 7, 2, 24, false, 0, &options[4] }, /* with adapters beside the projections of its tables */
    { "lora_bert", 3, 9, 2, 24, false, 0.2, &options[5] },   /* and of the transform, norms of the sums */
};

/* With magnitudes. Their norms are constants in backward, so that the gradient is not the slope. */
#define DORA(rank_, alpha_, stabilized, names)                                                                         \
    {                                                                                                                  \
        .struct_bytes = sizeof(dsc_lora_options), .rank = (rank_), .alpha = (alpha_), .rank_stabilized = (stabilized), \
        .targets = (names), .target_count = DSC_COUNT(names), .use_dora = true                                         \
    }
static const dsc_lora_options dora[] = { DORA(5, 12, false, all), DORA(3, 6, true, gpt2), DORA(3, 5, false, wide),
                                         DORA(3, 7, false, all) };
static const lmrun_case dora_cases[] = {
    { "dora_llama", 3, 7, 2, 24, false, 0, &dora[0] },
    { "dora_gpt2", 3, 7, 2, 16, false, 0, &dora[1] },
    { "dora_opt_wide", 3, 7, 2, 24, false, 0, &dora[2] },
    { "dora_bert", 3, 9, 2, 24, false, 0.2, &dora[3] },
};

static void magnitudes_agree_with_peft(void **state) { lmrun_cases_agree(dora_cases, DSC_COUNT(dora_cases)); }
static void magnitudes_keep_their_bits(void **state) { lmrun_cases_keep_their_bits(dora_cases, 2); }
static void magnitudes_run_as_planned(void **state) { lmrun_cases_run_as_planned(dora_cases, DSC_COUNT(dora_cases)); }

static void agrees_with_peft(void **state) { lmrun_cases_agree(cases, DSC_COUNT(cases)); }
/* Layers of either block. */
static void keeps_its_bits(void **state) { lmrun_cases_keep_their_bits(cases, 2); }
static void runs_as_planned(void **state) { lmrun_cases_run_as_planned(cases, DSC_COUNT(cases)); }
static void gradient_is_the_slope(void **state) { lmrun_cases_have_slopes(cases, DSC_COUNT(cases)); }

/* ---- experts ---- */

/* As tests/cli/expert_adapters_test.py compares with peft. */
static const char *const both_tensors[] = { "mlp.experts.gate_up_proj", "mlp.experts.down_proj" };
static const char *const one_and_router[] = { "down_proj", "router.weight" };
static const char *const q_alone[] = { "q_proj" };
static const dsc_lora_options of_experts[] = {
    { .struct_bytes = sizeof(dsc_lora_options),
      .rank = 3,
      .alpha = 6,
      .target_parameters = both_tensors,
      .target_parameter_count = 2 },
    { .struct_bytes = sizeof(dsc_lora_options),
      .rank = 2,
      .alpha = 5,
      .targets = q_alone,
      .target_count = 1,
      .target_parameters = one_and_router,
      .target_parameter_count = 2 },
};
static const lmrun_case expert_cases[] = { { "hf_mixtral", 3, 7, 2, 24, false, 0, &of_experts[0] },
                                           { "hf_gpt_oss", 3, 7, 2, 32, false, 0, &of_experts[1] } };

static void experts_keep_their_bits(void **state) { lmrun_cases_keep_their_bits(expert_cases, 2); }
static void gradients_of_experts_are_slopes(void **state) { lmrun_cases_have_slopes(expert_cases, 2); }

/* ---- dropout ---- */

static const dsc_lora_options dropping[] = {
    { .struct_bytes = sizeof(dsc_lora_options),
      .rank = 5,
      .alpha = 12,
      .targets = all,
      .target_count = 1,
      .dropout = 0.3 },
    { .struct_bytes = sizeof(dsc_lora_options),
      .rank = 3,
      .alpha = 6,
      .targets = gpt2,
      .target_count = 2,
      .dropout = 0.6 },
};
static const dsc_lora_options dora_dropping[] = {
    { .struct_bytes = sizeof(dsc_lora_options),
      .rank = 5,
      .alpha = 12,
      .targets = all,
      .target_count = 1,
      .dropout = 0.3,
      .use_dora = true },
    { .struct_bytes = sizeof(dsc_lora_options),
      .rank = 3,
      .alpha = 6,
      .targets = gpt2,
      .target_count = 2,
      .dropout = 0.6,
      .use_dora = true },
};
static const lmrun_case dora_dropped[] = { { "lora_llama", 3, 7, 2, 24, false, 0, &dora_dropping[0] },
                                           { "lora_gpt2", 3, 7, 2, 16, false, 0, &dora_dropping[1] } };
static const lmrun_case dropped[] = { { "lora_llama", 3, 7, 2, 24, false, 0, &dropping[0] },
                                      { "lora_gpt2", 3, 7, 2, 16, false, 0, &dropping[1] } };

/* All passes of a training step drop the same elements. */
static void dropout_is_the_same_in_each_pass(void **state)
{
    lmrun_cases_keep_their_bits(dropped, DSC_COUNT(dropped));
    lmrun_cases_run_as_planned(dropped, DSC_COUNT(dropped));
    lmrun_cases_have_slopes(dropped, DSC_COUNT(dropped));
}

static void dropout_beside_magnitudes(void **state)
{
    lmrun_cases_keep_their_bits(dora_dropped, DSC_COUNT(dora_dropped));
    lmrun_cases_run_as_planned(dora_dropped, DSC_COUNT(dora_dropped));
}

/* ---- what gets an adapter ---- */

static dsc_status open_with(const char *path, const dsc_lora_options *lora, dsc_model **out, dsc_error *err)
{
    dsc_model_options with = DSC_MODEL_OPTIONS_INIT;
    with.lora = lora;
    return dsc_model_open(out, path, &with, err);
}

static dsc_status open_llama(const dsc_lora_options *lora, dsc_model **out, dsc_error *err)
{
    return open_with("tests/golden/lora_llama.json", lora, out, err);
}

/* The names of what is trained, in order, each with a space behind it. */
static void trained_names(const dsc_model *model, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count && used < bytes; p++)
            if (model->modules[m].params[p].trainable)
                used += (size_t)snprintf(out + used, bytes - used, "%s ", model->modules[m].params[p].name);
    assert_true(used < bytes);
}

static void only_adapters_are_trained(void **state)
{
    static const char *const one[] = { "model.layers.1.self_attn.o_proj" };
    const dsc_lora_options lora = OPTIONS(3, 6, false, one);
    char names[1024];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    assert_int_equal(open_llama(&lora, &model, &err), DSC_OK);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    assert_string_equal(names, "model.layers.1.self_attn.o_proj.lora_A.weight "
                               "model.layers.1.self_attn.o_proj.lora_B.weight ");
    const dsc_module *block = &model->modules[2];
    const dsc_param_spec *a = &block->params[block->param_count - 2], *b = &block->params[block->param_count - 1];
    assert_true(a->dim_count == 2 && a->dim[0] == 3 && a->dim[1] == 24);
    assert_true(b->dim_count == 2 && b->dim[0] == 24 && b->dim[1] == 3);
    assert_true(a->init == DSC_INIT_UNIFORM && fabs((double)a->init_std * sqrt(24.0) - 1) < 1e-6);
    assert_int_equal(b->init, DSC_INIT_ZEROS);
    assert_non_null(strstr(model->adapter_json, "\"model.layers.1.self_attn.o_proj\"")); /* whole: not in all blocks */
    assert_non_null(strstr(model->adapter_json, "\"r\": 3"));
    dsc_model_close(&model);
}

/* A module by the end of its name is trained whole; padding rows of a saved table are 0. */
static void modules_to_save_are_trained(void **state)
{
    static const char *const one[] = { "q_proj" }, *const save[] = { "lm_head", "layers.0.mlp" };
    dsc_lora_options lora = OPTIONS(3, 6, false, one);
    dsc_model_options with = DSC_MODEL_OPTIONS_INIT;
    char names[2048];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    lora.modules_to_save = save;
    lora.modules_to_save_count = DSC_COUNT(save);
    with.lora = &lora;
    with.vocab_multiple = 16;
    assert_int_equal(dsc_model_open(&model, "tests/golden/lora_llama.json", &with, &err), DSC_OK);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    assert_non_null(strstr(names, "lm_head.weight "));
    assert_non_null(strstr(names, "model.layers.0.mlp.down_proj.weight "));
    assert_null(strstr(names, "model.layers.1.mlp"));
    assert_null(strstr(names, "embed_tokens"));
    assert_non_null(strstr(names, "model.layers.1.self_attn.q_proj.lora_A.weight "));
    assert_non_null(strstr(model->adapter_json, "\"modules_to_save\": [\"lm_head\", \"layers.0.mlp\"],"));
    dsc_model_close(&model);
}

static dsc_status open_mixtral(const dsc_lora_options *lora, dsc_model **out, dsc_error *err)
{
    return open_with("tests/golden/hf_mixtral.json", lora, out, err);
}

/* PEFT wraps a module once for each tensor, and the first one is inside. Each expert has rank 3 of A's rows. */
static void experts_have_pairs(void **state)
{
    char names[2048];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    assert_int_equal(open_mixtral(&of_experts[0], &model, &err), DSC_OK);
    assert_int_equal(dsc_model_check(model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    const char first[] = "model.layers.0.mlp.experts.base_layer.lora_A.weight "
                         "model.layers.0.mlp.experts.base_layer.lora_B.weight "
                         "model.layers.0.mlp.experts.lora_A.weight model.layers.0.mlp.experts.lora_B.weight ";
    assert_int_equal(strncmp(names, first, sizeof first - 1), 0);
    const dsc_module *block = &model->modules[1];
    const dsc_param_spec *last = &block->params[block->param_count - 4];
    const int64_t rows[] = { 4 * 3, 2 * 20, 4 * 3, 24 }, columns[] = { 24, 3 * 4, 20, 3 * 4 };
    for (int i = 0; i < 4; i++)
        assert_true(last[i].dim[0] == rows[i] && last[i].dim[1] == columns[i]);
    assert_non_null(strstr(model->adapter_json, "\"target_modules\": [\n  ]"));
    assert_non_null(strstr(model->adapter_json,
                           "\"target_parameters\": [\"mlp.experts.gate_up_proj\", \"mlp.experts.down_proj\"]"));
    dsc_model_close(&model);
}

/* The names of the layers that experts were, as PEFT reads them. */
static void names_of_layers_stand_for_tensors(void **state)
{
    static const char *const layers[] = { "w1", "experts.0.w3", "w2", "v_proj" }, *const half[] = { "w3" };
    const dsc_lora_options lora = OPTIONS(3, 6, false, layers), one = OPTIONS(3, 6, false, half);
    char names[2048];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    assert_int_equal(open_mixtral(&lora, &model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    assert_non_null(strstr(names, "layers.1.self_attn.v_proj.lora_A.weight "));
    const dsc_module *block = &model->modules[1];
    assert_int_equal(block->params[block->param_count - 4].dim[0], 4 * 6); /* twice r for two matrices */
    assert_int_equal(block->params[block->param_count - 2].dim[0], 4 * 3);
    assert_non_null(strstr(model->adapter_json, "\"target_parameters\": [\"gate_up_proj\", \"down_proj\"]"));
    assert_non_null(strstr(model->adapter_json, "\"rank_pattern\": {\".*\\\\.gate_up_proj\": 6}"));
    dsc_model_close(&model);
    assert_int_equal(open_mixtral(&one, &model, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "\"w3\" is there without \"w1\""));
}

/* Layer names that peft accepts for the family. */
static void targets_without_any(void **state)
{
    const dsc_lora_options lora = DSC_LORA_OPTIONS_INIT;
    char names[1024];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    assert_int_equal(open_llama(&lora, &model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    assert_non_null(strstr(names, "model.layers.0.self_attn.q_proj.lora_A.weight "));
    assert_non_null(strstr(names, "model.layers.1.self_attn.v_proj.lora_B.weight "));
    assert_null(strstr(names, "k_proj"));
    assert_null(strstr(names, "mlp"));
    assert_non_null(strstr(model->adapter_json, "\"self_attn.q_proj\",\n"));
    dsc_model_close(&model);
}

/* BERT's two "output.dense" end alike, so that PEFT takes the shorter name for both of them. */
static void names_that_end_alike(void **state)
{
    static const char *const mlp[] = { "bert.encoder.layer.0.output.dense", "bert.encoder.layer.1.output.dense" };
    static const char *const both[] = { "output.dense", "transform.dense" };
    const dsc_lora_options lora[] = { OPTIONS(3, 6, false, mlp), OPTIONS(3, 6, false, both) };
    char names[2048];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    assert_int_equal(open_with("tests/golden/lora_bert.json", &lora[0], &model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    assert_null(strstr(names, "attention.output.dense"));
    assert_non_null(strstr(model->adapter_json, "\"bert.encoder.layer.1.output.dense\""));
    assert_non_null(strstr(model->adapter_json, "\"task_type\": null"));
    dsc_model_close(&model);
    assert_int_equal(open_with("tests/golden/lora_bert.json", &lora[1], &model, &err), DSC_OK);
    trained_names(model, names, sizeof names);
    assert_non_null(strstr(names, "bert.encoder.layer.0.attention.output.dense.lora_A.weight "));
    assert_non_null(strstr(names, "cls.predictions.transform.dense.lora_B.weight "));
    assert_non_null(strstr(model->adapter_json, "\n    \"output.dense\""));
    assert_non_null(strstr(model->adapter_json, "\n    \"cls.predictions.transform.dense\""));
    dsc_model_close(&model);
}

/* The layers with adapters, each with a space behind it. */
static void check_layers(const dsc_lora_options *lora, const char *wanted)
{
    char names[2048], layers[2048];
    size_t used = 0;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    if (open_llama(lora, &model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    trained_names(model, names, sizeof names);
    for (char *at = names, *end; (end = strstr(at, ".lora_A.weight ")) != NULL; at = end + 1) {
        const char *start = end;
        while (start > names && start[-1] != ' ')
            start--;
        start += strlen("model.layers."); /* a prefix of all names */
        used += (size_t)snprintf(layers + used, sizeof layers - used, "%.*s ", (int)(end - start), start);
    }
    layers[used] = 0;
    assert_string_equal(layers, wanted);
    dsc_model_close(&model);
}

static void targets_by_regular_expression(void **state)
{
    static const char *const linear[] = { "All-Linear" }, *const attention[] = { "self_attn.k_proj", "q_proj",
                                                                                 "mlp.up_proj" };
    static const char *const list[] = { "q_proj", "o_proj" }, *const pattern[] = { "(h|layers)" };
    static const int64_t blocks[] = { 1 };
    dsc_lora_options lora = DSC_LORA_OPTIONS_INIT;
    lora.target_regex = "model\\.layers\\.1\\..*(q|v)_proj";
    check_layers(&lora, "1.self_attn.q_proj 1.self_attn.v_proj ");
    lora.exclude_regex = ".*v_proj";
    check_layers(&lora, "1.self_attn.q_proj ");
    lora.target_regex = NULL;
    lora.exclude_regex = ".*(0|down|gate|o_proj|v_proj).*";
    lora.targets = linear;
    lora.target_count = 1;
    check_layers(&lora, "1.self_attn.q_proj 1.self_attn.k_proj 1.mlp.up_proj ");
    lora.exclude_regex = NULL;
    lora.exclude = attention;
    lora.exclude_count = DSC_COUNT(attention);
    check_layers(&lora, "0.self_attn.v_proj 0.self_attn.o_proj 0.mlp.gate_proj 0.mlp.down_proj "
                        "1.self_attn.v_proj 1.self_attn.o_proj 1.mlp.gate_proj 1.mlp.down_proj ");
    lora.exclude_count = 0;
    lora.targets = list;
    lora.target_count = 2;
    lora.layers = blocks;
    lora.layer_count = 1;
    check_layers(&lora, "1.self_attn.q_proj 1.self_attn.o_proj ");
    lora.layers_pattern = pattern;
    lora.layers_pattern_count = 1;
    check_layers(&lora, "1.self_attn.q_proj 1.self_attn.o_proj ");
}

/* The first pattern that fits a layer or what follows a point in its name; exports keep them. */
static void numbers_by_regular_expression(void **state)
{
    static const dsc_lora_value ranks[] = { { "layers\\.0\\..*q_proj", 2 }, { "(q|v)_proj", 5 }, { "^q_proj", 9 } };
    static const dsc_lora_value alphas[] = { { "^model\\..*v_proj", 10 } };
    static const char *const targets[] = { "q_proj", "v_proj", "o_proj" };
    dsc_lora_options lora = OPTIONS(3, 6, false, targets);
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    lora.rank_pattern = ranks;
    lora.rank_pattern_count = 2;
    lora.alpha_pattern = alphas;
    lora.alpha_pattern_count = 1;
    assert_int_equal(open_llama(&lora, &model, &err), DSC_OK);
    for (int32_t m = 1; m <= 2; m++) {
        static const struct {
            const char *name;
            int64_t rank[2];
            float scale[2];
        } layers[] = {
            { "q_proj.lora_A", { 2, 5 }, { 3, 1.2f } },
            { "v_proj.lora_A", { 5, 5 }, { 2, 2 } },
            { "o_proj.lora_A", { 3, 3 }, { 2, 2 } },
        };
        const dsc_module *block = &model->modules[m];
        const dsc_lora *adapters = &((const dsc_lm_module *)block->self)->lora;
        for (size_t l = 0; l < DSC_COUNT(layers); l++)
            for (int32_t p = 0; p < block->param_count; p++) {
                if (strstr(block->params[p].name, layers[l].name) == NULL)
                    continue;
                assert_int_equal(block->params[p].dim[0], layers[l].rank[m - 1]);
                for (int32_t w = 0; w < p; w++)
                    if (adapters->first[w] == p)
                        assert_true(adapters->scales[w] == layers[l].scale[m - 1]);
            }
    }
    assert_non_null(
        strstr(model->adapter_json, "\"rank_pattern\": {\"layers\\\\.0\\\\..*q_proj\": 2, \"(q|v)_proj\": 5}"));
    dsc_model_close(&model);
    lora.rank_pattern_count = 3;
    assert_int_equal(open_llama(&lora, &model, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "\"^q_proj\" fits no layer"));
}

static void refuses_choices_of_layers(void **state)
{
    static const char *const list[] = { "q_proj" }, *const other[] = { "k_proj", "wq" };
    static const int64_t blocks[] = { 0, 7 };
    static const dsc_lora_value half[] = { { "q_proj", 1.5 } }, no[] = { { "q_proj", 0 } };
#define WITH(...)                                                                                                      \
    { { .struct_bytes = sizeof(dsc_lora_options),                                                                      \
        .rank = 2,                                                                                                     \
        .alpha = 2,                                                                                                    \
        .targets = list,                                                                                               \
        .target_count = 1,                                                                                             \
        __VA_ARGS__ }
    static const struct {
        dsc_lora_options lora;
        const char *what;
    } wrong[] = { WITH(.target_regex = "q_proj"), "\"q_proj\" fits no layer" }, WITH(.target_regex = "(q_proj"),
      "\"(q_proj\" has a group without its )"
}
, WITH(.exclude_regex = "(?<=q)_proj"), "a group of a kind that is not read"
}
, WITH(.exclude_regex = "k_proj"), "\"k_proj\" fits no layer"
}
, WITH(.exclude = other, .exclude_count = 2), "\"wq\" fits no layer"
}
, WITH(.exclude = list, .exclude_count = 1), "has an adapter"
}
, WITH(.exclude = list, .exclude_count = 65), "65 names"
}
, WITH(.layers = blocks, .layer_count = 2), "\"7\" fits no layer"
}
, WITH(.layers = blocks, .layer_count = 1025), "1025 numbers"
}
, WITH(.layers = blocks, .layer_count = 1, .target_regex = ".*q_proj"), "the regular expression of target_modules"
}
, WITH(.layers_pattern = list, .layers_pattern_count = 1), "layers_to_transform counts"
}
, WITH(.rank_pattern = half, .rank_pattern_count = 1), "without a fraction"
}
, WITH(.alpha_pattern = no, .alpha_pattern_count = 1), "a number above 0"
}
,
}
;
#undef WITH
for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_not_equal(open_llama(&wrong[i].lora, &model, &err), DSC_OK);
    assert_null(model);
    if (strstr(err.message, wrong[i].what) == NULL)
        fail_msg("case %zu: %s", i, err.message);
}
}

static void refuses(void **state)
{
    static const char *const head[] = { "q_proj", "lm_head" }, *const part[] = { "_proj" };
    static const struct { dsc_lora_options lora; const char *what;
    } wrong[] = {
        { OPTIONS(8, 8, false, head), "\"lm_head\" is the name of no layer of tests/golden/lora_llama.json" },
        { OPTIONS(8, 8, false, part), "\"_proj\" is the name of no layer" },
        { OPTIONS(0, 8, false, all), "a rank of 0" },
        { OPTIONS(8, 0, false, all), "an alpha of 0" },
        { { .struct_bytes = sizeof(dsc_lora_options), .rank = 8, .alpha = 8, .dropout = 1 }, "a dropout of 1" },
        { { .struct_bytes = 8 }, "struct_bytes is 8" },
        { { .struct_bytes = sizeof(dsc_lora_options), .rank = 8, .alpha = 8, .target_count = 65 }, "65 names" },
    };
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        dsc_model *model = NULL;
        dsc_error err = DSC_ERROR_INIT;
        assert_int_not_equal(open_llama(&wrong[i].lora, &model, &err), DSC_OK);
        assert_null(model);
        if (strstr(err.message, wrong[i].what) == NULL)
            fail_msg("%s", err.message);
    }
}

/* ---- folders of PEFT's ---- */

static char *dir;

#define Q(layer, part, shape, from, to)                                                                        \
    "\"base_model.model.model.layers." layer ".self_attn.q_proj.lora_" part ".weight\":{\"dtype\":\"F32\"," \
    "\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
#define A_AND_B Q("1", "A", "[2,24]", "0", "192") "," Q("1", "B", "[24,2]", "192", "384")

/* adapter_model.safetensors with that header and element i being i, up to `elements`. */
static void put_weights(const char *header, int elements)
{
    char file[4096];
    const uint64_t bytes = strlen(header);
    memcpy(file, &bytes, 8);
    memcpy(file + 8, header, bytes);
    for (int i = 0; i < elements; i++) {
        const float value = (float)i;
        memcpy(file + 8 + bytes + 4 * (size_t)i, &value, 4);
    }
    cw_write(cw_path(dir, "adapter_model.safetensors"), file, 8 + bytes + 4 * (size_t)elements);
}

static dsc_status open_adapter(const char *config, dsc_model **model, dsc_error *err)
{
    dsc_lora_options lora = DSC_LORA_OPTIONS_INIT;
    cw_write(cw_path(dir, "adapter_config.json"), config, strlen(config));
    lora.adapter = dir;
    return open_llama(&lora, model, err);
}

static void goes_on_from_a_folder(void **state)
{
    char names[1024];
    float values[48];
    bool found = false;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    put_weights("{" A_AND_B "}", 96);
    if (open_adapter("{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 3, \"target_modules\": \".*q_proj\","
                     " \"lora_dropout\": 0.1, \"rank_pattern\": {}, \"bias\": \"none\"}", &model, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    trained_names(model, names, sizeof names);
    assert_string_equal(names, "model.layers.1.self_attn.q_proj.lora_A.weight "
                               "model.layers.1.self_attn.q_proj.lora_B.weight ");
    const int32_t b = model->modules[2].param_count - 1;
    assert_int_equal(model->load_param(model, 2, b, 0, 48, values, &found, &err), DSC_OK);
    assert_true(found && values[0] == 48 && values[47] == 95);
    assert_int_equal(model->load_param(model, 2, 0, 0, 24, values, &found, &err), DSC_OK);
    assert_false(found); /* a config alone has no weights */
    assert_non_null(strstr(model->adapter_json, "\"lora_dropout\": 0.1,"));
    assert_non_null(strstr(model->adapter_json, "\"lora_alpha\": 3,"));
    dsc_model_close(&model);
}

static void refuses_folders(void **state)
{
    static const char good[] = "{\"peft_type\": \"LORA\", \"r\": 2}";
    static const struct { const char *config, *header, *what;
    } wrong[] = {
        { "{\"peft_type\": \"LORA\", \"r\": 3}", "{" A_AND_B "}", "is [2,24], config.json needs [3,24]" },
        { "{\"peft_type\": \"IA3\"}", "{" A_AND_B "}", "\"peft_type\" of this kind is not built" },
        { "{\"r\": 2, \"use_dora\": 3}", "{" A_AND_B "}", "\"use_dora\"" },
        { "{\"r\": 2, \"use_dora\": true}", "{" A_AND_B "}", "q_proj.lora_magnitude_vector\" is missing" },
        { "{\"r\": 2, \"bias\": \"all\"}", "{" A_AND_B "}", "\"bias\"" },
        { "{\"r\": 2, \"alpha_pattern\": {\"q_proj\": -9}}", "{" A_AND_B "}", "\"alpha_pattern\"" },
        { "{\"r\": 2, \"modules_to_save\": [\"lm_head\"]}", "{" A_AND_B "}",
          "\"base_model.model.lm_head.weight\" is missing" },
        { "{\"r\": 2, \"init_lora_weights\": \"pissa\"}", "{" A_AND_B "}", "\"pissa\" is not built" },
        { "{\"r\": 0}", "{" A_AND_B "}", "\"r\" must be a whole number" },
        { "[]", "{" A_AND_B "}", "expected an object" },
        { good, "{" Q("1", "A", "[2,24]", "0", "192") "}", "q_proj.lora_B.weight\" is missing" },
        { good, "{" A_AND_B "," Q("2", "A", "[2,24]", "384", "576") "}", "is not an adapter of a linear layer" },
        { good, "{" Q("9", "A", "[2,24]", "0", "192") "}", "no layer of tests/golden/lora_llama.json has an adapter" },
        { "{\"r\": 2, \"kasa_config\": {\"beta\": 0.1}}", "{" A_AND_B "}", "\"kasa_config\"" },
        { "{\"r\": 2, \"use_bdlora\": {\"nblocks\": 2}}", "{" A_AND_B "}", "\"use_bdlora\"" },
        { "{\"r\": 2, \"rank_pattern\": {\"(q_proj\": 2}}", "{" A_AND_B "}", "has a group without its )" },
        { "{\"r\": 2.0}", "{" A_AND_B "}", "\"r\" must be a whole number" },
    };
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        dsc_model *model = NULL;
        dsc_error err = DSC_ERROR_INIT;
        put_weights(wrong[i].header, i == 11 ? 144 : i == 10 || i == 12 ? 48 : 96);
        assert_int_not_equal(open_adapter(wrong[i].config, &model, &err), DSC_OK);
        assert_null(model);
        if (strstr(err.message, wrong[i].what) == NULL)
            fail_msg("case %zu: %s", i, err.message);
    }
}

/* Each allocation fails once; the model's own allocator asserts that nothing of it is left. */
static void survives_failing_allocations(void **state)
{
    dsc_model_options with = DSC_MODEL_OPTIONS_INIT;
    dsc_lora_options adapter = DSC_LORA_OPTIONS_INIT;
    dsc_status status = DSC_ERR_NOMEM;
    int64_t n = 0;
    put_weights("{" A_AND_B "}", 96);
    cw_write(cw_path(dir, "adapter_config.json"), "{\"r\": 2}", 8);
    adapter.adapter = dir;
    with.lora = &adapter;
    while (status != DSC_OK) {
        dsc_alloc *own = NULL;
        dsc_model *model = NULL;
        dsc_lora_config lora = { 0 };
        dsc_error err = DSC_ERROR_INIT;
        assert_int_equal(dsc_alloc_open(&own, &err), DSC_OK);
        dsc_alloc_fail_at(own, ++n, false);
        status = dsc_lora_config_open(&lora, own, &adapter, &err);
        if (status == DSC_OK)
            status = dsc_hf_open(&model, own, "tests/golden/lora_llama.json", NULL, &with, &lora, &err);
        dsc_lora_config_close(&lora);
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

static int setup(void **state)
{
    dir = cw_tmp_open();
    return 0;
}

static int teardown(void **state)
{
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_peft),
        cmocka_unit_test(keeps_its_bits),
        cmocka_unit_test(runs_as_planned),
        cmocka_unit_test(gradient_is_the_slope),
        cmocka_unit_test(dropout_is_the_same_in_each_pass),
        cmocka_unit_test(experts_keep_their_bits),
        cmocka_unit_test(gradients_of_experts_are_slopes),
        cmocka_unit_test(experts_have_pairs),
        cmocka_unit_test(names_of_layers_stand_for_tensors),
        cmocka_unit_test(magnitudes_agree_with_peft),
        cmocka_unit_test(magnitudes_keep_their_bits),
        cmocka_unit_test(magnitudes_run_as_planned),
        cmocka_unit_test(dropout_beside_magnitudes),
        cmocka_unit_test(only_adapters_are_trained),
        cmocka_unit_test(modules_to_save_are_trained),
        cmocka_unit_test(targets_without_any),
        cmocka_unit_test(names_that_end_alike),
        cmocka_unit_test(targets_by_regular_expression),
        cmocka_unit_test(numbers_by_regular_expression),
        cmocka_unit_test(refuses_choices_of_layers),
        cmocka_unit_test(refuses),
        cmocka_unit_test(goes_on_from_a_folder),
        cmocka_unit_test(refuses_folders),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("lora", tests, setup, teardown);
}
