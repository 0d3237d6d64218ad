/* hf.c - opens what Hugging Face's save_pretrained writes: config.json names the family, weights lie beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/families.h"
#include "models/wrapper.h"

static const dsc_json_limits config_limits = DSC_JSON_LIMITS_MODEL;

/* Objects of one opening; freed in reverse order unless the model owns them. */
typedef struct hf_folder {
    dsc_alloc *alloc;
    const char *config_path, *dir;
    const dsc_named_model *named; /* config.json is its text; NULL: the file */
    const dsc_model_options *options;
    dsc_lora_config *lora;
    char *text; /* of config.json */
    dsc_json *json;
    const dsc_lm_family *family;
    dsc_lm_family wrapped_family; /* target of `family` for the text part of another model */
    dsc_wrapper wrapper;
    dsc_wrapper_carried *carried;
    dsc_lm_config *config; /* the family's own, [config_bytes] */
    dsc_weights *weights;
    dsc_packed_files packed; /* the weights are in 4 bits */
    bool mxfp4;              /* the experts' matrices are in MXFP4 */
    int32_t fp8_block[2]; /* matrices are in fp8, with scales of blocks of so many rows and columns; 0: they are not */
    bool untied; /* config.json says that the head is the table of tokens, which the run makes two of */
    dsc_lm_family labelled_family; /* target of `family` with a head for labels */
    const char *const *label_names;
    char *warnings;
    char warning_lines[1024];
} hf_folder;

/* *list <- the names of all. */
static const dsc_lm_family *family_of(const char *model_type, char *list, size_t bytes)
{
    const dsc_lm_family *family;
    list[0] = 0;
    for (int32_t i = 0; (family = dsc_lm_family_at(i)) != NULL; i++) {
        const size_t used = strlen(list);
        if (strcmp(model_type, family->model_type) == 0)
            return family;
        if (used + strlen(family->model_type) + 2 < bytes)
            snprintf(list + used, bytes - used, "%s%s", i > 0 ? ", " : "", family->model_type);
    }
    return NULL;
}

/* A family, or a model around one. */
static dsc_status find_family(hf_folder *folder, dsc_error *err)
{
    char list[200]; /* the message has no room for all */
    const cJSON *root = dsc_json_root(folder->json);
    dsc_hf_config reader = { .json = folder->json, .object = root, .err = err };
    const cJSON *item = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, "model_type") : NULL;
    dsc_json_where(folder->json, item != NULL ? item : root, reader.where, sizeof reader.where);
    const cJSON *architecture = cJSON_GetObjectItemCaseSensitive(root, "architecture");
    if (item == NULL && cJSON_IsString(architecture)) { /* as timm writes it */
        folder->family = dsc_torch_vit_has(architecture->valuestring) ? &dsc_torch_vit_family
                         : dsc_ensemble_is(architecture->valuestring) ? &dsc_ensemble_family
                                                                      : &dsc_conv_family;
        return DSC_OK;
    }
    if (!cJSON_IsString(item))
        return DSC_HF_REFUSE(&reader, DSC_ERR_INPUT,
                             "\"model_type\" is missing; expected the config.json of a Hugging Face "
                             "model, as \"model_type\": \"gpt2\"");
    folder->family = family_of(item->valuestring, list, sizeof list);
    if (folder->family != NULL)
        return DSC_OK;
    DSC_TRY(dsc_wrapper_find(&reader, item->valuestring, &folder->wrapper));
    if (folder->wrapper.object == NULL) {
        dsc_json_where(folder->json, item, reader.where, sizeof reader.where);
        return DSC_HF_REFUSE(&reader, DSC_ERR_UNSUPPORTED,
                             "model_type \"%.60s\" is not built; what exists: %s and others; docs/models.md has all",
                             item->valuestring, list);
    }
    folder->wrapped_family = *family_of(folder->wrapper.text_type, list, sizeof list);
    folder->family = &folder->wrapped_family;
    return DSC_OK;
}

