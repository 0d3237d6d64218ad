/* test_hub_configs.c - keys of published config.json that are not in the classes of transformers: read as its models
 * read them, or refused by name. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/module_names.h"
#include "tests/support/model_folder.h"

#define SIZES                                                                                                          \
    "\"vocab_size\": 11, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "                 \
    "\"num_key_value_heads\": 1, \"intermediate_size\": 8, \"max_position_embeddings\": 64"

static dsc_model *open_text(const char *text)
{
    mf_write("c.json", text);
    return mf_open(mf_path("c.json"), NULL);
}

static void refuse_text(const char *text, const char *what)
{
    mf_write("c.json", text);
    mf_expect_refusal(mf_path("c.json"), NULL, DSC_ERR_UNSUPPORTED, what);
}

/* The first parameter whose name ends so. */
static const dsc_param_spec *find_param(const dsc_model *model, const char *end)
{
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            const char *name = model->modules[m].params[p].name;
            if (strlen(name) >= strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0)
                return &model->modules[m].params[p];
        }
    return NULL;
}

/* These classes have no member head_dim, and their models ask for it all the same. */
static void a_size_of_heads_is_read_in_every_decoder(void **state)
{
    static const char *const types[] = { "llama",   "qwen2", "smollm3",  "olmo2", "olmo3",     "granite",
                                         "cohere",  "phi",   "glm4_moe", "olmoe", "qwen2_moe", "qwen3_moe",
                                         "exaone4", "arcee", "seed_oss", "glm",   "mixtral",   "starcoder2" };
    char text[600];
    (void)state;
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(types); i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", \"pad_token_id\": null, \"head_dim\": 24, " SIZES "}",
                 types[i]);
        dsc_model *model = open_text(text);
        const dsc_param_spec *query = find_param(model, "q_proj.weight");
        assert_non_null(query);
        assert_int_equal(query->dim[0], 2 * 24);
        dsc_model_close(&model);
    }
    refuse_text("{\"model_type\": \"gpt_neox\", \"hidden_size\": 16, \"num_attention_heads\": 2, \"head_dim\": 16}",
                "\"head_dim\" 16 is not built for gpt_neox");
}

/* transformers has one mask for all layers of these, whatever layer_types says. */
static void kinds_of_layers_are_no_key_where_all_have_the_window(void **state)
{
    static const char *const types[] = { "phi3", "starcoder2", "mixtral" };
    char text[600];
    (void)state;
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(types); i++) {
        snprintf(text, sizeof text,
                 "{\"model_type\": \"%s\", \"pad_token_id\": null, \"sliding_window\": 9, "
                 "\"layer_types\": [\"full_attention\", \"full_attention\"], " SIZES "}",
                 types[i]);
        dsc_model *model = open_text(text);
        assert_non_null(model->warnings);
        assert_non_null(strstr(model->warnings, "\"layer_types\""));
        dsc_model_close(&model);
    }
}

#define ERNIE                                                                                                          \
    "{\"model_type\": \"ernie4_5_moe\", \"moe_num_experts\": 4, \"moe_k\": 2, \"moe_intermediate_size\": 8, " SIZES

static void ernies_losses_and_biases_are_refused(void **state)
{
    (void)state;
    mf_empty();
    dsc_model *model = open_text(ERNIE ", \"output_router_logits\": false, \"router_aux_loss_coef\": 0.001}");
    assert_null(model->warnings);
    dsc_model_close(&model);
    refuse_text(ERNIE ", \"output_router_logits\": true}", "\"output_router_logits\": true is not built");
    refuse_text(ERNIE ", \"use_bias\": true}", "\"use_bias\": true is not built");
}

/* transformers takes the names that models of experts have in common before the family's own. */
static void experts_have_a_second_name(void **state)
{
    static const struct {
        const char *text, *keys;
    } cases[] = {
        { ERNIE, ", \"num_experts\": 6, \"num_experts_per_tok\": 5}" },
        { "{\"model_type\": \"glm4_moe\", \"num_experts_per_tok\": 5, \"moe_intermediate_size\": 8, "
          "\"first_k_dense_replace\": 0, " SIZES,
          ", \"n_routed_experts\": 8, \"num_local_experts\": 6}" },
        { "{\"model_type\": \"hunyuan_v1_moe\", " SIZES,
          ", \"num_experts\": 8, \"moe_topk\": 2, \"num_local_experts\": 6, \"num_experts_per_tok\": 5}" },
    };
    char text[600];
    (void)state;
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        snprintf(text, sizeof text, "%s%s", cases[i].text, cases[i].keys);
        dsc_model *model = open_text(text);
        assert_int_equal(model->experts.experts, 6);
        assert_int_equal(model->experts.top_k, 5);
        dsc_model_close(&model);
    }
}

