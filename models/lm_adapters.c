/* lm_adapters.c - the low-rank adapters of a language model: their parameters, which layers have one, and their config.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/module_names.h"
#include "models/lm_parts.h"

/* It begins as the norms of the layer's weight: B is 0. */
static void add_magnitude(dsc_lm *lm, const lm_layer *layer)
{
    dsc_param_spec *magnitude = dsc_lm_add_param(lm, layer->name, DSC_LORA_MAGNITUDE, 0, layer->shape.out, 0);
    magnitude->init = layer->shape.out_in ? DSC_INIT_ROW_NORMS : DSC_INIT_COLUMN_NORMS;
    magnitude->shared_param = layer->weight;
    magnitude->split = layer->b_split == DSC_SPLIT_NONE ? DSC_SPLIT_NONE : DSC_SPLIT_COLUMN;
}

/* Whether a layer gets an adapter, by its name or by that of its weight; key <- the one that it is asked for by. */
static bool is_wanted(dsc_lm *lm, lm_layer *layer, const char *own, char name[3 * NAME_BYTES], char key[3 * NAME_BYTES])
{
    snprintf(name, (size_t)2 * NAME_BYTES, "%s%s", lm->prefix, own);
    snprintf(key, (size_t)3 * NAME_BYTES, "%.160s.weight", name);
    if (layer->shape.out_in && dsc_lora_wants_parameter(lm->lora, key)) {
        layer->named++;
        return true;
    }
    snprintf(key, (size_t)3 * NAME_BYTES, "%s", name);
    return !layer->by_parameter && dsc_lora_wants(lm->lora, name, lm->family->lora_layers);
}

/* Behind the module's own parameters, which are then not trained, those of its layers' adapters. First values as PEFT
 * makes them: B 0, so that the model starts as it was, and A uniform as PyTorch starts a linear layer. */
void dsc_lm_add_adapters(dsc_lm *lm, dsc_lora *out)
{
    *out = (dsc_lora) { .rank = lm->lora->rank,
                        .first = &lm->adapter_of[lm->first_param],
                        .ranks = &lm->adapter_rank[lm->first_param],
                        .scales = &lm->adapter_scale[lm->first_param],
                        .dropout = lm->lora->dropout,
                        .magnitudes = lm->lora->use_dora,
                        .first_param = lm->first_param };
    for (int32_t i = 0; i < lm->own_count; i++) {
        lm_layer *layer = &lm->layer[lm->own[i]];
        char own[NAME_BYTES], name[3 * NAME_BYTES], key[3 * NAME_BYTES];
        dsc_lm_name_adapter(lm, layer, own);
        if (!is_wanted(lm, layer, own, name, key))
            continue;
        const int64_t rank = dsc_lora_rank(lm->lora, key);
        layer->adapted++;
        out->rank = dsc_max_i64(out->rank, rank);
        out->widest = dsc_max_i64(out->widest, layer->shape.in);
        out->widest_out = dsc_max_i64(out->widest_out, layer->shape.out);
        lm->adapter_rank[lm->first_param + layer->weight] = (int32_t)rank;
        lm->adapter_scale[lm->first_param + layer->weight] = dsc_lora_scale(lm->lora, key);
        lm->adapter_of[lm->first_param + layer->weight] = (int32_t)(lm->param_count - lm->first_param);
        dsc_param_spec *a = dsc_lm_add_param(lm, own, "lora_A.weight", rank, layer->shape.in, 0);
        a->init = DSC_INIT_UNIFORM;
        a->init_std = (float)(1 / sqrt((double)layer->shape.in));
        a->split = layer->a_split;
        dsc_param_spec *b = dsc_lm_add_param(lm, own, "lora_B.weight", layer->shape.out, rank, 0);
        b->split = layer->b_split;
        if (lm->lora->use_dora)
            add_magnitude(lm, layer);
    }
}

/* Without the adapters' parameters and modules to save: all of a model that has adapters. A tied parameter is trained
 * as its owner is. */
void dsc_lm_freeze(dsc_lm *lm)
{
    for (int64_t i = 0; i < lm->param_count; i++)
        lm->params[i].trainable = lm->params[i].trainable && dsc_lora_saves(lm->lora, lm->params[i].name);
    for (int64_t m = 0; m < lm->module_count; m++) {
        dsc_param_spec *params = &lm->params[lm->modules[m].params - lm->params];
        for (int32_t i = 0; i < lm->modules[m].param_count; i++) {
            const int32_t a = lm->selves[m].lora.first[i];
            if (a > 0)
                params[a].trainable = params[a + 1].trainable = true;
            if (a > 0 && lm->lora->use_dora)
                params[a + 2].trainable = true;
        }
    }
}

