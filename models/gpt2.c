/* gpt2.c - GPT-2 as a list of modules, its parameters with Hugging Face's names, and their first values.
 *
 * One block of control memory per array; every pointer in the dsc_model points into them. The order of a module's
 * parameters is that of the enums in gpt2.h. Weight decay applies to every parameter: ds_config.json knows no groups,
 * and DeepSpeed decays all that it is given. SPDX-License-Identifier: Apache-2.0 */
#include "models/gpt2.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/gpt2_weights.h"

#define NAME_BYTES 64 /* "transformer.h.4095.attn.c_proj.weight" is 37 */

typedef char gpt2_name[NAME_BYTES];

typedef struct gpt2 {
    dsc_model model;
    dsc_alloc *alloc;
    dsc_gpt2_config config;
    char *name, *config_json, *warnings;
    dsc_gpt2_module *selves;  /* [module_count] */
    dsc_module *modules;      /* [module_count] */
    dsc_param_spec *params;   /* [param_count], of all modules in order */
    gpt2_name *names;         /* [module_count + param_count] */
    int64_t module_count, param_count;
    dsc_weights *weights;            /* NULL: fresh */
    const dsc_weight **sources;      /* [param_count] where each parameter lies; NULL array without weights */
    dsc_batch_spec batch[2];
} gpt2;

dsc_status dsc_gpt2_rows(const dsc_gpt2_config *config, int64_t batch, int64_t *rows, dsc_error *err)
{
    if (batch < 1 || batch > DSC_GPT2_ROWS_MAX / config->sequence)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a micro-batch of %lld samples of %lld tokens is no possible size",
                        (long long)batch, (long long)config->sequence);
    *rows = batch * config->sequence;
    return DSC_OK;
}

/* Appends one parameter of the module that is being described. */
static dsc_param_spec *add_param(gpt2 *self, const char *prefix, const char *name, int64_t rows, int64_t cols,
                                 float std)
{
    char *text = self->names[self->module_count + self->param_count];
    dsc_param_spec *spec = &self->params[self->param_count++];
    const int bytes = snprintf(text, NAME_BYTES, "%s%s", prefix, name);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes < NAME_BYTES);
    const bool vector = rows == 0;
    *spec = (dsc_param_spec){ .name = text,
                              .dim_count = vector ? 1 : 2,
                              .dim = { vector ? cols : rows, vector ? 0 : cols },
                              .init = std > 0 ? DSC_INIT_NORMAL : DSC_INIT_ZEROS,
                              .init_std = std,
                              .trainable = true,
                              .decay = true,
                              .split = DSC_SPLIT_NONE,
                              .shared_module = -1,
                              .shared_param = -1 };
    return spec;
}

static void add_norm(gpt2 *self, const char *prefix, const char *weight, const char *bias)
{
    add_param(self, prefix, weight, 0, self->config.channels, 0)->init = DSC_INIT_ONES;
    add_param(self, prefix, bias, 0, self->config.channels, 0);
}

static void add_linear(gpt2 *self, const char *prefix, const char *weight, const char *bias, int64_t in, int64_t out,
                       double std, dsc_split_axis split)
{
    add_param(self, prefix, weight, in, out, (float)std)->split = split;
    /* A bias follows the columns of its weight; beside split rows it is whole on every rank. */
    add_param(self, prefix, bias, 0, out, 0)->split = split == DSC_SPLIT_COLUMN ? DSC_SPLIT_COLUMN : DSC_SPLIT_NONE;
}

static void add_block_params(gpt2 *self, int64_t layer)
{
    const dsc_gpt2_config *config = &self->config;
    const int64_t channels = config->channels, inner = config->inner;
    /* GPT-2's initialisation: what is added to the residual stream is scaled down by the number of additions. */
    const double residual_std = config->init_std / sqrt(2.0 * (double)config->layers);
    char prefix[NAME_BYTES];
    snprintf(prefix, sizeof prefix, "transformer.h.%lld.", (long long)layer);
    add_norm(self, prefix, "ln_1.weight", "ln_1.bias");
    add_linear(self, prefix, "attn.c_attn.weight", "attn.c_attn.bias", channels, 3 * channels, config->init_std,
               DSC_SPLIT_COLUMN);
    add_linear(self, prefix, "attn.c_proj.weight", "attn.c_proj.bias", channels, channels, residual_std, DSC_SPLIT_ROW);
    add_norm(self, prefix, "ln_2.weight", "ln_2.bias");
    add_linear(self, prefix, "mlp.c_fc.weight", "mlp.c_fc.bias", channels, inner, config->init_std, DSC_SPLIT_COLUMN);
    add_linear(self, prefix, "mlp.c_proj.weight", "mlp.c_proj.bias", inner, channels, residual_std, DSC_SPLIT_ROW);
}