/* transformers attends in both directions unless the key is true or absent; null is one of the other values. */
static dsc_status check_causal(dsc_hf_config *reader, const char *model_type, bool masked)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, "is_causal");
    (void)dsc_hf_field(reader, "is_causal");
    if (item == NULL || (masked ? cJSON_IsFalse(item) || cJSON_IsNull(item) : cJSON_IsTrue(item)))
        return DSC_OK;
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"is_causal\" must be %s for %s: attention %s is not built",
                         masked ? "false" : "true", model_type, masked ? "in one direction" : "in both directions");
}

static dsc_status refuse_quantized(dsc_hf_config *reader)
{
    if (dsc_hf_field(reader, "compression_config") != NULL)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"compression_config\": such weights are not read; expected "
                             "F32, BF16, F16, or NF4 of bitsandbytes");
    return DSC_OK;
}

/* The text of a key in "quantization_config"; the class of transformers has `fallback`. */
static dsc_status check_quantization(dsc_hf_config *reader, const cJSON *section, const char *key, const char *fallback,
                                     const char *expected)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(section, key);
    const char *text = cJSON_IsString(item) ? item->valuestring : fallback;
    if ((item == NULL || cJSON_IsString(item)) && strcmp(text, expected) == 0)
        return DSC_OK;
    return DSC_HF_REFUSE(
        reader, DSC_ERR_UNSUPPORTED,
        "\"quantization_config\": quantized weights with \"%s\": \"%.40s\" are not read; expected \"%s\", "
        "or weights in F32, BF16 or F16",
        key, text, expected);
}

/* Matrices in fp8 with scales of blocks, as DeepSeek-V3 is published. */
static dsc_status read_fp8(dsc_hf_config *reader, const cJSON *section, int32_t *block)
{
    const cJSON *sizes = cJSON_GetObjectItemCaseSensitive(section, "weight_block_size");
    int64_t size[2] = { 128, 128 };
    DSC_TRY(check_quantization(reader, section, "fmt", "e4m3", "e4m3"));
    const cJSON *first = cJSON_IsArray(sizes) ? sizes->child : NULL, *second = first != NULL ? first->next : NULL;
    const bool good = second != NULL && second->next == NULL &&
                      dsc_json_integer(first, 1, DSC_FP8_BLOCK_MAX, &size[0]) &&
                      dsc_json_integer(second, 1, DSC_FP8_BLOCK_MAX, &size[1]);
    if (sizes != NULL && !good)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"quantization_config\": \"weight_block_size\" must be two numbers from 1 to %d; other "
                             "scales of fp8 are not read",
                             DSC_FP8_BLOCK_MAX);
    block[0] = (int32_t)size[0], block[1] = (int32_t)size[1];
    return DSC_OK;
}

/* Whether the weights are in 4 bits (bitsandbytes' NF4, or MXFP4 in families that are published so) or in fp8. */
static dsc_status read_quantization(dsc_hf_config *reader, hf_folder *folder)
{
    const cJSON *section = dsc_hf_field(reader, "quantization_config");
    const cJSON *method = cJSON_GetObjectItemCaseSensitive(section, "quant_method");
    folder->packed = DSC_PACKED_NOT;
    if (section == NULL)
        return DSC_OK;
    folder->mxfp4 =
        folder->family->has_mxfp4 && cJSON_IsString(method) && strcmp(method->valuestring, "mxfp4") == 0;
    if (folder->mxfp4)
        return DSC_OK;
    if (cJSON_IsString(method) && strcmp(method->valuestring, "fp8") == 0)
        return read_fp8(reader, section, folder->fp8_block);
    DSC_TRY(check_quantization(reader, section, "quant_method", "none", "bitsandbytes"));
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(section, "load_in_4bit")))
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                             "\"quantization_config\": quantized weights without "
                             "\"load_in_4bit\": true are not read; expected nf4, F32, BF16 or F16");
    DSC_TRY(check_quantization(reader, section, "bnb_4bit_quant_type", "fp4", "nf4"));
    const cJSON *nested = cJSON_GetObjectItemCaseSensitive(section, "bnb_4bit_use_double_quant");
    folder->packed = cJSON_IsTrue(nested) ? DSC_PACKED_DOUBLE : DSC_PACKED_SINGLE;
    return DSC_OK;
}

