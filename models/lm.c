/* lm.c - a language model as a list of modules, its parameters with Hugging Face's names, and their first values.
 *
 * One block of control memory per array; every pointer in the dsc_model points into them. Weight decay applies to every
 * parameter: DeepSpeed decays all that it is given, and dsc.param_groups takes parameters out.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/lm_parts.h"
#include "models/mxfp4.h"
#include "models/wrapper.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_JSON_BYTES 4096
#define BLOCK_LAYERS_MAX (LINEARS_MAX - 2) /* the embedding and the transform have one each */

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

dsc_param_spec *dsc_lm_add_param(dsc_lm *lm, const char *name, const char *part, int64_t rows, int64_t cols, double std)
{
    char *text = lm->names[lm->module_count + lm->param_count];
    dsc_param_spec *spec = &lm->params[lm->param_count++];
    const size_t length = strlen(name);
    const bool joined = part[0] == 0 || (length > 0 && name[length - 1] == '_'); /* "in_proj_weight" of torch */
    const int bytes = snprintf(text, NAME_BYTES, "%s%s%s%s", lm->prefix, name, joined ? "" : ".", part);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes < NAME_BYTES);
    const bool vector = rows == 0;
    *spec = (dsc_param_spec){ .name = text,
                              .dim_count = vector ? 1 : 2,
                              .dim = { vector ? cols : rows, vector ? 0 : cols },
                              .init = std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                              .init_std = (float)std,
                              .trainable = true,
                              .decay = true,
                              .split = DSC_SPLIT_NONE,
                              .shared_module = -1,
                              .shared_param = -1 };
    return spec;
}

/* One of the blocks' layers under this name, else a new one; NULL: there is no more room. */
static lm_layer *find_layer(dsc_lm *lm, const char *name, bool in_block)
{
    int32_t i = in_block ? lm->block_layer : lm->all_layers;
    while (i < lm->all_layers && strcmp(lm->layer[i].name, name) != 0)
        i++;
    if (i >= LINEARS_MAX || lm->own_count >= LINEARS_MAX)
        return NULL;
    lm->all_layers = (int32_t)dsc_max_i64(lm->all_layers, i + 1);
    lm->own[lm->own_count++] = i;
    lm->layer[i].name = name;
    return &lm->layer[i];
}

/* A linear layer of the module in hand. Tensor parallelism cuts its output or its input, or neither. */
static lm_layer *add_layer(dsc_lm *lm, const dsc_program_layer *of, bool in_block)
{
    lm_layer *layer = find_layer(lm, of->name, in_block);
    DSC_ASSERT(layer != NULL); /* count_params has checked the blocks' */
    memcpy(layer->prefix, lm->prefix, sizeof layer->prefix);
    layer->shape = of->shape;
    layer->a_split = of->out_split || of->whole ? DSC_SPLIT_NONE : DSC_SPLIT_COLUMN;
    layer->b_split = of->out_split && !of->whole ? DSC_SPLIT_ROW : DSC_SPLIT_NONE;
    layer->weight = of->weight;
    layer->by_parameter = of->by_parameter;
    layer->count++;
    return layer;
}

static void add_buffer(dsc_lm *lm, const dsc_program_buffer *of)
{
    char *text = lm->buffer_names[lm->buffer_count];
    const int bytes = snprintf(text, NAME_BYTES, "%s%s%s%s", lm->prefix, of->name, of->part[0] != 0 ? "." : "",
                               of->part);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes < NAME_BYTES);
    lm->buffers[lm->buffer_count++] = (dsc_buffer_spec) {
        .name = text, .kind = of->kind, .count = of->count, .init = of->init, .momentum = of->momentum, .row = of->row
    };
}

static void add_program_param(dsc_lm *lm, const dsc_program_param *param)
{
    lm_name prefix;
    memcpy(prefix, lm->prefix, sizeof prefix);
    if (param->in_base)
        snprintf(lm->prefix, NAME_BYTES, "%s", lm->family->base);
    dsc_param_spec *spec = dsc_lm_add_param(lm, param->name, param->part, 0, param->dim[0], param->std);
    memcpy(lm->prefix, prefix, sizeof prefix);
    spec->dim_count = param->dim_count;
    memcpy(spec->dim, param->dim, sizeof spec->dim);
    spec->init = param->init;
    spec->split = param->split;
    spec->parted = param->parted;
    spec->as_stored = param->as_stored;
    spec->experts = param->experts;
    spec->laid_late = param->laid_late;
    spec->trainable = !param->frozen;
    spec->part = param->share;
    if (param->tied) {
        spec->shared_module = 0;
        spec->shared_param = DSC_LM_TOKEN_TABLE;
    }
}

