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
    DSC_TRY(dsc_hf_only(reader, "use_qk_norm", true));
    DSC_TRY(dsc_hf_only(reader, "mlp_bias", false));
    DSC_TRY(dsc_hf_only(reader, "use_cla", false));
    DSC_TRY(dsc_hf_only(reader, "position_embedding_xdrope", false));
    DSC_TRY(dsc_hf_only(reader, "use_rotary_pos_emb", true));
    DSC_TRY(read_alpha(reader, config));
    return dsc_lm_read_padding(reader, 0, &config->lm);
}

#define HUNYUAN_TRAITS                                                                                                 \
    .activation = DSC_SILU, .vocab = 290943, .inner = 11008, .positions = 2048, .has_head_size = true,                 \
    .attention_bias = true, .head_norm = true, .q_norm = "self_attn.query_layernorm",                                  \
    .k_norm = "self_attn.key_layernorm", .norm_turned = true, .norm_eps = 1e-5

static const dsc_decoder_traits traits = { HUNYUAN_TRAITS, .family = &dsc_hunyuan_family, .read_more = read_more };

const dsc_lm_family dsc_hunyuan_family = { DSC_DECODER_RMS("hunyuan_v1_dense", traits) };

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* A whole number, or a list of the same for each layer. */
static dsc_status read_same(dsc_hf_config *reader, const char *key, int64_t max, int64_t *out)
{
    const cJSON *list = dsc_hf_field(reader, key), *item = NULL;
    int64_t each = 0, count = 0;
    if (!cJSON_IsArray(list))
        return dsc_hf_int(reader, key, max, *out, out);
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
    /* The names that transformers' models of experts have in common are taken before a family's own. */
    DSC_TRY(read_same(reader, "num_local_experts", DSC_MOE_EXPERTS_MAX, &experts));
    DSC_TRY(read_same(reader, "num_experts_per_tok", DSC_MOE_TOP_K_MAX, &slots));
    DSC_TRY(dsc_moe_set_rule(reader, out, "moe_topk", experts, slots));
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
    return DSC_OK;
}

static const dsc_moe_traits moe_traits = {
    .decoder = { HUNYUAN_TRAITS, .family = &dsc_hunyuan_moe_family, .read_more = read_experts },
    .router = "mlp.gate.wg", DSC_MOE_EXPERT_NAMES, .whole = DSC_MOE_WHOLE_NAMES("mlp.shared_mlp")
};

const dsc_lm_family dsc_hunyuan_moe_family = { DSC_MOE_FAMILY("hunyuan_v1_moe", moe_traits),
                                               .lora_layers = dsc_decoder_lora_layers };