static bool is_quantized(const hf_folder *folder)
{
    return folder->packed != DSC_PACKED_NOT || folder->mxfp4 || folder->fp8_block[0] > 0;
}

/* Keys whose other values are another model, whatever the family. */
static dsc_status refuse_other_models(dsc_hf_config *reader, const char *model_type, bool masked)
{
    DSC_TRY(check_causal(reader, model_type, masked));
    DSC_TRY(dsc_hf_refuse_other_mathematics(reader, model_type));
    return refuse_quantized(reader);
}

/* The text part of another model: names of its tensors, and tensors of the other parts. */
static dsc_status read_wrapper(hf_folder *folder, dsc_hf_config *reader)
{
    const cJSON *const text = reader->object;
    dsc_weights *weights = NULL;
    dsc_lm_family *family = &folder->wrapped_family;
    reader->object = dsc_json_root(folder->json);
    dsc_status whole = refuse_quantized(reader);
    if (whole == DSC_OK && dsc_hf_field(reader, "quantization_config") != NULL)
        whole = DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED,
                              "\"quantization_config\": quantized weights of a multimodal model are not read; "
                              "expected F32, BF16 or F16");
    reader->object = text;
    DSC_TRY(whole);
    if (folder->dir != NULL)
        DSC_TRY(dsc_weights_open(&weights, folder->alloc, folder->dir, reader->err));
    dsc_wrapper_set_names(family, weights);
    dsc_status status = dsc_wrapper_read_tied(reader, family, weights, &folder->config->tied);
    if (status == DSC_OK && weights != NULL)
        status = dsc_wrapper_collect(&folder->carried, folder->alloc, family, weights, folder->dir, reader->err);
    dsc_weights_close(&weights);
    DSC_TRY(status);
    if (folder->lora != NULL && !dsc_wrapper_names_are_peft(family))
        return DSC_FAIL(reader->err, DSC_ERR_UNSUPPORTED, "dsc.lora", "adapters are not built for the text part of a "
                        "model whose tensors begin with \"%s\"; what exists: \"model.language_model.\" and "
                        "\"model.text_model.\"", family->base);
    return DSC_OK;
}

/* The family's keys, with the names of the folder's tensors where the family asks for them. */
static dsc_status read_family(hf_folder *folder, dsc_hf_config *reader)
{
    const struct dsc_network_options *network = &folder->options->network;
    const bool is_folder = folder->named == NULL;
    dsc_weights *weights = NULL;
    if (is_folder && !network->size_by_data)
        reader->picture[0] = network->height, reader->picture[1] = network->width;
    if (folder->family->asks_weights && folder->dir != NULL)
        DSC_TRY(dsc_weights_open(&weights, folder->alloc, folder->dir, reader->err));
    reader->weights = weights;
    dsc_status status = folder->family->read_config(reader, folder->config);
    reader->weights = NULL;
    dsc_weights_close(&weights);
    if (status == DSC_OK && is_folder && folder->family->emit_last != NULL)
        status = dsc_lm_choose_classes(folder->config, network, folder->config_path, reader->err);
    if (status == DSC_OK && folder->config->file_classes > 0 && folder->family == &dsc_ensemble_family)
        status = DSC_FAIL(reader->err, DSC_ERR_UNSUPPORTED, folder->config_path,
                          "a new classifier (dsc.image_classes) is not built for a folder of an ensemble, whose "
                          "members have one each; leave the key out, or write a folder of that many classes");
    if (status == DSC_OK && folder->config->file_classes > 0 && folder->lora != NULL &&
        folder->family->head_table[0] != 0)
        status = dsc_lora_save_head(folder->lora, folder->family->head_table, reader->err);
    return status;
}