static bool is_block(const dsc_lm *lm, int64_t layer) { return layer >= 0 && layer < lm->config->layers; }

/* The parameters, layers and buffers that a program has. */
static void add_program(dsc_lm *lm, int64_t layer)
{
    dsc_program *program = lm->source;
    dsc_lm_describe_module(lm, layer, NULL, program);
    DSC_ASSERT(program->status == DSC_OK); /* as when it was counted */
    for (int32_t i = 0; i < program->param_count; i++)
        add_program_param(lm, &program->param[i]);
    for (int32_t i = 0; i < program->module_buffer_count; i++)
        add_buffer(lm, &program->module_buffer[i]);
    for (int32_t i = 0; i < program->layer_count; i++)
        if (!program->layer[i].no_adapter)
            add_layer(lm, &program->layer[i], is_block(lm, layer));
    (void)dsc_lm_find_experts(lm, program);
}

/* The beginning of the names of a layer's parameters. */
static void set_prefix(dsc_lm *lm, int64_t layer)
{
    const dsc_lm_family *family = lm->family;
    const bool transform = layer >= lm->config->layers && layer < lm->module_count - 2;
    if (family->name_block != NULL) {
        char name[NAME_BYTES - 1];
        family->name_block(lm->config, layer, name, sizeof name);
        snprintf(lm->prefix, NAME_BYTES, "%s%s", name, name[0] != 0 ? "." : "");
    } else if (is_block(lm, layer))
        snprintf(lm->prefix, NAME_BYTES, "%s%s%lld.", family->base, family->layer, (long long)layer);
    else
        snprintf(lm->prefix, NAME_BYTES, "%s", layer < 0 || (transform && !lm->config->masked) ? family->base : "");
}

static void name_module(const dsc_lm *lm, int64_t layer, char *out)
{
    if (is_block(lm, layer))
        snprintf(out, NAME_BYTES, "h.%lld", (long long)layer);
    else
        snprintf(out, NAME_BYTES, "%s", layer < 0 ? "embedding" : layer < lm->module_count - 2 ? "transform" : "head");
}

/* Only a look-up alone reads no parameter in backward. Labels of texts are all counted. */
static uint32_t flags_of(const dsc_lm *lm, int64_t layer)
{
    const dsc_lm_family *family = lm->family;
    const dsc_lm_config *config = lm->config;
    if (layer < 0)
        return family->emit_first == NULL && family->embed_norm == NULL && !dsc_lm_projects(config)
                   ? DSC_MODULE_BACKWARD_WITHOUT_PARAMS
                   : 0;
    if (is_block(lm, layer))
        return family->begin_block == NULL ? DSC_MODULE_FP8 : 0;
    if (layer < lm->module_count - 2)
        return 0;
    return DSC_MODULE_LOSS | (config->classes > 0 && !config->of_tokens ? 0 : DSC_MODULE_MASKS_TARGETS);
}

static void describe_modules(dsc_lm *lm)
{
    lm->param_count = lm->buffer_count = 0;
    for (int64_t i = 0; i < lm->module_count; i++) {
        dsc_module *module = &lm->modules[i];
        const int64_t first = lm->param_count, first_buffer = lm->buffer_count;
        lm->selves[i] = (dsc_lm_module) { .family = lm->family, .config = lm->config, .layer = i - 1 };
        *module = (dsc_module) { .struct_bytes = sizeof *module,
                                 .name = lm->names[i],
                                 .self = &lm->selves[i],
                                 .params = &lm->params[first],
                                 .flags = flags_of(lm, i - 1) };
        lm->first_param = first;
        lm->own_count = lm->own_experts_count = 0;
        if (i == 1)
            lm->block_layer = lm->all_layers;
        name_module(lm, i - 1, lm->names[i]);
        set_prefix(lm, i - 1);
        add_program(lm, i - 1);
        dsc_lm_module_init(module);
        if (lm->lora != NULL) {
            dsc_lm_add_adapters(lm, &lm->selves[i].lora);
            dsc_lm_add_expert_adapters(lm, &lm->selves[i].lora);
        }
        module->param_count = (int32_t)(lm->param_count - first);
        module->buffer_count = (int32_t)(lm->buffer_count - first_buffer);
        module->buffers = module->buffer_count > 0 ? &lm->buffers[first_buffer] : NULL;
    }
    if (lm->lora != NULL)
        dsc_lm_freeze(lm);
}

