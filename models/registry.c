/* registry.c - from a name or a path to a model. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/formats/unsafe_format.h"
#include "base/io.h"
#include "models/families.h"

#define CACHE_TOKENS_MAX (1 << 25) /* twice the longest text: whole blocks of it */
#define VOCAB_MULTIPLE_MAX 65536
#define NAMES_MAX 8 /* of an error */

static const char *own_name(const dsc_lm_family *family, int32_t index)
{
    return family->builtin != NULL ? family->builtin(family->traits, index, NULL) : NULL;
}

/* The family and, in *index, its own number of the built-in model `index` of all; NULL past the end. */
static const dsc_lm_family *builtin_family(int32_t *index)
{
    const dsc_lm_family *family;
    for (int32_t f = 0; (family = dsc_lm_family_at(f)) != NULL && *index >= 0; f++)
        for (int32_t i = 0; own_name(family, i) != NULL; i++) {
            if (*index == 0) {
                *index = i;
                return family;
            }
            --*index;
        }
    return NULL;
}

/* Behind the families' own sizes. */
const char *dsc_model_builtin_name(int32_t index)
{
    const dsc_lm_family *family = index >= 0 ? builtin_family(&index) : NULL;
    if (family != NULL)
        return own_name(family, index);
    const dsc_named_model *named = dsc_named_model_at(index);
    return named != NULL ? named->name : NULL;
}

static int32_t builtin_index(const char *name)
{
    for (int32_t i = 0; dsc_model_builtin_name(i) != NULL; i++)
        if (strcmp(dsc_model_builtin_name(i), name) == 0)
            return i;
    return -1;
}

static dsc_status open_builtin(dsc_model **out, dsc_alloc *alloc, int32_t index, const dsc_model_options *options,
                               dsc_lora_config *lora, dsc_error *err)
{
    const dsc_lm_family *family = builtin_family(&index);
    dsc_lm_config *config = NULL;
    if (family == NULL)
        return dsc_hf_open_named(out, alloc, dsc_named_model_at(index), options, lora, err);
    if (options->labels.wanted)
        return DSC_FAIL(
            err, DSC_ERR_UNSUPPORTED, own_name(family, index),
            "a head for labels is not built for this built-in name; give a Hugging Face folder (config.json)");
    DSC_TRY(dsc_lm_check_network(options, family, false, own_name(family, index), err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, family->config_bytes, 1, &config, err));
    const dsc_lm_open_args args = { .family = family, .name = family->builtin(family->traits, index, config),
                                    .config = config, .lora = lora };
    dsc_status status = dsc_lm_apply_options(config, options, dsc_lm_adapter_rows(family, lora), args.name, err);
    if (status == DSC_OK)
        status = dsc_lm_apply_ranks(config, family, options, args.name, err);
    if (status == DSC_OK)
        status = dsc_lm_open(out, alloc, &args, err);
    dsc_alloc_free(alloc, config);
    return status;
}

static size_t common_start(const char *a, const char *b)
{
    size_t same = 0;
    while (a[same] != 0 && a[same] == b[same])
        same++;
    return same;
}

/* Names that begin as the wanted one does; without such names the first ones. */
static dsc_status refuse_name(const char *name, dsc_error *err)
{
    char list[200] = "";
    size_t best = 0;
    int32_t count = 0;
    for (int32_t i = 0; dsc_model_builtin_name(i) != NULL; i++)
        best = (size_t)dsc_max_i64((int64_t)best, (int64_t)common_start(name, dsc_model_builtin_name(i)));
    for (int32_t i = 0; dsc_model_builtin_name(i) != NULL && count < NAMES_MAX; i++) {
        const size_t used = strlen(list);
        if (best >= 3 && common_start(name, dsc_model_builtin_name(i)) < best)
            continue;
        snprintf(list + used, sizeof list - used, "%s%s", count++ == 0 ? "" : ", ", dsc_model_builtin_name(i));
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "model",
                    "\"%.60s\" is not a built-in model, folder or file; expected one of %s (`dsc model list` has all), "
                    "a Hugging Face folder (config.json) or a config file *.json",
                    name, list);
}

