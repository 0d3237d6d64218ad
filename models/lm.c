/* lm.c - a language model as a list of modules, its parameters with Hugging Face's names, and their first values.
 *
 * One block of control memory per array; every pointer in the dsc_model points into them. Weight decay applies to every
 * parameter: ds_config.json knows no groups, and DeepSpeed decays all that it is given.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/lm.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 64 /* "model.layers.4095.post_attention_layernorm.weight" is 49 */
#define CONFIG_JSON_BYTES 2048

typedef char lm_name[NAME_BYTES];

struct dsc_lm {
    dsc_model model;
    dsc_alloc *alloc;
    const dsc_lm_family *family;
    dsc_lm_config *config; /* [config_bytes] */
    char *name, *config_json, *warnings;
    dsc_lm_module *selves;  /* [module_count] */
    dsc_module *modules;    /* [module_count] */
    dsc_param_spec *params; /* [param_count], of all modules in order */
    lm_name *names;         /* [module_count + param_count] */
    int64_t module_count, param_count;
    lm_name prefix;                 /* of the module that is being described */
    dsc_weights *weights;           /* NULL: fresh */
    const dsc_weight **sources;     /* [param_count] where each parameter lies; NULL array without weights */
    dsc_batch_spec batch[2];
};

dsc_status dsc_lm_rows(const dsc_lm_config *config, int64_t batch, int64_t *rows, dsc_error *err)
{
    if (batch < 1 || batch > DSC_LM_ROWS_MAX / config->sequence)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a micro-batch of %lld samples of %lld tokens is no possible size",
                        (long long)batch, (long long)config->sequence);
    *rows = batch * config->sequence;
    return DSC_OK;
}

dsc_attention_keys dsc_lm_keys(const dsc_lm_config *config, const dsc_module_ctx *ctx)
{
    const bool reaches_end = config->window > 0 && ctx->past + config->sequence > config->window;
    DSC_ASSERT((ctx->cache != NULL) == (config->cache > 0));
    DSC_ASSERT(ctx->past == 0 || (ctx->batch == 1 && ctx->past + config->sequence <= config->cache));
    return (dsc_attention_keys){ .window = reaches_end ? (int32_t)config->window : 0, .past = (int32_t)ctx->past };
}

dsc_status dsc_lm_read_padding(dsc_hf_config *reader, int32_t fallback, dsc_lm_config *config)
{
    const double most = (double)config->vocab;
    const bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(reader->object, "pad_token_id"));
    double token = 0;
    config->has_padding = !null && (fallback >= 0 || dsc_hf_field(reader, "pad_token_id") != NULL);
    if (!config->has_padding)
        return DSC_OK;
    DSC_TRY(dsc_hf_number(reader, "pad_token_id", (dsc_hf_range){ -most, most - 1 }, fallback, &token));
    if ((double)(int64_t)token != token || token >= most)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"pad_token_id\" must be a token: a whole number below %lld",
                             (long long)config->vocab);
    config->padding = (int32_t)(token < 0 ? token + most : token);
    return DSC_OK;
}

const char *dsc_lm_padding_text(const dsc_lm_config *config, char *out, size_t bytes)
{
    if (config->has_padding)
        snprintf(out, bytes, "%d", (int)config->padding);
    else
        snprintf(out, bytes, "null");
    return out;
}

dsc_status dsc_lm_apply_options(dsc_lm_config *config, const dsc_model_options *options, const char *where,
                                dsc_error *err)
{
    const int64_t sequence = options->seq_length;
    if (sequence > config->positions)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "a sequence length of %lld is asked for; the model has %lld positions: give at most that many "
                        "with --seq-len (dsc.seq_length)",
                        (long long)sequence, (long long)config->positions);
    if (config->window_mixed && dsc_max_i64(sequence, options->cache_tokens) > config->window)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "a text of %lld tokens is asked for; some of the model's layers have a sliding_window of %lld "
                        "tokens and some have none, which is not built for longer texts: give at most that many with "
                        "--seq-len (dsc.seq_length)",
                        (long long)dsc_max_i64(sequence, options->cache_tokens), (long long)config->window);
    if (sequence > 0)
        config->sequence = sequence;
    config->cache = options->cache_tokens;
    config->vocab_rows = dsc_align_up(config->vocab, dsc_max_i64(1, options->vocab_multiple));
    return DSC_OK;
}

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