/* How many parameters and linear layers all modules have, without adapters. */
typedef struct lm_counts {
    int64_t params, layers, buffers;
} lm_counts;

static dsc_status count_block_layers(dsc_lm *lm, const dsc_program *program, dsc_error *err)
{
    lm->own_count = 0;
    for (int32_t i = 0; i < program->layer_count; i++)
        if (!program->layer[i].no_adapter &&
            (find_layer(lm, program->layer[i].name, true) == NULL || lm->all_layers > BLOCK_LAYERS_MAX))
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, lm->name,
                            "the blocks have linear layers of more than %d names; give equal layers equal names",
                            BLOCK_LAYERS_MAX);
    return DSC_OK;
}

/* Describes each program, as blocks can differ, for the first failure of one and for the counts. */
static dsc_status count_params(dsc_lm *lm, lm_counts *counts, dsc_error *err)
{
    *counts = (lm_counts) { 0 };
    for (int64_t i = -1; i < lm->module_count - 1; i++) {
        const dsc_program *program = lm->source;
        dsc_lm_describe_module(lm, i, NULL, lm->source);
        if (program->status != DSC_OK) {
            if (err != NULL)
                *err = program->err;
            return program->status;
        }
        counts->params += program->param_count;
        counts->buffers += program->module_buffer_count;
        const int32_t experts = dsc_lm_find_experts(lm, program);
        counts->layers += program->layer_count + experts;
        if (experts > 0) {
            memcpy(lm->known_experts, lm->own_experts, sizeof lm->known_experts);
            lm->known_experts_count = experts;
        }
        if (is_block(lm, i))
            DSC_TRY(count_block_layers(lm, program, err));
    }
    lm->all_layers = 0;
    return dsc_lm_fuse_targets(lm, err);
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void free_all(dsc_lm *lm)
{
    dsc_alloc *alloc = lm->alloc;
    void *const all[] = { (void *)lm->sources,
                          lm->names,
                          lm->params,
                          lm->buffers,
                          lm->buffer_names,
                          (void *)lm->buffer_sources,
                          lm->modules,
                          lm->selves,
                          lm->adapter_of,
                          lm->adapter_json,
                          lm->warnings,
                          lm->config_json,
                          lm->config,
                          lm->name,
                          lm->all_warnings,
                          lm->adapter_rank,
                          lm->adapter_scale,
                          lm->means[0].sum,
                          lm->means[1].sum,
                          lm->means[2].sum,
                          lm->packed,
                          lm->source,
                          (void *)(uintptr_t)lm->label_names,
                          lm };
    dsc_mxfp4_close(&lm->mxfp4);
    for (int64_t i = 0; lm->programs != NULL && lm->programs[i] != NULL; i++) {
        dsc_alloc_free(alloc, lm->programs[i]->layouts);
        dsc_alloc_free(alloc, lm->programs[i]);
    }
    dsc_alloc_free(alloc, (void *)lm->programs);
    for (int64_t i = 0; lm->parts != NULL && i < lm->param_count; i++)
        dsc_alloc_free(alloc, lm->parts[i]);
    dsc_alloc_free(alloc, (void *)lm->parts);
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        dsc_alloc_free(alloc, all[i]);
}

static void close_model(dsc_model *model)
{
    dsc_lm *lm = model->self;
    dsc_alloc *alloc = lm->alloc;
    dsc_weights_close(&lm->weights);
    dsc_weights_close(&lm->adapter);
    pthread_mutex_destroy(&lm->means_lock);
    dsc_wrapper_carried_close(&lm->carried);
    free_all(lm);
    dsc_alloc_close(&alloc);
}

/* The file holds V rows of a table, or fewer of one that grows; rows of padding, which no token reaches, are 0. */
static dsc_status load_param(const dsc_model *model, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    dsc_lm *lm = model->self;
    const dsc_param_spec *spec = &lm->modules[module].params[param];
    const dsc_weight *source = lm->sources != NULL ? lm->sources[spec - lm->params] : NULL;
    *found = source != NULL;
    if (!*found)
        return DSC_OK;
    if (spec->parted)
        return dsc_lm_read_parts(spec, lm->parts[spec - lm->params], first, count, out, err);
    if (lm->mxfp4 != NULL && dsc_mxfp4_has(lm->mxfp4, spec - lm->params))
        return dsc_mxfp4_read(lm->mxfp4, spec - lm->params, first, count, out, err);
    const dsc_packed_weight *packed = &lm->packed[spec - lm->params];
    const bool is_packed = source == packed->codes;
    const int64_t elements = is_packed ? packed->count : source->entry->count;
    const int64_t in_file = dsc_max_i64(0, dsc_min_i64(count, elements - first));
    if (in_file > 0 && is_packed)
        DSC_TRY(dsc_packed_weight_read_f32(packed, first, in_file, out, err));
    else if (in_file > 0)
        DSC_TRY(dsc_weight_read_f32(source, first, in_file, out, err));
    for (int64_t i = in_file; i < count; i++)
        out[i] = 0;
    return in_file < count ? dsc_lm_fill_grown(lm, spec, source, (lm_span) { first, in_file, count }, out, err)
                           : DSC_OK;
}

static dsc_status load_packed(const dsc_model *model, int32_t module, int32_t param, dsc_packed_part part,
                              int64_t first, int64_t bytes, void *out, bool *found, dsc_error *err)
{
    const dsc_lm *lm = model->self;
    const dsc_param_spec *spec = &lm->modules[module].params[param];
    const dsc_packed_weight *packed = lm->packed != NULL ? &lm->packed[spec - lm->params] : NULL;
    *found = packed != NULL && packed->codes != NULL;
    return *found ? dsc_packed_weight_read(packed, part, first, bytes, out, err) : DSC_OK;
}

/* All matrices in 4 bits have scales of one kind, and the others stay as they are in the files. */
static dsc_status check_packed(dsc_lm *lm, const dsc_weights *weights, dsc_error *err)
{
    for (int64_t i = 0; i < lm->param_count; i++) {
        const dsc_packed_weight *packed = &lm->packed[i];
        const dsc_packed_files kind = packed->codes == NULL  ? DSC_PACKED_NOT
                                      : packed->tops == NULL ? DSC_PACKED_SINGLE
                                                             : DSC_PACKED_DOUBLE;
        const bool unpacked = kind == DSC_PACKED_NOT || packed->turned > 0; /* in memory */
        lm->params[i].as_stored |= lm->packed_files != DSC_PACKED_NOT && unpacked;
        if (kind != DSC_PACKED_NOT && kind != lm->packed_files)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights),
                            "weight \"%.150s\" is in 4 bits %s double quantization, and \"quantization_config\" of "
                            "config.json says otherwise (load_in_4bit, bnb_4bit_use_double_quant)",
                            packed->codes->name, kind == DSC_PACKED_DOUBLE ? "with" : "without");
    }
    return DSC_OK;
}