/* The options' sequence length and padding, against what the model has. */
static dsc_status read_config(hf_folder *folder, dsc_error *err)
{
    const cJSON *const root = dsc_json_root(folder->json), *const text = folder->wrapper.object;
    dsc_hf_config reader = { .json = folder->json, .object = text != NULL ? text : root, .err = err,
                             .traits = folder->family->traits, .warnings = folder->warning_lines,
                             .warnings_bytes = sizeof folder->warning_lines, .text_part = text != NULL };
    dsc_lm_config *config = NULL;
    DSC_TRY(dsc_alloc_zeroed(folder->alloc, DSC_TAG_CONTROL, folder->family->config_bytes, 1, &config, err));
    folder->config = config;
    DSC_TRY(read_family(folder, &reader));
    folder->labelled_family = *folder->family;
    if (dsc_label_kind_pairs(folder->options->labels.kind))
        DSC_TRY(dsc_lm_read_vectors(&reader, folder->alloc, folder->dir, &folder->options->labels,
                                    &folder->labelled_family, config));
    else
        DSC_TRY(dsc_lm_read_labels(&reader, folder->alloc, &folder->options->labels, &folder->labelled_family, config,
                                   &folder->label_names));
    if (folder->labelled_family.classifies)
        folder->family = &folder->labelled_family;
    if (folder->lora != NULL)
        folder->lora->of_base = config->embeds;
    if (folder->labelled_family.classifies && !config->embeds && folder->lora != NULL)
        DSC_TRY(dsc_lora_save_head(folder->lora, folder->family->head_table, err));
    DSC_TRY(refuse_other_models(&reader, folder->family->model_type, config->masked || dsc_lm_has_data(config)));
    DSC_TRY(read_quantization(&reader, folder));
    /* Beside adapters the matrices stay in 4 bits, in the order of their files. */
    config->turned = folder->family->in_out && folder->packed != DSC_PACKED_NOT && folder->lora != NULL;
    dsc_hf_warn_unread(&reader, folder->family->model_type);
    if (text != NULL && (folder->label_names != NULL || config->embeds))
        return DSC_HF_REFUSE(&reader, DSC_ERR_UNSUPPORTED, "a head for labels is not built for a multimodal model");
    if (text != NULL)
        DSC_TRY(read_wrapper(folder, &reader));
    if (dsc_lm_has_data(config) && folder->options->seq_length > 0) /* presets have one */
        dsc_hf_warn(folder->warning_lines, sizeof folder->warning_lines,
                    "the sequence length (dsc.seq_length) is for texts and has no effect: a sample is \"%s\"",
                    config->data.name);
    config->sequence = config->window > 0 ? dsc_min_i64(config->positions, config->window) : config->positions;
    if (folder->named != NULL && !dsc_lm_has_data(config))
        config->sequence = dsc_min_i64(config->positions, DSC_NAMED_SEQUENCE);
    if (config->longest_text > 0)
        config->sequence = dsc_min_i64(config->sequence, config->longest_text);
    DSC_TRY(dsc_lm_apply_options(config, folder->options, dsc_lm_adapter_rows(folder->family, folder->lora),
                                 folder->config_path, err));
    return dsc_lm_apply_ranks(config, folder->family, folder->options, folder->config_path, err);
}