static void add_head_params(gpt2 *self)
{
    const dsc_gpt2_config *config = &self->config;
    add_norm(self, "transformer.", "ln_f.weight", "ln_f.bias");
    dsc_param_spec *table = add_param(self, "", config->tied ? "transformer.wte.weight" : "lm_head.weight",
                                      config->vocab_rows, config->channels, (float)config->init_std);
    table->split = DSC_SPLIT_ROW;
    if (config->tied) {
        table->shared_module = 0;
        table->shared_param = DSC_GPT2_WTE;
    }
}

static void describe_modules(gpt2 *self)
{
    const dsc_gpt2_config *config = &self->config;
    const int64_t last = self->module_count - 1;
    self->param_count = 0;
    for (int64_t i = 0; i <= last; i++) {
        dsc_module *module = &self->modules[i];
        self->selves[i] = (dsc_gpt2_module){ .config = config, .layer = i - 1 };
        *module = (dsc_module){ .struct_bytes = sizeof *module, .name = self->names[i], .self = &self->selves[i],
                                .params = &self->params[self->param_count] };
        if (i == 0) {
            snprintf(self->names[i], NAME_BYTES, "embedding");
            add_param(self, "transformer.", "wte.weight", config->vocab_rows, config->channels, (float)config->init_std)
                ->split = DSC_SPLIT_ROW;
            add_param(self, "transformer.", "wpe.weight", config->positions, config->channels, (float)config->init_std);
            dsc_gpt2_embed_init(module);
        } else if (i == last) {
            snprintf(self->names[i], NAME_BYTES, "head");
            add_head_params(self);
            dsc_gpt2_head_init(module);
        } else {
            snprintf(self->names[i], NAME_BYTES, "h.%lld", (long long)(i - 1));
            add_block_params(self, i - 1);
            dsc_gpt2_block_init(module);
        }
        DSC_ASSERT(&self->params[self->param_count] == module->params + module->param_count);
    }
}

static void close_model(dsc_model *model)
{
    gpt2 *self = model->self;
    dsc_alloc *alloc = self->alloc;
    dsc_weights_close(&self->weights);
    dsc_alloc_free(alloc, (void *)self->sources);
    dsc_alloc_free(alloc, self->names);
    dsc_alloc_free(alloc, self->params);
    dsc_alloc_free(alloc, self->modules);
    dsc_alloc_free(alloc, self->selves);
    dsc_alloc_free(alloc, self->warnings);
    dsc_alloc_free(alloc, self->config_json);
    dsc_alloc_free(alloc, self->name);
    dsc_alloc_free(alloc, self);
    dsc_alloc_close(&alloc);
}

/* The file holds V rows of a table; rows of padding, which no token reaches, are 0. */
static dsc_status load_param(const dsc_model *model, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    const gpt2 *self = model->self;
    const dsc_param_spec *spec = &self->modules[module].params[param];
    *found = self->sources != NULL;
    if (!*found)
        return DSC_OK;
    const dsc_weight *source = self->sources[spec - self->params];
    const int64_t in_file = dsc_max_i64(0, dsc_min_i64(count, source->entry->count - first));
    if (in_file > 0)
        DSC_TRY(dsc_weight_read_f32(source, first, in_file, out, err));
    for (int64_t i = in_file; i < count; i++)
        out[i] = 0;
    return DSC_OK;
}

/* A host program's locale may print a comma; JSON wants a point. */
static const char *number_text(double value, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.9g", value);
    char *comma = strchr(out, ',');
    if (comma != NULL)
        *comma = '.';
    return out;
}