static dsc_status write_config_json(dsc_lm *lm, dsc_error *err)
{
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, CONFIG_JSON_BYTES, 1, &lm->config_json, err));
    const int bytes = lm->family->write_config(lm->config, lm->config_json, CONFIG_JSON_BYTES);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes < CONFIG_JSON_BYTES);
    return DSC_OK;
}

/* A last module that is a program classifies each sample, or each of several items. */
static dsc_labels labels_of(const dsc_lm *lm)
{
    const dsc_lm_config *config = lm->config;
    if (lm->family->emit_last != NULL && (lm->losses > 1 || config->vocab > DSC_LABELS_MAX))
        return (dsc_labels) { 0 };
    if (lm->family->emit_last != NULL)
        return (dsc_labels) { .kind = DSC_LABELS_CLASS, .count = config->vocab, .smooths = true };
    return (dsc_labels) { .kind = config->label_kind,
                          .count = config->classes,
                          .names = lm->label_names,
                          .last = config->embeds ? config->pooling != DSC_POOLING_FIRST
                                                 : config->pools_mean || !config->masked,
                          .segments = config->takes_segments,
                          .tokens = config->of_tokens ? config->sequence : 0,
                          .smooths = config->label_kind == DSC_LABELS_CLASS && config->classes > 0 };
}

