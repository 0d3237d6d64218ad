/* deepseek.c - DeepSeek-V2 (Liu et al. 2024) and DeepSeek-V3 with Kimi K2, whose attention is latent (mla.h), and
 * GLM-4.5. All have experts that every token goes to, and routers that choose groups of experts before experts.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/moe.h"

static dsc_moe_config *moe_of(dsc_decoder_config *config) { return (dsc_moe_config *)(void *)config; }

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* A whole number from 0. */
static dsc_status read_count(dsc_hf_config *reader, const char *key, int64_t max, int64_t fallback, int64_t *out)
{
    const cJSON *item = dsc_hf_field(reader, key);
    *out = fallback;
    if (item != NULL && !dsc_json_integer(item, 0, max, out))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a whole number from 0 to %lld", key,
                             (long long)max);
    return DSC_OK;
}

/* Keys with one value. */
static dsc_status read_only(dsc_hf_config *reader, const char *key, const char *value)
{
    int32_t index = 0;
    return dsc_hf_choice(reader, key, &value, 1, &index);
}

/* The factor of scores grows with YaRN's, once for queries and once for keys. */
static double scale_of(const dsc_rope *rope, int64_t columns)
{
    const bool longer = rope->kind != DSC_ROPE_DEFAULT && rope->mscale_all_dim > 0 && rope->factor > 1;
    const double temperature = longer ? 0.1 * rope->mscale_all_dim * log(rope->factor) + 1 : 1;
    return temperature * temperature / sqrt((double)columns);
}

static dsc_status read_mla(dsc_hf_config *reader, dsc_decoder_config *config)
{
    dsc_mla *mla = &moe_of(config)->mla;
    const bool named = cJSON_GetObjectItemCaseSensitive(reader->object, "q_lora_rank") != NULL;
    DSC_TRY(dsc_hf_int_or_null(reader, "q_lora_rank", DSC_LM_CHANNELS_MAX, named ? 0 : 1536, &mla->q_latent));
    DSC_TRY(dsc_hf_int(reader, "kv_lora_rank", DSC_LM_CHANNELS_MAX, 512, &mla->kv_latent));
    DSC_TRY(dsc_hf_int(reader, "v_head_dim", DSC_DECODER_HEAD_MAX, 128, &mla->value));
    DSC_TRY(dsc_hf_int(reader, "qk_nope_head_dim", DSC_DECODER_HEAD_MAX, 128, &mla->plain));
    mla->heads = config->heads, mla->turned = config->head_size;
    mla->latent_bias = config->qkv_bias, mla->out_bias = config->out_bias;
    mla->latent_eps = 1e-6;
    const int64_t size = mla->plain + mla->turned, width = size > mla->value ? size : mla->value;
    mla->scale = scale_of(&config->rope, size);
    if (width % 2 != 0 || width > DSC_DECODER_HEAD_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"qk_nope_head_dim\" %lld, \"qk_rope_head_dim\" %lld and \"v_head_dim\" %lld make heads "
                             "of %lld elements, which are not built; what exists: even sizes up to %d",
                             (long long)mla->plain, (long long)mla->turned, (long long)mla->value, (long long)width,
                             DSC_DECODER_HEAD_MAX);
    (void)dsc_hf_field(reader, "head_dim"); /* newer files have that of the turned part again */
    (void)dsc_hf_field(reader, "num_key_value_heads");
    if (config->kv_heads != config->heads)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"num_key_value_heads\" %lld beside \"num_attention_heads\" %lld is not built for latent "
                             "attention; what exists: the same number",
                             (long long)config->kv_heads, (long long)config->heads);
    return DSC_OK;
}

/* Values without the keys. */
typedef struct defaults {
    int64_t experts, top_k, inner, shared, groups, best_groups, first; /* top_k 0: the key is needed */
    double factor;
} defaults;