static dsc_status open_weights(hf_folder *folder, dsc_error *err)
{
    if (folder->dir == NULL || !folder->options->want_weights)
        return DSC_OK;
    DSC_TRY(dsc_weights_open(&folder->weights, folder->alloc, folder->dir, err));
    if (folder->weights != NULL && folder->fp8_block[0] > 0)
        DSC_TRY(dsc_weights_find_scales(folder->weights, folder->fp8_block[0], folder->fp8_block[1], err));
    if (folder->weights != NULL) {
        dsc_lm_warn_beside(folder->weights, folder->family, folder->warning_lines, sizeof folder->warning_lines);
        dsc_lm_warn_later(folder->weights, folder->family, folder->config, folder->warning_lines,
                          sizeof folder->warning_lines);
    } else
        dsc_hf_warn(folder->warning_lines, sizeof folder->warning_lines,
                    "the folder has no *.safetensors: the weights are initialised afresh");
    return DSC_OK;
}

/* cJSON prints 2.0 as 2, which transformers refuses where a class declares a float. Numbers of whole value that have a
 * point in the file keep it; `to` is a copy of `from`, whose depth is limited. */
static bool keep_points(const cJSON *from, cJSON *to)
{
    int64_t whole = 0;
    char text[40];
    bool good = true;
    if (cJSON_IsNumber(from) && fabs(from->valuedouble) < 1e15 && floor(from->valuedouble) == from->valuedouble &&
        !dsc_json_integer(from, -DSC_JSON_INTEGER_MAX, DSC_JSON_INTEGER_MAX, &whole)) {
        const int bytes = 1 + snprintf(text, sizeof text, "%lld.0", (long long)from->valuedouble);
        to->valuestring = cJSON_malloc((size_t)bytes);
        if (to->valuestring == NULL)
            return false;
        memcpy(to->valuestring, text, (size_t)bytes);
        to->type = (to->type & ~0xff) | cJSON_Raw;
    }
    const cJSON *inner = from->child;
    for (cJSON *copy = to->child; copy != NULL && good; copy = copy->next, inner = inner->next)
        good = keep_points(inner, copy);
    return good;
}

static bool has_own_size(const hf_folder *folder)
{
    const struct dsc_network_options *network = &folder->options->network;
    return folder->named == NULL && folder->family->any_picture && !network->size_by_data && network->height > 0;
}

static bool write_size(cJSON *root, int64_t height, int64_t width)
{
    cJSON_DeleteItemFromObjectCaseSensitive(root, "image_size");
    cJSON *size = cJSON_AddArrayToObject(root, "image_size");
    return size != NULL && cJSON_AddItemToArray(size, cJSON_CreateNumber((double)height)) &&
           cJSON_AddItemToArray(size, cJSON_CreateNumber((double)width));
}

/* The file's own text says what a model is, with the rows of a padded or grown table, and without a tie that was
 * undone. */
static dsc_status set_config_text(hf_folder *folder, dsc_error *err)
{
    char *text = NULL;
    cJSON *root = cJSON_Duplicate(dsc_json_root(folder->json), true);
    dsc_status status = DSC_OK;
    bool good = root != NULL && keep_points(dsc_json_root(folder->json), root);
    if (good && folder->config->vocab_rows != folder->config->file_vocab) {
        const bool inside = folder->wrapper.object != NULL && folder->wrapper.object != dsc_json_root(folder->json);
        cJSON *const object = inside ? cJSON_GetObjectItemCaseSensitive(root, "text_config") : root;
        cJSON_DeleteItemFromObjectCaseSensitive(object, "vocab_size");
        good = cJSON_AddNumberToObject(object, "vocab_size", (double)folder->config->vocab_rows) != NULL;
    }
    if (good && is_quantized(folder)) /* saved weights are not */
        cJSON_DeleteItemFromObjectCaseSensitive(root, "quantization_config");
    if (good && folder->untied) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, "tie_word_embeddings");
        good = cJSON_AddFalseToObject(root, "tie_word_embeddings") != NULL;
    }
    if (good && folder->label_names != NULL)
        good = dsc_lm_write_labels(root, folder->family, folder->config, folder->label_names);
    if (good && folder->config->file_classes > 0)
        good = dsc_lm_write_classes(root, folder->config->vocab);
    if (good && has_own_size(folder))
        good = write_size(root, folder->options->network.height, folder->options->network.width);
    if (good && folder->config->embeds)
        good = dsc_lm_write_vectors(root, folder->family, folder->config);
    char *printed = good ? cJSON_Print(root) : NULL;
    if (printed == NULL)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, folder->config_path, "out of host memory: no config.json");
    else if ((int64_t)strlen(printed) > config_limits.bytes)
        status = DSC_FAIL(err, DSC_ERR_INPUT, folder->config_path,
                          "names of classes make a config.json of %lld bytes; expected at most %lld, which readers of "
                          "the saved model accept: give shorter names",
                          (long long)strlen(printed), (long long)config_limits.bytes);
    else
        status = dsc_alloc_strdup(folder->alloc, DSC_TAG_CONTROL, printed, &text, err);
    if (status == DSC_OK) {
        dsc_alloc_free(folder->alloc, folder->text);
        folder->text = text;
    }
    cJSON_free(printed);
    cJSON_Delete(root);
    return status;
}

