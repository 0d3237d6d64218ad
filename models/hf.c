/* hf.c - opens what Hugging Face's save_pretrained writes: config.json names the family, weights lie beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/families.h"
#include "models/gpt2.h"
#include "models/gpt2_weights.h"

static const dsc_json_limits config_limits = DSC_JSON_LIMITS_CONFIG;

/* What one opening holds; freed in reverse unless the model took it. */
typedef struct hf_folder {
    dsc_alloc *alloc;
    const char *config_path, *dir;
    const dsc_model_options *options;
    char *text; /* of config.json */
    dsc_json *json;
    dsc_weights *weights;
    char *warnings;
    char warning_lines[1024];
} hf_folder;

static dsc_status check_family(const hf_folder *folder, dsc_error *err)
{
    char where[256];
    const cJSON *root = dsc_json_root(folder->json);
    const cJSON *item = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, "model_type") : NULL;
    dsc_json_where(folder->json, item != NULL ? item : root, where, sizeof where);
    if (!cJSON_IsString(item))
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "\"model_type\" is missing; expected the config.json of a Hugging Face "
                        "model, as \"model_type\": \"gpt2\"");
    if (strcmp(item->valuestring, "gpt2") != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where, "model_type \"%.60s\" is not built; what exists: gpt2",
                        item->valuestring);
    return DSC_OK;
}

/* The options' sequence length and padding, against what the model has. */
static dsc_status apply_options(const hf_folder *folder, dsc_gpt2_config *config, dsc_error *err)
{
    const dsc_model_options *options = folder->options;
    if (options->seq_length > config->positions)
        return DSC_FAIL(err, DSC_ERR_INPUT, folder->config_path,
                        "a sequence length of %lld is asked for; the model has %lld positions: give at most that many "
                        "with --seq-len (dsc.seq_length)",
                        (long long)options->seq_length, (long long)config->positions);
    if (options->seq_length > 0)
        config->sequence = options->seq_length;
    if (options->vocab_multiple > 1)
        config->vocab_rows = dsc_align_up(config->vocab, options->vocab_multiple);
    return DSC_OK;
}

static dsc_status open_weights(hf_folder *folder, dsc_error *err)
{
    if (folder->dir == NULL || !folder->options->want_weights)
        return DSC_OK;
    DSC_TRY(dsc_weights_open(&folder->weights, folder->alloc, folder->dir, err));
    if (folder->weights == NULL) {
        const size_t used = strlen(folder->warning_lines);
        snprintf(folder->warning_lines + used, sizeof folder->warning_lines - used,
                 "%sthe folder has no *.safetensors: the weights are initialised afresh", used > 0 ? "; " : "");
    }
    return DSC_OK;
}

static dsc_status open_gpt2(hf_folder *folder, dsc_model **out, dsc_error *err)
{
    dsc_gpt2_config config;
    DSC_TRY(dsc_gpt2_read_config(folder->json, &config, folder->warning_lines, sizeof folder->warning_lines, err));
    DSC_TRY(apply_options(folder, &config, err));
    DSC_TRY(open_weights(folder, err));
    if (folder->warning_lines[0] != 0)
        DSC_TRY(dsc_alloc_strdup(folder->alloc, DSC_TAG_CONTROL, folder->warning_lines, &folder->warnings, err));
    /* A padded table is not the file's: such a model gets a config.json of its own. */
    char *text = config.vocab_rows == config.vocab ? folder->text : NULL;
    const char *name = folder->dir != NULL ? folder->dir : folder->config_path;
    DSC_TRY(dsc_gpt2_open(out, folder->alloc, name, &config, folder->weights, text, folder->warnings, err));
    if (text != NULL)
        folder->text = NULL;
    folder->weights = NULL;
    folder->warnings = NULL;
    return DSC_OK;
}

dsc_status dsc_hf_open(dsc_model **out, dsc_alloc *alloc, const char *config_path, const char *dir,
                       const dsc_model_options *options, dsc_error *err)
{
    hf_folder folder = { .alloc = alloc, .config_path = config_path, .dir = dir, .options = options };
    int64_t bytes = 0;
    *out = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY_OUT(dsc_io_read_all(NULL, alloc, config_path, config_limits.bytes, &folder.text, &bytes, err));
    DSC_TRY_OUT(
        dsc_json_open(alloc, config_path, folder.text, bytes, DSC_JSON_STRICT, &config_limits, &folder.json, err));
    DSC_TRY_OUT(check_family(&folder, err));
    DSC_TRY_OUT(open_gpt2(&folder, out, err));
out:
    dsc_weights_close(&folder.weights);
    dsc_alloc_free(alloc, folder.warnings);
    dsc_json_close(&folder.json);
    dsc_alloc_free(alloc, folder.text);
    return status;
}
