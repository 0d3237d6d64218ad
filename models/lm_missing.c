/* lm_missing.c - the message of a tensor that weights lack: it names the tensor's counterpart under another name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/lm_parts.h"

/* Modules that PyTorch, its compiler and launchers put around a model, as components of its tensors' names. */
static const char *const wrappers[] = { "_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                        "_forward_module" };

void dsc_lm_without_wrappers(const char *name, char *out, size_t out_bytes, const char **wrapper)
{
    size_t used = 0;
    *wrapper = NULL;
    out[0] = 0;
    for (const char *at = name; *at != 0;) {
        const size_t bytes = strcspn(at, ".");
        const char *found = NULL;
        for (size_t i = 0; i < DSC_COUNT(wrappers); i++)
            if (strlen(wrappers[i]) == bytes && strncmp(at, wrappers[i], bytes) == 0)
                found = wrappers[i];
        if (found == NULL)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%.*s", used > 0 ? "." : "", (int)bytes, at);
        else if (*wrapper == NULL)
            *wrapper = found;
        if (used >= out_bytes)
            used = out_bytes - 1;
        at += bytes + (at[bytes] == '.');
    }
}

/* The command that takes a part of the names off, or "" where the path does not fit in it. */
static const char *rename_command(const dsc_weight *weight, const char *part, char *out, size_t out_bytes)
{
    const char *const path = dsc_safetensors_path(weight->file);
    out[0] = 0;
    if (strlen(path) < 60 && strlen(part) < 40 && strpbrk(path, "'\"\\") == NULL && strpbrk(part, "'\"\\") == NULL)
        snprintf(out, out_bytes,
                 ": python3 -c \"from safetensors.torch import *; f='%.59s'; save_file({k.replace('%.39s.', ''):"
                 " v for k, v in load_file(f).items()}, f, {'format': 'pt'})\"",
                 path, part);
    return out;
}

dsc_status dsc_lm_refuse_wrapped(const dsc_weight *weight, const char *wrapper, dsc_error *err)
{
    char command[300];
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                    "tensor \"%.80s\" has \"%s.\" in its name, from a module around the model; save the inner module, "
                    "or rename%s",
                    weight->name, wrapper, rename_command(weight, wrapper, command, sizeof command));
}

/* Whether a name ends with "." and this one. */
static bool ends_with_name(const char *text, const char *name)
{
    const size_t a = strlen(text), b = strlen(name);
    return a > b && text[a - b - 1] == '.' && strcmp(text + a - b, name) == 0;
}

/* A tensor is missing: the message names its counterpart in the file. */
dsc_status dsc_lm_refuse_missing(const dsc_weights *weights, const dsc_lm_params *params, const char *name,
                                 dsc_error *err)
{
    const char *shorter = dsc_lm_without_base(params->family, name), *wrapper = NULL;
    char plain[512], command[300];
    const dsc_weight *found = NULL;
    for (int64_t i = 0; i < dsc_weights_count(weights); i++) {
        const dsc_weight *weight = dsc_weights_at(weights, i);
        dsc_lm_without_wrappers(weight->name, plain, sizeof plain, &wrapper);
        if (wrapper != NULL && (strcmp(plain, name) == 0 || strcmp(plain, shorter) == 0))
            return dsc_lm_refuse_wrapped(weight, wrapper, err);
        if (ends_with_name(weight->name, shorter))
            found = weight;
    }
    if (strcmp(name, params->family->head_table) == 0 && params->config->classes == 0 &&
        params->family->emit_last == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights),
                        "tensor \"%s\" is missing from its weights; if the "
                        "head is the table of tokens, set \"tie_word_embeddings\": true in config.json",
                        name);
    if (found != NULL) {
        const size_t prefix = strlen(found->name) - strlen(shorter) - 1;
        snprintf(plain, sizeof plain, "%.*s", (int)prefix, found->name);
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(found->file),
                        "tensor \"%s\" is missing, and \"%.80s\" is "
                        "there: the names have \"%.40s.\" before those of a %s; rename%s",
                        name, found->name, plain, params->family->model_type,
                        rename_command(found, plain, command, sizeof command));
    }
    for (int64_t i = 0; i < params->count && !dsc_lm_is_adapter(params, i); i++) {
        const dsc_weight *any = NULL;
        DSC_TRY(dsc_lm_find_tensor(weights, params->family, params->spec[i].name, &any, err));
        if (any != NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights), "tensor \"%s\" is missing from its weights",
                            name);
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_weights_dir(weights),
                    "tensor \"%s\" is missing from its weights, and so are all "
                    "others of a %s; they have \"%.80s\": are config.json and weights of one model?",
                    name, params->family->model_type,
                    dsc_weights_count(weights) > 0 ? dsc_weights_at(weights, 0)->name : "");
}