static bool has_part_of(const dsc_lora_config *lora, int32_t i, const dsc_lm_family *family)
{
    char table[2 * NAME_BYTES];
    snprintf(table, sizeof table, "%s%s", family->base, family->token_table);
    return dsc_module_around(family->head_table, lora->saved[i]) != DSC_MODULE_OTHER ||
           dsc_module_around(table, lora->saved[i]) != DSC_MODULE_OTHER;
}

bool dsc_lm_trains_table(const dsc_lm_family *family, const dsc_lora_config *lora)
{
    bool trains = false;
    for (int32_t i = 0; i < lora->saved_count; i++)
        trains |= has_part_of(lora, i, family);
    return trains;
}

/* Each name of a module to save is that of a module. The table that head and embedding have in common is refused,
 * because PEFT trains copies of such a table. */
static dsc_status check_saved(const dsc_lm *lm, const char *model, dsc_error *err)
{
    const dsc_lora_config *lora = lm->lora;
    for (int32_t i = 0; i < lora->saved_count; i++) {
        if (lora->saved_partly[i])
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.lora.modules_to_save",
                            "\"%.100s\" is a part of a linear layer's name; expected whole names of modules, such as "
                            "\"lm_head\" or \"mlp\"",
                            lora->saved[i]);
        if (lm->config->tied && has_part_of(lora, i, lm->family))
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.lora.modules_to_save",
                            "\"%.100s\" is the table that head and embedding of %.200s have in common, of which PEFT "
                            "trains copies; that needs a folder with weights",
                            lora->saved[i], model);
        if (!lora->saved_used[i] && lora->weights == NULL) /* PEFT's own lists have names of other models' heads */
            return DSC_FAIL(
                err, DSC_ERR_INPUT, "dsc.lora.modules_to_save",
                "\"%.100s\" is the end of no module's name in %.200s; names are those before \".weight\" in "
                "its files, such as %.100s",
                lora->saved[i], model, lm->family->head_table);
    }
    return DSC_OK;
}

/* Each target parameter that was asked for is one that can have an adapter. */
static dsc_status check_parameters(const dsc_lm *lm, const char *model, dsc_error *err)
{
    char experts[256] = "";
    dsc_lm_list_experts(lm, experts, sizeof experts);
    for (int32_t i = 0; i < lm->lora->parameter_count; i++)
        if (!lm->lora->parameter_used[i])
            return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.target_parameters",
                            "\"%.100s\" is no parameter of %.200s that can have an adapter; expected tensors of "
                            "experts (%s), weights of linear layers as \"q_proj.weight\", or their whole names",
                            lm->lora->parameters[i], model, experts[0] != 0 ? experts : "this model has none");
    return DSC_OK;
}

/* Every name that was asked for is that of a layer. */
dsc_status dsc_lm_check_adapters(const dsc_lm *lm, const char *model, dsc_error *err)
{
    char list[256] = "";
    int64_t adapted = 0;
    for (int32_t i = 0; i < lm->all_layers; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", lm->layer[i].name);
        adapted += lm->layer[i].adapted;
    }
    adapted += lm->experts_adapted;
    DSC_TRY(dsc_lora_check(lm->lora, err));
    if (lm->lora->target_regex != NULL && adapted == 0)
        return DSC_FAIL(
            err, DSC_ERR_INPUT, "dsc.lora.target_modules",
            "a text is a regular expression for whole names, as in PEFT, and \"%.100s\" fits no layer of %.200s "
            "that can have an adapter; [\"q_proj\"] is a list of names or their ends; layers: %s",
            lm->lora->target_regex, model, list);
    for (int32_t i = 0; i < lm->lora->target_count; i++)
        if (!lm->lora->used[i])
            return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora.target_modules",
                            "\"%.100s\" is the name of no layer of %.200s that can have an adapter; expected "
                            "\"all-linear\" or names of linear layers: %s",
                            lm->lora->targets[i], model, list);
    if (lm->lora->weights == NULL)
        DSC_TRY(dsc_lora_check_used(lm->lora, model, err));
    DSC_TRY(check_parameters(lm, model, err));
    DSC_TRY(check_saved(lm, model, err));
    if (adapted == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.lora", "no layer of %.200s has an adapter; its linear layers are %s",
                        model, list);
    return DSC_OK;
}

/* Modules whose layer target_modules gives an adapter. PEFT takes some names for those of experts, and finds such
 * layers by target_parameters. */
static int64_t adapted_by_module(const dsc_lm *lm, const lm_layer *layer)
{
    return dsc_lora_is_fused(lm->lora, layer->name) ? 0 : layer->adapted - layer->named;
}

/* Whether PEFT, given the layers with adapters by their names in a module, adapts those and no others. */
static bool is_named_by_layers(const dsc_lm *lm)
{
    for (int32_t i = 0; i < lm->all_layers; i++) {
        const lm_layer *layer = &lm->layer[i];
        char name[2 * NAME_BYTES];
        snprintf(name, sizeof name, "%s%s", layer->prefix, layer->name);
        if (layer->adapted > layer->named && layer->adapted < layer->count)
            return false;
        for (int32_t k = 0; k < lm->all_layers && layer->adapted == 0; k++)
            if (adapted_by_module(lm, &lm->layer[k]) > 0 && dsc_lora_is_named(name, lm->layer[k].name))
                return false;
    }
    return true;
}