static dsc_status read_slots(dsc_hf_config *reader, const defaults *usual, dsc_moe_config *out)
{
    int64_t experts = 0, slots = 0, shared = 0;
    double factor = 1;
    DSC_TRY(dsc_hf_int(reader, "n_routed_experts", DSC_MOE_EXPERTS_MAX, usual->experts, &experts));
    DSC_TRY(dsc_hf_int(reader, "num_experts_per_tok", DSC_MOE_TOP_K_MAX, usual->top_k, &slots));
    if (slots == 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"num_experts_per_tok\" is missing; expected a whole number");
    DSC_TRY(dsc_hf_int(reader, "moe_intermediate_size", DSC_LM_INNER_MAX, usual->inner, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "n_shared_experts", DSC_MOE_EXPERTS_MAX, usual->shared, &shared));
    DSC_TRY(dsc_hf_number(reader, "routed_scaling_factor", (dsc_hf_range) { 1e-9, 1e9 }, usual->factor, &factor));
    out->shared_inner = shared * out->inner;
    out->rule = (dsc_moe_rule) { .experts = (int32_t)experts, .top_k = (int32_t)slots, .factor = (float)factor };
    if (out->shared_inner > DSC_LM_INNER_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "%lld shared experts of %lld elements are more than %d elements",
                             (long long)shared, (long long)out->inner, DSC_LM_INNER_MAX);
    return DSC_OK;
}

static dsc_status read_groups(dsc_hf_config *reader, const defaults *usual, dsc_moe_rule *rule)
{
    int64_t groups = 0, best = 0;
    DSC_TRY(dsc_hf_int_or_null(reader, "n_group", DSC_MOE_EXPERTS_MAX, usual->groups, &groups));
    DSC_TRY(dsc_hf_int_or_null(reader, "topk_group", DSC_MOE_EXPERTS_MAX, usual->best_groups, &best));
    rule->groups = (int32_t)groups, rule->best_groups = (int32_t)best;
    return DSC_OK;
}

static dsc_status check_rule(dsc_hf_config *reader, const dsc_moe_rule *rule)
{
    if (dsc_moe_rule_is_valid(rule))
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                         "\"num_experts_per_tok\" %d of \"n_routed_experts\" %d with \"topk_group\" %d of "
                         "\"n_group\" %d is not possible; expected equal groups of 2 or more, at most %d of them, the "
                         "best of which have so many experts",
                         (int)rule->top_k, (int)rule->experts, (int)rule->best_groups, (int)rule->groups,
                         DSC_MOE_GROUPS_MAX);
}

/* The first layers have one MLP, and in the published code those between layers of experts. */
static dsc_status read_dense(dsc_hf_config *reader, int64_t usual, dsc_moe_config *out)
{
    int64_t first = 0, every = 1;
    DSC_TRY(read_count(reader, "first_k_dense_replace", INT32_MAX, usual, &first));
    DSC_TRY(dsc_hf_int(reader, "moe_layer_freq", DSC_LM_LAYERS_MAX, 1, &every));
    for (int64_t i = 0; i < out->decoder.lm.layers; i++)
        out->dense[i] = i < first || i % every != 0;
    return DSC_OK;
}

/* Layers that predict further tokens follow the model's layers in files; the model does not read them. */
static dsc_status read_later_layers(dsc_hf_config *reader, dsc_lm_config *lm)
{
    DSC_TRY(read_count(reader, "num_nextn_predict_layers", DSC_LM_LAYERS_MAX, 1, &lm->later_layers));
    return read_count(reader, "num_mtp_layers", DSC_LM_LAYERS_MAX, lm->later_layers, &lm->later_layers);
}

static dsc_status read_v2(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const defaults usual = { 64, 0, 1407, 2, 0, 0, 0, 1 };
    static const char *const methods[] = { "greedy", "group_limited_greedy", "gready" }; /* as first published */
    dsc_moe_config *out = moe_of(config);
    int32_t method = 0;
    bool renormalize = false;
    DSC_TRY(read_mla(reader, config));
    DSC_TRY(read_slots(reader, &usual, out));
    DSC_TRY(read_only(reader, "scoring_func", "softmax"));
    DSC_TRY(dsc_hf_choice(reader, "topk_method", methods, DSC_COUNT(methods), &method));
    DSC_TRY(read_groups(reader, &usual, &out->rule));
    if (method != 1)
        out->rule.groups = out->rule.best_groups = 0;
    DSC_TRY(dsc_hf_bool(reader, "norm_topk_prob", false, &renormalize));
    if (renormalize) /* transformers does not read the key, and the published code lets it replace the factor */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"norm_topk_prob\": true is not built for deepseek_v2; what exists: false");
    DSC_TRY(read_dense(reader, usual.first, out));
    return check_rule(reader, &out->rule);
}

