/* hunyuan.c - the dense Hunyuan and that of experts (Tencent 2025): Llama's block, where q and k are normalised once
 * they have turned. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "models/moe.h"

/* A dynamic scaling that has "alpha" stretches theta once, whatever the length of a text. */
static dsc_status read_alpha(dsc_hf_config *reader, dsc_decoder_config *config)
{
    const cJSON *const root = reader->object;
    dsc_rope *rope = &config->rope;
    const cJSON *object = dsc_hf_field(reader, "rope_scaling");
    double alpha = 0;
    if (object == NULL || object->child == NULL)
        object = dsc_hf_field(reader, "rope_parameters");
    if (rope->kind != DSC_ROPE_DYNAMIC || object == NULL)
        return DSC_OK;
    reader->object = object;
    const dsc_status status = dsc_hf_number_or_null(reader, "alpha", (dsc_hf_range) { 0, 1e9 }, 0, &alpha);
    reader->object = root;
    DSC_TRY(status);
    if (alpha == 0)
        return DSC_OK;
    const double size = (double)config->head_size;
    if (size <= 2 || (alpha > 0 && alpha < 1e-6))
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "rotary positions with \"alpha\" %g and heads of %lld "
                             "elements are not built; what exists: 1e-06 and more, heads of 4 and more", alpha,
                             (long long)config->head_size);
    *rope = (dsc_rope) { .kind = DSC_ROPE_DEFAULT, .theta = rope->theta * pow(alpha, size / (size - 2)) };
    dsc_rope_set(rope, config->head_size);
    return DSC_OK;
}

static dsc_status read_more(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const struct { const char *key; bool value; } only[] = { { "use_qk_norm", true },
                                                                     { "mlp_bias", false },
                                                                     { "use_cla", false },
                                                                     { "position_embedding_xdrope", false },
                                                                     { "use_rotary_pos_emb", true } };
    for (size_t i = 0; i < DSC_COUNT(only); i++) {
        bool is = false;
        DSC_TRY(dsc_hf_bool(reader, only[i].key, only[i].value, &is));
        if (is != only[i].value)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": %s is not built; what exists: %s", only[i].key,
                                 is ? "true" : "false", is ? "false" : "true");
    }
    DSC_TRY(read_alpha(reader, config));
    return dsc_lm_read_padding(reader, 0, &config->lm);
}

static const dsc_decoder_traits traits = {
    .activation = DSC_SILU, .family = &dsc_hunyuan_family, .vocab = 290943, .inner = 11008, .positions = 2048,
    .has_head_size = true, .attention_bias = true, .norm_eps = 1e-5, .read_more = read_more
};

static void emit_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_decoder_config *config = dsc_decoder_config_of(base);
    const dsc_block block = dsc_decoder_block(program, config);
    dsc_block_attention attention = dsc_decoder_attention(config, layer);
    const dsc_block_mlp mlp = dsc_decoder_mlp(config);
    attention.q_norm = "self_attn.query_layernorm";
    attention.k_norm = "self_attn.key_layernorm";
    attention.norm_turned = true;
    dsc_decoder_emit(&block, &attention, &mlp);
}

const dsc_lm_family dsc_hunyuan_family = { DSC_DECODER_BY_TRAITS("hunyuan_v1_dense", traits), .norm = DSC_NORM_RMS,
                                           .emit_block = emit_block, .lora_layers = dsc_decoder_lora_layers };

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* A whole number, or a list of the same for each layer. */
static dsc_status read_same(dsc_hf_config *reader, const char *key, int64_t max, int64_t *out)
{
    const cJSON *list = dsc_hf_field(reader, key), *item = NULL;
    int64_t each = 0, count = 0;
    if (!cJSON_IsArray(list))
        return dsc_hf_int(reader, key, max, 1, out);
    cJSON_ArrayForEach(item, list)
    {
        if (!dsc_json_integer(item, 1, max, &each))
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be whole numbers from 1 to %lld", key,
                                 (long long)max);
        if (count++ > 0 && each != *out)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "\"%s\" with %lld and %lld is not built; what exists: the same for all layers", key,
                                 (long long)*out, (long long)each);
        *out = each;
    }
    return count > 0 ? DSC_OK : DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" is empty", key);
}