/* Names of layers for PEFT's config, of target_modules and of target_parameters. */
typedef struct lm_targets {
    const char **module, **parameter;
    lm_name *text;
    int64_t modules, parameters, texts;
} lm_targets;

/* A layer that was named by no parameter of the config's list. */
static void add_target(const dsc_lm *lm, lm_targets *out, const char *name)
{
    char *text = out->text[out->texts++];
    const bool fused = dsc_lora_is_fused(lm->lora, name);
    snprintf(text, NAME_BYTES, "%.72s%s", name, fused ? ".weight" : ""); /* A's name is longer */
    if (fused)
        out->parameter[out->parameters++] = text;
    else
        out->module[out->modules++] = text;
}

/* Whether an adapter's A belongs to a layer of target_modules. */
static bool is_of_module(dsc_lm *lm, const char *layer)
{
    char weight[2 * NAME_BYTES];
    bool linear = false;
    snprintf(weight, sizeof weight, "%s.weight", layer);
    for (int32_t k = 0; k < lm->all_layers; k++)
        linear |= !lm->layer[k].by_parameter && dsc_lora_is_named(layer, lm->layer[k].name);
    return linear && !dsc_lora_wants_parameter(lm->lora, weight);
}

/* Layers by their names in a module where that says it all, else by their whole names. */
static void list_targets(dsc_lm *lm, lm_targets *out)
{
    const bool same = is_named_by_layers(lm);
    for (int32_t i = 0; i < lm->all_layers && same; i++)
        if (lm->layer[i].adapted > lm->layer[i].named)
            add_target(lm, out, lm->layer[i].name);
    for (int64_t i = 0; i < lm->param_count && !same; i++) {
        const char *end = strstr(lm->params[i].name, ".lora_A.weight");
        char layer[NAME_BYTES];
        if (!lm->params[i].trainable || end == NULL)
            continue;
        snprintf(layer, sizeof layer, "%.*s", (int)(end - lm->params[i].name), lm->params[i].name);
        if (is_of_module(lm, layer))
            add_target(lm, out, layer);
    }
}

static dsc_status open_targets(const dsc_lm *lm, lm_targets *out, dsc_error *err)
{
    const int64_t most = lm->param_count + lm->all_layers;
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, most, sizeof *out->text, &out->text, err));
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, most, sizeof *out->module, &out->module, err));
    return dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, most, sizeof *out->parameter, &out->parameter, err);
}

static dsc_status write_targets(dsc_lm *lm, const char *base, const lm_targets *targets, dsc_error *err)
{
    const char *tables[LM_TABLES_MAX];
    char experts[2048];
    const int32_t table_count = dsc_lm_saved_tables(lm, tables);
    dsc_lm_print_experts(lm, experts, sizeof experts);
    const dsc_lora_text text = { .base = base,
                                 .tables = tables,
                                 .table_count = table_count,
                                 .names = targets->module,
                                 .count = targets->modules,
                                 .parameters = targets->parameter,
                                 .parameter_count = targets->parameters,
                                 .experts = experts,
                                 .task = lm->config->embeds                                    ? "FEATURE_EXTRACTION"
                                         : lm->config->classes > 0                             ? "SEQ_CLS"
                                         : lm->config->masked || lm->family->emit_last != NULL ? NULL
                                                                                               : "CAUSAL_LM",
                                 .in_out = !lm->layer[lm->block_layer].shape.out_in };
    return dsc_lora_write_config(lm->lora, lm->alloc, &text, &lm->adapter_json, err);
}

dsc_status dsc_lm_write_adapter_json(dsc_lm *lm, const char *base, dsc_error *err)
{
    lm_targets targets = { 0 };
    dsc_status status = open_targets(lm, &targets, err);
    if (status == DSC_OK) {
        list_targets(lm, &targets);
        status = lm->lora->parameter_count + targets.parameters > DSC_LORA_PARAMETERS_MAX
                     ? DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.lora.target_modules",
                                "%lld layers have names of experts' matrices, so that PEFT needs each of them in "
                                "target_parameters, and at most %d are read; adapt such layers of all blocks, or fewer",
                                (long long)(lm->lora->parameter_count + targets.parameters), DSC_LORA_PARAMETERS_MAX)
                     : write_targets(lm, base, &targets, err);
    }
    dsc_alloc_free(lm->alloc, targets.text);
    dsc_alloc_free(lm->alloc, (void *)targets.module);
    dsc_alloc_free(lm->alloc, (void *)targets.parameter);
    return status;
}