static dsc_status open_path(dsc_model **out, dsc_alloc *alloc, const char *path, const dsc_model_options *options,
                            dsc_lora_config *lora, dsc_error *err)
{
    char config_path[1024];
    const size_t bytes = strlen(path);
    switch (dsc_io_kind(path)) {
    case DSC_PATH_DIR:
        DSC_TRY(dsc_path_join(config_path, sizeof config_path, path, "config.json", err));
        if (dsc_io_kind(config_path) == DSC_PATH_MISSING) {
            DSC_TRY(dsc_foreign_refuse(NULL, alloc, path, err));
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "this folder has no config.json; expected a Hugging Face model folder");
        }
        return dsc_hf_open(out, alloc, config_path, path, options, lora, err);
    case DSC_PATH_FILE:
        DSC_TRY(dsc_foreign_refuse_file(path, err));
        if (bytes < 5 || strcmp(path + bytes - 5, ".json") != 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "a model file must be a *.json config; for weights name their folder");
        return dsc_hf_open(out, alloc, path, NULL, options, lora, err);
    case DSC_PATH_MISSING:
        return refuse_name(path, err);
    case DSC_PATH_OTHER:
        break;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, path, "is a pipe or a device; expected a folder or a *.json file");
}

static dsc_status check_options(const dsc_model_options *options, dsc_error *err)
{
    if (options->struct_bytes < sizeof *options)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_model_options.struct_bytes is %u; use DSC_MODEL_OPTIONS_INIT",
                        options->struct_bytes);
    if (options->seq_length < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "seq_length", "%lld; expected at least 1", (long long)options->seq_length);
    if (options->vocab_multiple < 0 || options->vocab_multiple > VOCAB_MULTIPLE_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "vocab_multiple", "%lld; expected 1 to %d",
                        (long long)options->vocab_multiple, VOCAB_MULTIPLE_MAX);
    if (options->vocab_tokens < 0 || options->vocab_tokens > DSC_VOCAB_TOKENS_MAX)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_model_options.vocab_tokens is %lld; expected 0 to %d",
                        (long long)options->vocab_tokens, DSC_VOCAB_TOKENS_MAX);
    if (!(options->mask_share >= 0 && options->mask_share <= 1))
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_model_options.mask_share is %g; expected 0 to 1",
                        options->mask_share);
    if (!(options->router_balance <= DSC_ROUTER_FACTOR_MAX && options->router_z <= DSC_ROUTER_FACTOR_MAX))
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "dsc_model_options.router_balance %g and router_z %g; expected at "
                        "most %g",
                        options->router_balance, options->router_z, DSC_ROUTER_FACTOR_MAX);
    const struct dsc_network_options *network = &options->network;
    if (network->planes < 0 || network->height < 0 || network->width < 0 || network->classes < 0 ||
        network->frames < 0 || (network->height > 0) != (network->width > 0))
        return DSC_FAIL(err, DSC_ERR_STATE, "",
                        "dsc_model_options.network: planes %lld, height %lld, width %lld, classes %lld, frames %lld; "
                        "expected 0 or more, and both sides or neither",
                        (long long)network->planes, (long long)network->height, (long long)network->width,
                        (long long)network->classes, (long long)network->frames);
    DSC_TRY(dsc_ensemble_check(network->members, network->member_count, err));
    if (options->cache_tokens < 0 || options->cache_tokens > CACHE_TOKENS_MAX)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "dsc_model_options.cache_tokens is %lld; expected 0 to %d",
                        (long long)options->cache_tokens, CACHE_TOKENS_MAX);
    return DSC_OK;
}

static dsc_status open_any(dsc_model **out, dsc_alloc *alloc, const char *name, const dsc_model_options *options,
                           dsc_error *err)
{
    dsc_lora_config lora = { 0 };
    dsc_lora_config *const adapters = options->lora != NULL ? &lora : NULL;
    const int32_t index = builtin_index(name);
    if (adapters != NULL)
        DSC_TRY(dsc_lora_config_open(adapters, alloc, options->lora, err));
    const dsc_status status = index >= 0 ? open_builtin(out, alloc, index, options, adapters, err)
                                         : open_path(out, alloc, name, options, adapters, err);
    dsc_lora_config_close(&lora);
    return status;
}

dsc_status dsc_model_open(dsc_model **out, const char *name_or_path, const dsc_model_options *options, dsc_error *err)
{
    const dsc_model_options defaults = DSC_MODEL_OPTIONS_INIT;
    dsc_alloc *alloc = NULL;
    *out = NULL;
    if (options == NULL)
        options = &defaults;
    DSC_TRY(check_options(options, err));
    DSC_TRY(dsc_alloc_open(&alloc, err));
    const dsc_status status = open_any(out, alloc, name_or_path, options, err);
    if (status != DSC_OK)
        dsc_alloc_close(&alloc);
    return status;
}

void dsc_model_close(dsc_model **model)
{
    if (*model != NULL && (*model)->close != NULL)
        (*model)->close(*model);
    *model = NULL;
}