static void fill_model(dsc_lm *lm)
{
    const dsc_lm_config *config = lm->config;
    const bool labels = config->classes > 0;
    static const char *const names[] = { "tokens", DSC_BATCH_TARGETS, DSC_BATCH_POSITIONS };
    const bool three = config->documents || config->masked || config->preference.beta > 0;
    const int count = labels  ? dsc_lm_describe_labels(config, lm->batch)
                      : three ? DSC_LM_POSITIONS + 1
                              : DSC_LM_POSITIONS;
    for (int i = 0; i < count && !labels; i++)
        lm->batch[i] = (dsc_batch_spec) { .name = names[i],
                                          .dtype = DSC_I32,
                                          .dim_count = 1,
                                          .dim = { i == DSC_LM_TARGETS ? lm->losses : config->sequence } };
    if (dsc_lm_has_data(config))
        lm->batch[DSC_LM_TOKENS] = config->data;
    if (config->masked && !labels)
        lm->batch[DSC_LM_PREDICTED] =
            (dsc_batch_spec) { .name = DSC_BATCH_PREDICTED, .dtype = DSC_I32, .dim_count = 1, .dim = { lm->losses } };
    if (config->preference.beta > 0)
        lm->batch[DSC_LM_REFERENCE] =
            (dsc_batch_spec) { .name = DSC_BATCH_REFERENCE, .dtype = DSC_F64, .dim_count = 1, .dim = { 1 } };
    lm->model = (dsc_model) { .struct_bytes = sizeof lm->model,
                              .name = lm->name,
                              .module_count = (int32_t)lm->module_count,
                              .modules = lm->modules,
                              .batch_count = count,
                              .batch = lm->batch,
                              .losses_per_sample = lm->losses,
                              .hidden_size = config->channels,
                              .vocab_size = config->vocab,
                              .seq_length = dsc_lm_has_data(config) ? 0 : config->sequence,
                              .self = lm,
                              .load_param = load_param,
                              .packed_files = lm->packed_files,
                              .load_packed = load_packed,
                              .close = close_model,
                              .config_json = lm->config_json,
                              .warnings = lm->all_warnings != NULL ? lm->all_warnings : lm->warnings,
                              .text_positions =
                                  config->masked || labels || lm->family->emit_last != NULL ? 0 : config->positions,
                              .adapter_json = lm->adapter_json,
                              .preference = config->preference,
                              .experts = lm->experts,
                              .carried = lm->carried != NULL ? &lm->carried->model : NULL,
                              .show_module = dsc_lm_show_module,
                              .labels = labels_of(lm),
                              .load_buffer = lm->buffer_count > 0 ? dsc_lm_load_buffer : NULL,
                              .tensor_ranks = config->ranks.count,
                              .tensor_rank = config->ranks.own };
}

static dsc_status find_sources(dsc_lm *lm, const dsc_lm_open_args *args, dsc_error *err)
{
    const dsc_weights *adapter = args->lora != NULL ? args->lora->weights : NULL;
    char warnings[4096];
    snprintf(warnings, sizeof warnings, "%s", args->warnings != NULL ? args->warnings : "");
    const size_t before = strlen(warnings);
    if (args->weights == NULL && adapter == NULL)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, lm->param_count, sizeof *lm->sources, &lm->sources, err));
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, lm->param_count, sizeof *lm->packed, &lm->packed, err));
    DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, lm->param_count, sizeof *lm->parts, &lm->parts, err));
    if (lm->buffer_count > 0)
        DSC_TRY(dsc_alloc_zeroed(lm->alloc, DSC_TAG_CONTROL, lm->buffer_count, sizeof *lm->buffer_sources,
                                 &lm->buffer_sources, err));
    if (args->mxfp4)
        DSC_TRY(dsc_mxfp4_open(&lm->mxfp4, lm->alloc, lm->param_count, err));
    const dsc_lm_params params = { lm->family,     lm->config,   lm->params, lm->param_count, args->lora != NULL,
                                   args->complete, args->untied, lm->packed, lm->parts,       lm->mxfp4,
                                   lm->buffers,    lm->buffer_count, lm->buffer_sources };
    if (args->weights != NULL) {
        DSC_TRY(dsc_lm_match_weights(args->weights, lm->alloc, &params, lm->sources, err));
        DSC_TRY(check_packed(lm, args->weights, err));
    }
    if (args->weights != NULL)
        dsc_lm_warn_fresh(&params, lm->sources, warnings, sizeof warnings);
    if (strlen(warnings) > before)
        DSC_TRY(dsc_alloc_strdup(lm->alloc, DSC_TAG_CONTROL, warnings, &lm->all_warnings, err));
    return adapter != NULL ? dsc_lm_match_adapter(adapter, lm->alloc, &params, lm->sources, err) : DSC_OK;
}