static dsc_status write_config_json(gpt2 *self, dsc_error *err)
{
    const dsc_gpt2_config *config = &self->config;
    const int bytes_max = 2048;
    char eps[32], std[32];
    DSC_TRY(dsc_alloc_zeroed(self->alloc, DSC_TAG_CONTROL, bytes_max, 1, &self->config_json, err));
    const int bytes = snprintf(
        self->config_json, (size_t)bytes_max,
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
        "  \"activation_function\": \"gelu_new\",\n"
        "  \"vocab_size\": %lld,\n  \"n_positions\": %lld,\n  \"n_embd\": %lld,\n  \"n_layer\": %lld,\n"
        "  \"n_head\": %lld,\n"
        "  \"n_inner\": %lld,\n  \"layer_norm_epsilon\": %s,\n  \"initializer_range\": %s,\n"
        "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n"
        "  \"scale_attn_weights\": %s,\n  \"scale_attn_by_inverse_layer_idx\": %s,\n  \"tie_word_embeddings\": %s\n}\n",
        (long long)config->vocab_rows, (long long)config->positions, (long long)config->channels,
        (long long)config->layers, (long long)config->heads, (long long)config->inner,
        number_text(config->norm_eps, eps, sizeof eps), number_text(config->init_std, std, sizeof std),
        config->scale_attention ? "true" : "false", config->scale_attention_by_layer ? "true" : "false",
        config->tied ? "true" : "false");
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes < bytes_max);
    return DSC_OK;
}

static void fill_model(gpt2 *self)
{
    const dsc_gpt2_config *config = &self->config;
    static const char *const names[2] = { "tokens", "targets" };
    for (int i = 0; i < 2; i++)
        self->batch[i] =
            (dsc_batch_spec){ .name = names[i], .dtype = DSC_I32, .dim_count = 1, .dim = { config->sequence } };
    self->model = (dsc_model){
        .struct_bytes = sizeof self->model, .name = self->name, .module_count = (int32_t)self->module_count,
        .modules = self->modules, .batch_count = 2, .batch = self->batch, .losses_per_sample = config->sequence,
        .hidden_size = config->channels, .vocab_size = config->vocab, .seq_length = config->sequence, .self = self,
        .load_param = load_param, .close = close_model, .config_json = self->config_json, .warnings = self->warnings
    };
}

dsc_status dsc_gpt2_open(dsc_model **out, dsc_alloc *alloc, const char *name, const dsc_gpt2_config *config,
                         dsc_weights *weights, char *config_json, char *warnings, dsc_error *err)
{
    gpt2 *self = NULL;
    *out = NULL;
    DSC_ASSERT(config->sequence >= 1);
    DSC_ASSERT(config->sequence <= config->positions);
    DSC_ASSERT(config->channels % config->heads == 0);
    DSC_ASSERT(config->vocab_rows >= config->vocab);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *self, &self, err));
    dsc_status status = DSC_OK;
    const int64_t module_count = config->layers + 2;
    const int64_t param_count = DSC_GPT2_EMBED_PARAMS + config->layers * DSC_GPT2_BLOCK_PARAMS + DSC_GPT2_HEAD_PARAMS;
    self->alloc = alloc;
    self->config = *config;
    self->module_count = module_count;
    DSC_TRY_OUT(dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, name, &self->name, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, module_count, sizeof *self->selves, &self->selves, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, module_count, sizeof *self->modules, &self->modules, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, param_count, sizeof *self->params, &self->params, err));
    DSC_TRY_OUT(
        dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, module_count + param_count, sizeof *self->names, &self->names, err));
    describe_modules(self);
    DSC_ASSERT(self->param_count == param_count);
    if (weights != NULL) {
        DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, param_count, sizeof *self->sources, &self->sources, err));
        DSC_TRY_OUT(dsc_gpt2_match_weights(weights, config, self->params, param_count, self->sources, err));
    }
    if (config_json == NULL)
        DSC_TRY_OUT(write_config_json(self, err));
    else
        self->config_json = config_json;
    self->weights = weights;
    self->warnings = warnings;
    fill_model(self);
    *out = &self->model;
    return DSC_OK;
out:
    dsc_alloc_free(alloc, (void *)self->sources);
    dsc_alloc_free(alloc, self->names);
    dsc_alloc_free(alloc, self->params);
    dsc_alloc_free(alloc, self->modules);
    dsc_alloc_free(alloc, self->selves);
    dsc_alloc_free(alloc, self->name);
    dsc_alloc_free(alloc, self);
    return status;
}