/* Routers by sigmoids with a bias: those of DeepSeek-V3 and GLM-4.5. */
static dsc_status read_sigmoids(dsc_hf_config *reader, const defaults *usual, dsc_moe_config *out)
{
    dsc_moe_rule *rule = &out->rule;
    DSC_TRY(read_slots(reader, usual, out));
    DSC_TRY(read_only(reader, "scoring_func", "sigmoid"));
    DSC_TRY(read_only(reader, "topk_method", "noaux_tc"));
    DSC_TRY(read_groups(reader, usual, rule));
    DSC_TRY(dsc_hf_bool(reader, "norm_topk_prob", true, &rule->renormalize));
    rule->score = DSC_MOE_SIGMOID;
    rule->group_pairs = rule->groups > 1;
    DSC_TRY(read_dense(reader, usual->first, out));
    DSC_TRY(read_later_layers(reader, &out->decoder.lm));
    return check_rule(reader, rule);
}

static dsc_status read_v3(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const defaults usual = { 256, 8, 2048, 1, 8, 4, 3, 2.5 };
    DSC_TRY(read_mla(reader, config));
    DSC_TRY(dsc_hf_bool(reader, "rope_interleave", true, &config->rope.neighbours));
    return read_sigmoids(reader, &usual, moe_of(config));
}

static dsc_status read_glm(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const defaults usual = { 128, 8, 1408, 1, 1, 1, 1, 1 };
    config->out_bias = false; /* the key is of q, k and v */
    DSC_TRY(dsc_hf_bool(reader, "use_qk_norm", false, &moe_of(config)->head_norm));
    return read_sigmoids(reader, &usual, moe_of(config));
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

static void emit_latent(const dsc_block *block, const dsc_moe_config *config, int64_t layer)
{
    dsc_program *program = block->program;
    const dsc_block_mlp dense = dsc_decoder_mlp(&config->decoder);
    dsc_mla mla = config->mla;
    mla.rope = &config->decoder.rope;
    dsc_step step = dsc_block_begin(block, program->input, &(dsc_step_norms) { .before = "input_layernorm" });
    const int16_t x = dsc_block_end(block, &step, dsc_mla_attend(block, step.in, &mla), step.x);
    step = dsc_block_begin(block, x, &(dsc_step_norms) { .before = "post_attention_layernorm" });
    const int16_t part =
        config->dense[layer] ? dsc_block_feed(block, step.in, &dense) : dsc_moe_feed(block, config, step.in);
    dsc_program_end(program, dsc_block_end(block, &step, part, x));
}

/* x + attention(norm(x)), then x + experts(norm(x)), or an MLP. */
static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_moe_config *config = (const dsc_moe_config *)(const void *)base;
    const dsc_block block = dsc_decoder_block(program, &config->decoder);
    dsc_block_attention attention = dsc_decoder_attention(&config->decoder, layer);
    if (config->mla.kv_latent > 0) {
        emit_latent(&block, config, layer);
        return;
    }
    attention.q_norm = config->head_norm ? "self_attn.q_norm" : NULL;
    attention.k_norm = config->head_norm ? "self_attn.k_norm" : NULL;
    dsc_moe_emit(&block, config, layer, &attention);
}

/* ---- families ---------------------------------------------------------------------------------------------------- */

/* Defaults are those of Hugging Face's configuration classes. */
#define EXPERT_NAMES                                                                                                   \
    .router = "mlp.gate", DSC_MOE_EXPERT_NAMES,                                                                        \
    .whole = { "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj" }