/* Appends "<prefix><name>.<part>"; no part: "<prefix><name>". A vector when rows is 0. */
static dsc_param_spec *add_param(dsc_lm *lm, const char *name, const char *part, int64_t rows, int64_t cols, double std)
{
    char *text = lm->names[lm->module_count + lm->param_count];
    dsc_param_spec *spec = &lm->params[lm->param_count++];
    const int bytes = snprintf(text, NAME_BYTES, "%s%s%s%s", lm->prefix, name, part[0] != 0 ? "." : "", part);
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

void dsc_lm_add_norm(dsc_lm *lm, const char *name, dsc_norm_kind kind, int64_t channels)
{
    add_param(lm, name, "weight", 0, channels, 0)->init = DSC_INIT_ONES;
    if (kind == DSC_NORM_LAYER)
        add_param(lm, name, "bias", 0, channels, 0);
}

void dsc_lm_add_linear(dsc_lm *lm, const dsc_lm_linear *linear)
{
    const dsc_linear shape = linear->shape;
    dsc_param_spec *weight = add_param(lm, linear->name, "weight", shape.out_in ? shape.out : shape.in,
                                       shape.out_in ? shape.in : shape.out, linear->std);
    weight->split = linear->out_split == shape.out_in ? DSC_SPLIT_ROW : DSC_SPLIT_COLUMN;
    /* A bias follows the outputs; beside split inputs it is whole on every rank. */
    if (linear->bias)
        add_param(lm, linear->name, "bias", 0, shape.out, 0)->split =
            linear->out_split ? DSC_SPLIT_COLUMN : DSC_SPLIT_NONE;
}

static void add_embedding(dsc_lm *lm)
{
    const dsc_lm_config *config = lm->config;
    snprintf(lm->prefix, NAME_BYTES, "%s", lm->family->base);
    add_param(lm, lm->family->token_table, "", config->vocab_rows, config->channels, config->init_std)->split =
        DSC_SPLIT_ROW;
    if (lm->family->position_table != NULL)
        add_param(lm, lm->family->position_table, "", config->positions + lm->family->position_first,
                  config->channels, config->init_std);
}

static void add_head(dsc_lm *lm)
{
    const dsc_lm_config *config = lm->config;
    snprintf(lm->prefix, NAME_BYTES, "%s", lm->family->base);
    dsc_lm_add_norm(lm, lm->family->final_norm, lm->family->norm, config->channels);
    if (!config->tied)
        lm->prefix[0] = 0;
    dsc_param_spec *table = add_param(lm, config->tied ? lm->family->token_table : lm->family->head_table, "",
                                      config->vocab_rows, config->channels, config->init_std);
    table->split = DSC_SPLIT_ROW;
    if (config->tied) {
        table->shared_module = 0;
        table->shared_param = DSC_LM_TOKEN_TABLE;
    }
}

static void describe_modules(dsc_lm *lm)
{
    const int64_t last = lm->module_count - 1;
    lm->param_count = 0;
    for (int64_t i = 0; i <= last; i++) {
        dsc_module *module = &lm->modules[i];
        const int64_t first = lm->param_count;
        lm->selves[i] = (dsc_lm_module){ .family = lm->family, .config = lm->config, .layer = i - 1 };
        *module = (dsc_module){ .struct_bytes = sizeof *module, .name = lm->names[i], .self = &lm->selves[i],
                                .params = &lm->params[first] };
        if (i == 0) {
            snprintf(lm->names[i], NAME_BYTES, "embedding");
            add_embedding(lm);
            dsc_lm_embed_init(module);
        } else if (i == last) {
            snprintf(lm->names[i], NAME_BYTES, "head");
            add_head(lm);
            dsc_lm_head_init(module);
        } else {
            snprintf(lm->names[i], NAME_BYTES, "h.%lld", (long long)(i - 1));
            snprintf(lm->prefix, NAME_BYTES, "%s%s%lld.", lm->family->base, lm->family->layer, (long long)(i - 1));
            lm->family->add_block(lm, lm->config);
            module->plan = lm->family->block->plan;
            module->forward = lm->family->block->forward;
            module->backward = lm->family->block->backward;
        }
        module->param_count = (int32_t)(lm->param_count - first);
    }
}

static int64_t count_params(const dsc_lm_family *family, const dsc_lm_config *config)
{
    const int64_t embedding = family->position_table != NULL ? 2 : 1, head = dsc_norm_params(family->norm) + 1;
    return embedding + config->layers * family->block_params(config) + head;
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void free_all(dsc_lm *lm)
{
    dsc_alloc *alloc = lm->alloc;
    void *const all[] = { (void *)lm->sources, lm->names,       lm->params, lm->modules, lm->selves,
                          lm->warnings,        lm->config_json, lm->config, lm->name,    lm };
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        dsc_alloc_free(alloc, all[i]);
}

static void close_model(dsc_model *model)
{
    dsc_lm *lm = model->self;
    dsc_alloc *alloc = lm->alloc;
    dsc_weights_close(&lm->weights);
    free_all(lm);
    dsc_alloc_close(&alloc);
}

/* The file holds V rows of a table; rows of padding, which no token reaches, are 0. */
static dsc_status load_param(const dsc_model *model, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    const dsc_lm *lm = model->self;
    const dsc_param_spec *spec = &lm->modules[module].params[param];
    *found = lm->sources != NULL;
    if (!*found)
        return DSC_OK;
    const dsc_weight *source = lm->sources[spec - lm->params];
    const int64_t in_file = dsc_max_i64(0, dsc_min_i64(count, source->entry->count - first));
    if (in_file > 0)
        DSC_TRY(dsc_weight_read_f32(source, first, in_file, out, err));
    for (int64_t i = in_file; i < count; i++)
        out[i] = 0;
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

static void fill_model(dsc_lm *lm)
{
    const dsc_lm_config *config = lm->config;
    static const char *const names[2] = { "tokens", "targets" };
    for (int i = 0; i < 2; i++)
        lm->batch[i] =
            (dsc_batch_spec){ .name = names[i], .dtype = DSC_I32, .dim_count = 1, .dim = { config->sequence } };
    lm->model = (dsc_model){
        .struct_bytes = sizeof lm->model, .name = lm->name, .module_count = (int32_t)lm->module_count,
        .modules = lm->modules, .batch_count = 2, .batch = lm->batch, .losses_per_sample = config->sequence,
        .hidden_size = config->channels, .vocab_size = config->vocab, .seq_length = config->sequence, .self = lm,
        .load_param = load_param, .close = close_model, .config_json = lm->config_json, .warnings = lm->warnings,
        .text_positions = config->positions
    };
}

static dsc_status build(dsc_lm *lm, const dsc_lm_open_args *args, dsc_error *err)
{
    dsc_alloc *alloc = lm->alloc;
    const int64_t param_count = count_params(args->family, args->config), modules = args->config->layers + 2;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, args->family->config_bytes, 1, &lm->config, err));
    memcpy(lm->config, args->config, (size_t)args->family->config_bytes);
    lm->module_count = modules;
    DSC_TRY(dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, args->name, &lm->name, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules, sizeof *lm->selves, &lm->selves, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules, sizeof *lm->modules, &lm->modules, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, param_count, sizeof *lm->params, &lm->params, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, modules + param_count, sizeof *lm->names, &lm->names, err));
    describe_modules(lm);
    DSC_ASSERT(lm->param_count == param_count);
    if (args->weights != NULL) {
        const dsc_lm_params params = { lm->family, lm->config, lm->params, param_count };
        DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, param_count, sizeof *lm->sources, &lm->sources, err));
        DSC_TRY(dsc_lm_match_weights(args->weights, alloc, &params, lm->sources, err));
    }
    return args->config_json == NULL ? write_config_json(lm, err) : DSC_OK;
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
    lm->family = args->family;
    const dsc_status status = build(lm, args, err);
    if (status != DSC_OK) {
        free_all(lm);
        return status;
    }
    if (args->config_json != NULL)
        lm->config_json = args->config_json;
    lm->weights = args->weights;
    lm->warnings = args->warnings;
    fill_model(lm);
    *out = &lm->model;
    return DSC_OK;
}