/* PEFT copies a table that head and embedding have in common before it trains one of them. */
static void untie(hf_folder *folder)
{
    if (folder->lora == NULL || folder->dir == NULL || !folder->config->tied)
        return;
    folder->untied = dsc_lm_trains_table(folder->family, folder->lora);
    folder->config->tied &= !folder->untied;
    if (folder->untied)
        dsc_hf_warn(folder->warning_lines, sizeof folder->warning_lines,
                    "head and embedding are one table in config.json; as in PEFT, modules_to_save makes them two");
}

static dsc_status open_model(hf_folder *folder, dsc_model **out, dsc_error *err)
{
    DSC_TRY(read_config(folder, err));
    untie(folder);
    if (folder->config->vocab_rows != folder->config->file_vocab || folder->untied || is_quantized(folder) ||
        folder->label_names != NULL || folder->config->embeds || folder->config->file_classes > 0 ||
        has_own_size(folder))
        DSC_TRY(set_config_text(folder, err));
    DSC_TRY(open_weights(folder, err));
    dsc_lm_warn_grown(folder->config, folder->weights == NULL, folder->warning_lines, sizeof folder->warning_lines);
    if (folder->lora != NULL && folder->lora->warnings[0] != 0)
        dsc_hf_warn(folder->warning_lines, sizeof folder->warning_lines, "%s", folder->lora->warnings);
    if (folder->warning_lines[0] != 0)
        DSC_TRY(dsc_alloc_strdup(folder->alloc, DSC_TAG_CONTROL, folder->warning_lines, &folder->warnings, err));
    const dsc_lm_open_args args = { .family = folder->family,
                                    .name = folder->dir != NULL ? folder->dir : folder->config_path,
                                    .config = folder->config,
                                    .weights = folder->weights,
                                    .lora = folder->lora,
                                    .config_json = folder->text,
                                    .warnings = folder->warnings,
                                    .complete = folder->options->complete_weights,
                                    .untied = folder->untied,
                                    .packed = folder->packed,
                                    .mxfp4 = folder->mxfp4,
                                    .label_names = folder->label_names,
                                    .carried = folder->carried };
    DSC_TRY(dsc_lm_open(out, folder->alloc, &args, err));
    folder->text = NULL;
    folder->weights = NULL;
    folder->carried = NULL;
    folder->label_names = NULL;
    folder->warnings = NULL;
    return DSC_OK;
}

/* The members that the options name, which are architectures, or the usual ones. */
static size_t write_members(const struct dsc_network_options *options, char *out, size_t bytes)
{
    const bool given = options->member_count > 0;
    const char *const *members = given ? options->members : dsc_ensemble_usual;
    const int32_t count = given ? options->member_count : DSC_ENSEMBLE_USUAL;
    size_t used = (size_t)snprintf(out, bytes, ", \"members\": [");
    for (int32_t i = 0; i < count; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s\"%s\"", i > 0 ? ", " : "", members[i]);
    return used + (size_t)snprintf(out + used, bytes - used, "]");
}