static dsc_status read_experts(dsc_hf_config *reader, dsc_decoder_config *config)
{
    dsc_moe_config *out = (dsc_moe_config *)(void *)config;
    int64_t experts = 1, slots = 1, inner = 0, whole = 0;
    DSC_TRY(read_more(reader, config));
    DSC_TRY(read_same(reader, "num_experts", DSC_MOE_EXPERTS_MAX, &experts));
    DSC_TRY(read_same(reader, "moe_topk", DSC_MOE_TOP_K_MAX, &slots));
    if (slots > experts)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"moe_topk\" %lld is more than the %lld experts", (long long)slots,
                             (long long)experts);
    out->inner = out->shared_inner = config->inner;
    if (dsc_hf_field(reader, "moe_intermediate_size") != NULL) {
        DSC_TRY(read_same(reader, "moe_intermediate_size", DSC_LM_INNER_MAX, &inner));
        if (inner != config->inner)
            return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                                 "\"moe_intermediate_size\" %lld beside \"intermediate_size\" %lld is not built; what "
                                 "exists: the same",
                                 (long long)inner, (long long)config->inner);
    }
    if (dsc_hf_field(reader, "num_shared_expert") != NULL)
        DSC_TRY(read_same(reader, "num_shared_expert", DSC_MOE_EXPERTS_MAX, &whole));
    if (whole > 1)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"num_shared_expert\" %lld is not built; what exists: 1",
                             (long long)whole);
    out->rule = (dsc_moe_rule) { .experts = (int32_t)experts,
                                 .top_k = (int32_t)slots,
                                 .score = DSC_MOE_SOFTMAX,
                                 .renormalize = true,
                                 .factor = 1 };
    return DSC_OK;
}

static const dsc_moe_traits moe_traits = {
    .decoder = { .activation = DSC_SILU,
                 .architecture = "HunYuanMoEV1ForCausalLM",
                 .family = &dsc_hunyuan_moe_family,
                 .vocab = 290943,
                 .inner = 11008,
                 .positions = 2048,
                 .has_head_size = true,
                 .attention_bias = true,
                 .norm_eps = 1e-5,
                 .read_more = read_experts },
    .router = "mlp.gate.wg",
    DSC_MOE_EXPERT_NAMES,
    .whole = { "mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj", "mlp.shared_mlp.down_proj" }
};

static void emit_moe_block(dsc_program *program, const dsc_lm_config *base, int64_t layer)
{
    const dsc_moe_config *config = (const dsc_moe_config *)(const void *)base;
    const dsc_block block = dsc_decoder_block(program, &config->decoder);
    dsc_block_attention attention = dsc_decoder_attention(&config->decoder, layer);
    attention.q_norm = "self_attn.query_layernorm";
    attention.k_norm = "self_attn.key_layernorm";
    attention.norm_turned = true;
    dsc_moe_emit(&block, config, layer, &attention);
}

static dsc_status read_moe_config(dsc_hf_config *reader, dsc_lm_config *out)
{
    ((dsc_moe_config *)(void *)out)->traits = &moe_traits;
    return dsc_decoder_read_config(reader, out, &moe_traits.decoder);
}

const dsc_lm_family dsc_hunyuan_moe_family = { .model_type = "hunyuan_v1_moe",
                                               .layers_key = "num_hidden_layers",
                                               .base = "model.",
                                               .layer = "layers.",
                                               .token_table = "embed_tokens.weight",
                                               .head_table = "lm_head.weight",
                                               .final_norm = "norm",
                                               .norm = DSC_NORM_RMS,
                                               .config_bytes = sizeof(dsc_moe_config),
                                               .read_config = read_moe_config,
                                               .builtin = dsc_decoder_no_builtin,
                                               .emit_block = emit_moe_block,
                                               .lora_layers = dsc_decoder_lora_layers,
                                               .may_ignore = dsc_decoder_may_ignore,
                                               .stacked = dsc_moe_stacked };