/* Without the second names a DistilBERT would have the usual 12 heads, and no shape would tell. */
static void sizes_have_a_second_name(void **state)
{
    static const char *const texts[] = {
        "{\"model_type\": \"mpt\", \"vocab_size\": 11, \"d_model\": 48, \"n_heads\": 16, ",
        "{\"model_type\": \"distilbert\", \"vocab_size\": 11, \"hidden_dim\": 8, \"dim\": 48, \"n_heads\": 12, ",
    };
    char text[600];
    (void)state;
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        snprintf(text, sizeof text, "%s\"hidden_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 3}",
                 texts[i]);
        dsc_model *model = open_text(text);
        assert_int_equal(model->module_count, i == 0 ? 4 : 5); /* a transform before the head */
        assert_int_equal(model->modules[0].params[0].dim[1], 24);
        dsc_model_close(&model);
        snprintf(text, sizeof text, "%s\"num_attention_heads\": 7}", texts[i]);
        mf_write("c.json", text);
        mf_expect_refusal(mf_path("c.json"), NULL, DSC_ERR_INPUT, "48 is not a multiple of \"n_heads\" 7");
    }
}

#define OLDER                                                                                                          \
    "{\"model_type\": \"%s\", \"pad_token_id\": null, \"rope_scaling\": {\"%s\": \"linear\", \"factor\": 2.0}, " SIZES \
    "}"

/* transformers has plain positions for an older file of these families that says "type". */
static void an_older_type_of_positions_is_refused_by_kinds_of_layers(void **state)
{
    static const char *const types[] = { "gemma3_text", "olmo3", "modernbert" };
    char text[600];
    (void)state;
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(types); i++) {
        snprintf(text, sizeof text, OLDER, types[i], "type");
        refuse_text(text, "\"type\" in \"rope_scaling\" is not read");
        snprintf(text, sizeof text, OLDER, types[i], "rope_type");
        dsc_model *model = open_text(text);
        dsc_model_close(&model);
    }
}

/* ERNIE's is a row in files. */
static void biases_of_routers_are_buffers(void **state)
{
    static const char *const texts[] = {
        ERNIE "}",
        "{\"model_type\": \"glm4_moe\", \"pad_token_id\": null, \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, "
        "\"moe_intermediate_size\": 8, \"first_k_dense_replace\": 0, " SIZES "}",
    };
    (void)state;
    mf_empty();
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        dsc_model *model = open_text(texts[i]);
        const dsc_module *block = &model->modules[model->module_count - 2];
        assert_null(find_param(model, "e_score_correction_bias"));
        assert_int_equal(block->buffer_count, 1);
        assert_non_null(strstr(block->buffers[0].name, "e_score_correction_bias"));
        assert_int_equal(block->buffers[0].count, 4);
        assert_int_equal(block->buffers[0].row, i == 0);
        dsc_model_close(&model);
    }
}

/* The names that a PEFT of transformers 5 has, and ends of them. */
static void modules_of_a_vit_have_other_names_in_peft(void **state)
{
    static const char *const names[][2] = {
        { "vit.encoder.layer.11.attention.attention.query.lora_A.weight",
          "vit.layers.11.attention.q_proj.lora_A.weight" },
        { "vit.encoder.layer.0.attention.output.dense", "vit.layers.0.attention.o_proj" },
        { "vit.encoder.layer.0.intermediate.dense", "vit.layers.0.mlp.fc1" },
        { "vit.encoder.layer.0.output.dense", "vit.layers.0.mlp.fc2" },
        { "dinov2.encoder.layer.3.attention.output.dense", "dinov2.encoder.layer.3.attention.o_proj" },
        { "dinov2_with_registers.encoder.layer.0.mlp.weights_out",
          "dinov2_with_registers.encoder.layer.0.mlp.down_proj" },
        { "attention.attention.value", "attention.v_proj" },
        { "query", "q_proj" },
        { "classifier.weight", "classifier.weight" },
    };
    char out[128], cut[8];
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        dsc_module_vit_in_peft(names[i][0], out, sizeof out);
        assert_string_equal(out, names[i][1]);
        dsc_module_vit_in_peft(names[i][0], cut, sizeof cut);
        assert_true(strnlen(cut, sizeof cut) < sizeof cut);
    }
    assert_true(dsc_module_is_vit(names[0][0]));
    assert_true(dsc_module_is_vit(names[4][0]));
    assert_true(dsc_module_is_vit(names[5][0]));
    assert_false(dsc_module_is_vit("bert.encoder.layer.0.output.dense.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_of_heads_is_read_in_every_decoder),
        cmocka_unit_test(kinds_of_layers_are_no_key_where_all_have_the_window),
        cmocka_unit_test(ernies_losses_and_biases_are_refused),
        cmocka_unit_test(experts_have_a_second_name),
        cmocka_unit_test(sizes_have_a_second_name),
        cmocka_unit_test(an_older_type_of_positions_is_refused_by_kinds_of_layers),
        cmocka_unit_test(modules_of_a_vit_have_other_names_in_peft),
        cmocka_unit_test(biases_of_routers_are_buffers),
    };
    return cmocka_run_group_tests(tests, mf_setup, mf_teardown);
}