/* The text of a built-in network, with the sizes that the options ask for. */
static void write_network(const hf_folder *folder, char *out, size_t bytes)
{
    const struct dsc_network_options *o = &folder->options->network;
    size_t used = (size_t)snprintf(out, bytes, "{\"architecture\": \"%s\"", folder->named->config);
    if (dsc_ensemble_is(folder->named->config))
        used += write_members(o, out + used, bytes - used);
    if (o->planes > 0)
        used += (size_t)snprintf(out + used, bytes - used, ", \"num_channels\": %lld", (long long)o->planes);
    if (o->height > 0)
        used += (size_t)snprintf(out + used, bytes - used, ", \"image_size\": [%lld, %lld]", (long long)o->height,
                                 (long long)o->width);
    if (o->classes > 0)
        used += (size_t)snprintf(out + used, bytes - used, ", \"num_classes\": %lld", (long long)o->classes);
    if (o->frames > 0)
        used += (size_t)snprintf(out + used, bytes - used, ", \"frames\": %lld", (long long)o->frames);
    used += (size_t)snprintf(out + used, bytes - used, "}");
    DSC_ASSERT(used < bytes);
}

static dsc_status read_text(hf_folder *folder, int64_t *bytes, dsc_error *err)
{
    if (folder->named == NULL)
        return dsc_io_read_all(NULL, folder->alloc, folder->config_path, config_limits.bytes, &folder->text, bytes,
                               err);
    if (folder->named->config[0] != '{') {
        char text[600];
        write_network(folder, text, sizeof text);
        *bytes = (int64_t)strlen(text);
        return dsc_alloc_strdup(folder->alloc, DSC_TAG_CONTROL, text, &folder->text, err);
    }
    *bytes = (int64_t)strlen(folder->named->config);
    return dsc_alloc_strdup(folder->alloc, DSC_TAG_CONTROL, folder->named->config, &folder->text, err);
}

static dsc_status open_folder(hf_folder *folder, dsc_model **out, dsc_error *err)
{
    int64_t bytes = 0;
    *out = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY_OUT(read_text(folder, &bytes, err));
    DSC_TRY_OUT(dsc_json_open(folder->alloc, folder->config_path, folder->text, bytes, DSC_JSON_STRICT, &config_limits,
                              &folder->json, err));
    DSC_TRY_OUT(find_family(folder, err));
    DSC_TRY_OUT(dsc_lm_check_network(folder->options, folder->family, folder->named != NULL, folder->config_path, err));
    DSC_TRY_OUT(open_model(folder, out, err));
out:
    dsc_weights_close(&folder->weights);
    dsc_wrapper_carried_close(&folder->carried);
    dsc_alloc_free(folder->alloc, (void *)(uintptr_t)folder->label_names);
    dsc_alloc_free(folder->alloc, folder->warnings);
    dsc_alloc_free(folder->alloc, folder->config);
    dsc_json_close(&folder->json);
    dsc_alloc_free(folder->alloc, folder->text);
    return status;
}

dsc_status dsc_hf_open(dsc_model **out, dsc_alloc *alloc, const char *config_path, const char *dir,
                       const dsc_model_options *options, dsc_lora_config *lora, dsc_error *err)
{
    hf_folder folder = { .alloc = alloc, .config_path = config_path, .dir = dir, .options = options, .lora = lora };
    return open_folder(&folder, out, err);
}

dsc_status dsc_hf_open_named(dsc_model **out, dsc_alloc *alloc, const dsc_named_model *named,
                             const dsc_model_options *options, dsc_lora_config *lora, dsc_error *err)
{
    hf_folder folder = { .alloc = alloc, .config_path = named->name, .named = named, .options = options, .lora = lora };
    return open_folder(&folder, out, err);
}
