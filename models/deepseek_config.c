/* deepseek_config.c - config.json of the families of deepseek.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/deepseek.h"

static dsc_moe_config *moe_of(dsc_decoder_config *config) { return (dsc_moe_config *)(void *)config; }

static dsc_status read_slots(dsc_hf_config *reader, dsc_moe_config *out)
{
    const dsc_deepseek_traits *usual = reader->traits;
    int64_t experts = 0, slots = 0, shared = 0;
    double factor = 1;
    DSC_TRY(dsc_hf_int(reader, "n_routed_experts", DSC_MOE_EXPERTS_MAX, usual->moe.experts, &experts));
    /* transformers' other name of it, which goes before it. */
    DSC_TRY(dsc_hf_int(reader, usual->moe.bias == NULL ? "num_experts" : "num_local_experts", DSC_MOE_EXPERTS_MAX,
                       experts, &experts));
    DSC_TRY(dsc_hf_int(reader, "num_experts_per_tok", DSC_MOE_TOP_K_MAX, usual->moe.top_k, &slots));
    if (slots == 0)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"num_experts_per_tok\" is missing; expected a whole number");
    DSC_TRY(dsc_hf_int(reader, "moe_intermediate_size", DSC_LM_INNER_MAX, usual->moe.moe_inner, &out->inner));
    DSC_TRY(dsc_hf_int(reader, "n_shared_experts", DSC_MOE_EXPERTS_MAX, usual->shared, &shared));
    DSC_TRY(dsc_hf_number(reader, "routed_scaling_factor", (dsc_hf_range) { 1e-9, 1e9 }, usual->factor, &factor));
    out->shared_inner = shared * out->inner;
    out->rule = (dsc_moe_rule) { .experts = (int32_t)experts, .top_k = (int32_t)slots, .factor = (float)factor };
    if (out->shared_inner > DSC_LM_INNER_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "%lld shared experts of %lld elements are more than %d elements",
                             (long long)shared, (long long)out->inner, DSC_LM_INNER_MAX);
    return DSC_OK;
}

static dsc_status read_groups(dsc_hf_config *reader, dsc_moe_rule *rule)
{
    const dsc_deepseek_traits *usual = reader->traits;
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
static dsc_status read_dense(dsc_hf_config *reader, dsc_moe_config *out)
{
    const dsc_deepseek_traits *usual = reader->traits;
    int64_t first = 0, every = 1;
    DSC_TRY(dsc_hf_int_from(reader, "first_k_dense_replace", 0, INT32_MAX, usual->first, &first));
    DSC_TRY(dsc_hf_int(reader, "moe_layer_freq", DSC_LM_LAYERS_MAX, 1, &every));
    for (int64_t i = 0; i < out->decoder.lm.layers; i++)
        out->dense[i] = i < first || i % every != 0;
    return DSC_OK;
}

dsc_status dsc_deepseek_read_v2(dsc_hf_config *reader, dsc_decoder_config *config)
{
    static const char *const methods[] = { "greedy", "group_limited_greedy", "gready" }; /* as first published */
    dsc_moe_config *out = moe_of(config);
    int32_t method = 0;
    bool renormalize = false;
    DSC_TRY(dsc_mla_read(reader, config, &out->mla));
    DSC_TRY(read_slots(reader, out));
    DSC_TRY(dsc_hf_only_word(reader, "scoring_func", "softmax"));
    DSC_TRY(dsc_hf_choice(reader, "topk_method", methods, DSC_COUNT(methods), &method));
    DSC_TRY(read_groups(reader, &out->rule));
    if (method != 1)
        out->rule.groups = out->rule.best_groups = 0;
    DSC_TRY(dsc_hf_bool(reader, "norm_topk_prob", false, &renormalize));
    if (renormalize) /* transformers does not read the key, and the published code lets it replace the factor */
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"norm_topk_prob\": true is not built for deepseek_v2; what exists: false");
    DSC_TRY(read_dense(reader, out));
    return check_rule(reader, &out->rule);
}

/* Routers by sigmoids with a bias: those of DeepSeek-V3 and GLM-4.5. Layers that predict further tokens follow the
 * model's layers in files; the model does not read them. */
static dsc_status read_sigmoids(dsc_hf_config *reader, dsc_moe_config *out)
{
    dsc_moe_rule *rule = &out->rule;
    int64_t *later = &out->decoder.lm.later_layers;
    DSC_TRY(read_slots(reader, out));
    DSC_TRY(dsc_hf_only_word(reader, "scoring_func", "sigmoid"));
    DSC_TRY(dsc_hf_only_word(reader, "topk_method", "noaux_tc"));
    DSC_TRY(read_groups(reader, rule));
    DSC_TRY(dsc_hf_bool(reader, "norm_topk_prob", true, &rule->renormalize));
    rule->score = DSC_MOE_SIGMOID;
    rule->group_pairs = rule->groups > 1;
    DSC_TRY(read_dense(reader, out));
    DSC_TRY(dsc_hf_int_from(reader, "num_nextn_predict_layers", 0, DSC_LM_LAYERS_MAX, 1, later));
    DSC_TRY(dsc_hf_int_from(reader, "num_mtp_layers", 0, DSC_LM_LAYERS_MAX, *later, later));
    return check_rule(reader, rule);
}

dsc_status dsc_deepseek_read_v3(dsc_hf_config *reader, dsc_decoder_config *config)
{
    DSC_TRY(dsc_mla_read(reader, config, &moe_of(config)->mla));
    DSC_TRY(dsc_hf_bool(reader, "rope_interleave", true, &config->rope.neighbours));
    return read_sigmoids(reader, moe_of(config));
}

dsc_status dsc_deepseek_read_glm(dsc_hf_config *reader, dsc_decoder_config *config)
{
    config->out_bias = false; /* the key is of q, k and v */
    DSC_TRY(dsc_hf_bool(reader, "use_qk_norm", false, &config->head_norm));
    return read_sigmoids(reader, moe_of(config));
}
