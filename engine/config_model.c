/* config_model.c - the model that the config names, with the adapters that it asks for.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/internal.h"
#include "engine/model.h"

/* The section "dsc.lora" as options of a model, and the lists that they point to. */
typedef struct lora_lists {
    const char *targets[DSC_CONFIG_TEXTS_MAX], *save[DSC_CONFIG_TEXTS_MAX], *exclude[DSC_CONFIG_TEXTS_MAX],
        *layers_pattern[DSC_CONFIG_TEXTS_MAX], *parameters[DSC_CONFIG_TEXTS_MAX];
    dsc_lora_value ranks[DSC_LORA_NUMBERS_MAX], alphas[DSC_LORA_NUMBERS_MAX];
    dsc_lora_options options;
} lora_lists;

static int32_t list_texts(const char *out[DSC_CONFIG_TEXTS_MAX], const char from[][DSC_CONFIG_TEXT], int count)
{
    for (int i = 0; i < count; i++)
        out[i] = from[i];
    return count;
}

static int32_t list_values(dsc_lora_value out[DSC_LORA_NUMBERS_MAX], const dsc_lora_pattern_config *from)
{
    for (int i = 0; i < from->count; i++)
        out[i] = (dsc_lora_value) { .pattern = from->pattern[i], .value = from->value[i] };
    return from->count;
}

static void list_lora(const dsc_lora_section *lora, lora_lists *out)
{
    dsc_lora_options *const to = &out->options;
    *to = (dsc_lora_options)DSC_LORA_OPTIONS_INIT;
    to->rank = lora->rank;
    to->alpha = lora->alpha;
    to->rank_stabilized = lora->rank_stabilized;
    to->dropout = lora->dropout;
    to->use_dora = lora->use_dora;
    to->adapter = lora->adapter[0] != 0 ? lora->adapter : NULL;
    to->targets = out->targets;
    if (lora->target_is_regex)
        to->target_regex = lora->targets[0];
    else
        to->target_count = list_texts(out->targets, lora->targets, lora->target_count);
    to->target_parameters = out->parameters;
    to->target_parameter_count = list_texts(out->parameters, lora->parameters, lora->parameter_count);
    to->exclude = out->exclude;
    if (lora->exclude_is_regex)
        to->exclude_regex = lora->exclude[0];
    else
        to->exclude_count = list_texts(out->exclude, lora->exclude, lora->exclude_count);
    to->modules_to_save = out->save;
    to->modules_to_save_count = list_texts(out->save, lora->save, lora->save_count);
    to->layers = lora->layers;
    to->layer_count = lora->layer_count;
    to->layers_pattern = out->layers_pattern;
    to->layers_pattern_count = list_texts(out->layers_pattern, lora->layers_pattern, lora->layers_pattern_count);
    to->rank_pattern = out->ranks;
    to->rank_pattern_count = list_values(out->ranks, &lora->rank_pattern);
    to->alpha_pattern = out->alphas;
    to->alpha_pattern_count = list_values(out->alphas, &lora->alpha_pattern);
}

dsc_status dsc_engine_open_config_model(const dsc_engine *engine, int64_t seq_length, bool want_weights,
                                        dsc_model **out, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    lora_lists lora;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.seq_length = seq_length;
    options.vocab_multiple = own->vocab_multiple;
    options.vocab_tokens = engine->input.grown_tokens;
    options.want_weights = want_weights;
    options.complete_weights = engine->config.unresolved.strict;
    options.documents = own->document_end >= 0 || dsc_engine_packs_examples(engine);
    options.mask_share = own->mlm.probability;
    if (own->dpo.enabled)
        options.preference = (dsc_preference) { own->dpo.beta, own->dpo.smoothing };
    const char *names[DSC_CONFIG_TEXTS_MAX];
    if (own->labels.enabled) {
        const int32_t count = list_texts(names, own->labels.name, own->labels.name_count);
        options.labels.wanted = true;
        options.labels.of_tokens = own->labels.problem > DSC_LABELS_SET;
        options.labels.kind = options.labels.of_tokens ? DSC_LABELS_CLASS : (dsc_label_kind)own->labels.problem;
        options.labels.count = count > 0 ? count : own->labels.count;
        options.labels.names = count > 0 ? names : NULL;
    }
    if (own->embedding.enabled) {
        options.labels.wanted = true;
        options.labels.kind = own->embedding.loss;
        options.labels.scale = own->embedding.scale;
        options.labels.pooling = own->embedding.pooling;
        options.labels.unit = own->embedding.unit;
    }
    const char *members[DSC_CONFIG_TEXTS_MAX];
    options.tensor_ranks = engine->stages.grid.tensor;
    options.tensor_rank = engine->stages.tensor_rank;
    dsc_engine_size_network(engine, &options.network);
    options.network.members = members;
    options.network.member_count = list_texts(members, own->ensemble, own->ensemble_count);
    options.router_balance = own->moe.balance;
    options.router_z = own->moe.z;
    list_lora(&own->lora, &lora);
    options.lora = own->lora.enabled ? &lora.options : NULL;
    return dsc_model_open(out, own->model, &options, err);
}