static dsc_status build(dsc_lm *lm, const dsc_lm_open_args *args, dsc_error *err)
{
    dsc_alloc *alloc = lm->alloc;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, args->family->config_bytes, 1, &lm->config, err));
    memcpy(lm->config, args->config, (size_t)args->family->config_bytes);
    if (lm->config->embed_channels == 0)
        lm->config->embed_channels = lm->config->channels;
    if (lm->config->file_vocab == 0)
        lm->config->file_vocab = lm->config->vocab;
    const int64_t modules = lm->config->layers + 2 + dsc_lm_transforms(lm->config);
    lm->module_count = modules;
    lm->lora = args->lora;
    lm->packed_files = args->packed;
    DSC_TRY(dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, args->name, &lm->name, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *lm->source, &lm->source, err));
    lm_counts own;
    DSC_TRY(count_params(lm, &own, err));
    const int64_t most = own.params + (args->lora != NULL ? 3 * own.layers : 0);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules, sizeof *lm->selves, &lm->selves, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules, sizeof *lm->modules, &lm->modules, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, most, sizeof *lm->params, &lm->params, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, own.buffers + 1, sizeof *lm->buffers, &lm->buffers, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, own.buffers + 1, sizeof *lm->buffer_names, &lm->buffer_names,
                             err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules + most, sizeof *lm->names, &lm->names, err));
    if (lm->lora != NULL) {
        DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, most, sizeof *lm->adapter_of, &lm->adapter_of, err));
        DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, most, sizeof *lm->adapter_rank, &lm->adapter_rank, err));
        DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, most, sizeof *lm->adapter_scale, &lm->adapter_scale, err));
    }
    describe_modules(lm);
    dsc_alloc_free(alloc, lm->source);
    lm->source = NULL;
    DSC_ASSERT(lm->lora != NULL ? lm->param_count <= most : lm->param_count == own.params);
    if (lm->lora != NULL) {
        DSC_TRY(dsc_lm_check_adapters(lm, args->name, err));
        DSC_TRY(dsc_lm_write_adapter_json(lm, args->weights != NULL ? dsc_weights_dir(args->weights) : NULL, err));
    }
    DSC_TRY(dsc_lm_compile(lm, err));
    DSC_TRY(dsc_lm_find_routers(lm, err));
    DSC_TRY(find_sources(lm, args, err));
    DSC_TRY(dsc_lm_open_means(lm, err));
    return args->config_json == NULL && lm->family->write_config != NULL ? write_config_json(lm, err) : DSC_OK;
}

dsc_status dsc_lm_open(dsc_model **out, dsc_alloc *alloc, const dsc_lm_open_args *args, dsc_error *err)
{
    const dsc_lm_config *config = args->config;
    dsc_lm *lm = NULL;
    *out = NULL;
    DSC_ASSERT(config->sequence >= 1);
    DSC_ASSERT(config->sequence <= config->positions);
    DSC_ASSERT(config->vocab_rows >= config->vocab);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *lm, &lm, err));
    lm->alloc = alloc;
    lm->own_family = *args->family;
    lm->family = &lm->own_family;
    const dsc_status status = build(lm, args, err);
    if (status != DSC_OK) {
        free_all(lm);
        return status;
    }
    if (args->config_json != NULL)
        lm->config_json = args->config_json;
    lm->weights = args->weights;
    lm->carried = args->carried;
    lm->label_names = args->label_names;
    lm->lora = NULL;
    if (args->lora != NULL) {
        lm->adapter = args->lora->weights;
        args->lora->weights = NULL;
    }
    lm->warnings = args->warnings;
    pthread_mutex_init(&lm->means_lock, NULL);
    fill_model(lm);
    *out = &lm->model;
    return DSC_OK;
}