#define MLA_TRAITS                                                                                                     \
    .activation = DSC_SILU, .head_size = 64, .head_size_key = "qk_rope_head_dim", .attention_bias = true,              \
    .window = DSC_WINDOW_NONE, .rope_neighbours = true
#define V3_TRAITS(name)                                                                                                \
    {                                                                                                                  \
        MLA_TRAITS, .architecture = "DeepseekV3ForCausalLM", .family = &dsc_##name##_family, .vocab = 129280,          \
                    .inner = 18432, .positions = 4096, .layers = 61, .channels = 7168, .heads = 128,                   \
                    .read_more = read_v3                                                                               \
    }
static const dsc_moe_traits traits_of_deepseek_v2 = { .decoder = { MLA_TRAITS,
                                                                   .architecture = "DeepseekV2ForCausalLM",
                                                                   .family = &dsc_deepseek_v2_family,
                                                                   .vocab = 102400,
                                                                   .inner = 11008,
                                                                   .positions = 2048,
                                                                   .mlp_bias = true,
                                                                   .read_more = read_v2 },
                                                      EXPERT_NAMES };
static const dsc_moe_traits traits_of_deepseek_v3 = { .decoder = V3_TRAITS(deepseek_v3),
                                                      EXPERT_NAMES,
                                                      .bias = "mlp.gate" };
static const dsc_moe_traits traits_of_kimi_k2 = { .decoder = V3_TRAITS(kimi_k2), EXPERT_NAMES, .bias = "mlp.gate" };
static const dsc_moe_traits traits_of_glm4_moe = { .decoder = { .activation = DSC_SILU,
                                                                .architecture = "Glm4MoeForCausalLM",
                                                                .family = &dsc_glm4_moe_family,
                                                                .vocab = 151552,
                                                                .inner = 10944,
                                                                .positions = 131072,
                                                                .layers = 46,
                                                                .channels = 4096,
                                                                .heads = 96,
                                                                .kv_heads = 8,
                                                                .has_head_size = true,
                                                                .attention_bias = true,
                                                                .norm_eps = 1e-5,
                                                                .partial = "partial_rotary_factor",
                                                                .partial_default = 0.5,
                                                                .window = DSC_WINDOW_NONE,
                                                                .read_more = read_glm },
                                                   EXPERT_NAMES,
                                                   .bias = "mlp.gate" };

/* PEFT has no defaults for these families: all products of the attention. */
static const char *const latent_layers[] = { "q_proj",             "q_a_proj",  "q_b_proj",
                                             "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                                             NULL };

#define FAMILY(name, layers)                                                                                           \
    static dsc_status read_##name(dsc_hf_config *reader, dsc_lm_config *out)                                           \
    {                                                                                                                  \
        ((dsc_moe_config *)(void *)out)->traits = &traits_of_##name;                                                   \
        return dsc_decoder_read_config(reader, out, &traits_of_##name.decoder);                                        \
    }                                                                                                                  \
    const dsc_lm_family dsc_##name##_family = { .model_type = #name,                                                   \
                                                .layers_key = "num_hidden_layers",                                     \
                                                .base = "model.",                                                      \
                                                .layer = "layers.",                                                    \
                                                .token_table = "embed_tokens.weight",                                  \
                                                .head_table = "lm_head.weight",                                        \
                                                .final_norm = "norm",                                                  \
                                                .norm = DSC_NORM_RMS,                                                  \
                                                .config_bytes = sizeof(dsc_moe_config),                                \
                                                .read_config = read_##name,                                            \
                                                .builtin = dsc_decoder_no_builtin,                                     \
                                                .emit_block = emit_block,                                              \
                                                .lora_layers = layers,                                                 \
                                                .may_ignore = dsc_decoder_may_ignore,                                  \
                                                .stacked = dsc_moe_stacked,                                            \
                                                .kept = ".e_score_correction_bias" };
FAMILY(deepseek_v2, latent_layers)
FAMILY(deepseek_v3, latent_layers)
FAMILY(kimi_k2, latent_layers)
FAMILY(glm4_moe, dsc_decoder_lora_layers)
