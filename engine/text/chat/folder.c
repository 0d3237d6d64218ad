/* folder.c - see folder.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/folder.h"

#include <stdio.h>

#include "base/formats/json.h"
#include "engine/text/chat/chat_internal.h"

#define CONFIG_BYTES_MAX (INT64_C(64) << 20)

#define NO_CALLS                                                                                              \
    "{% if message.tool_calls %}{{ raise_exception('the model folder has no chat template, and the built-in one has " \
    "no calls of tools; give dsc.sft.template') }}{% endif %}"
static const char chatml[] = "{% for message in messages %}" NO_CALLS "<|im_start|>{{ message.role }}\n"
                             "{{ message.content }}<|im_end|>\n{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char plain[] = "{% for message in messages %}" NO_CALLS "{{ message.role }}: {{ message.content }}"
                            "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
                            "{% if add_generation_prompt %}assistant:{% endif %}";

/* ---- Special tokens ---- */

/* A token's text: a string, or the content of an object. NULL: none. */
static const char *token_text(const cJSON *value)
{
    if (cJSON_IsObject(value))
        value = cJSON_GetObjectItemCaseSensitive(value, "content");
    return cJSON_IsString(value) ? value->valuestring : NULL;
}

static dsc_status add_quoted(dsc_text *out, const char *text, dsc_error *err)
{
    const int64_t bytes = (int64_t)dsc_json_quote(NULL, 0, text);
    DSC_TRY(dsc_text_reserve(out, bytes + 1, err));
    (void)dsc_json_quote(out->ptr + out->bytes, (size_t)bytes + 1, text);
    out->bytes += bytes;
    return DSC_OK;
}

static dsc_status add_special(dsc_chat_folder *chat, const char *name, const char *text, dsc_error *err)
{
    DSC_TRY(dsc_text_add(&chat->special, chat->special.bytes > 1 ? "," : "", chat->special.bytes > 1, err));
    DSC_TRY(add_quoted(&chat->special, name, err));
    DSC_TRY(dsc_text_add(&chat->special, ":", 1, err));
    DSC_TRY(add_quoted(&chat->special, text, err));
    if (strcmp(name, "eos_token") == 0 && strlen(text) < sizeof chat->end_token)
        snprintf(chat->end_token, sizeof chat->end_token, "%s", text);
    return DSC_OK;
}

/* `config` and `map` are objects or NULL; the first that has a token counts. */
static dsc_status read_special(dsc_chat_folder *chat, const cJSON *config, const cJSON *map,
                               const dsc_tokenizer *tokenizer, dsc_error *err)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                                         "mask_token" };
    DSC_TRY(dsc_text_add(&chat->special, "{", 1, err));
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        const char *text = token_text(cJSON_GetObjectItemCaseSensitive(config, names[i]));
        if (text == NULL)
            text = token_text(cJSON_GetObjectItemCaseSensitive(map, names[i]));
        if (text == NULL && strcmp(names[i], "eos_token") == 0 && config == NULL && map == NULL)
            text = dsc_tokenizer_token(tokenizer, dsc_tokenizer_text_end(tokenizer));
        if (text != NULL)
            DSC_TRY(add_special(chat, names[i], text, err));
    }
    return dsc_text_add(&chat->special, "}", 1, err);
}

/* ---- Templates ---- */

/* Errors of the template get its source in front. */
static dsc_status open_template(dsc_chat_folder *chat, const char *text, int64_t bytes, dsc_chat_template **out,
                                dsc_error *err)
{
    dsc_error inner = DSC_ERROR_INIT;
    const dsc_status status = dsc_chat_template_open(chat->alloc, text, bytes, out, &inner);
    if (status == DSC_OK || err == NULL)
        return status;
    return DSC_FAIL(err, status, chat->source, "%s: %s", inner.where, inner.message);
}

static dsc_status read_template_file(dsc_chat_folder *chat, const dsc_io *io, const char *path, dsc_error *err)
{
    char *text = NULL;
    int64_t bytes = 0;
    snprintf(chat->source, sizeof chat->source, "%s", path);
    DSC_TRY(dsc_io_read_all(io, chat->alloc, path, DSC_CHAT_TEMPLATE_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = open_template(chat, text, bytes, &chat->chat, err);
    dsc_alloc_free(chat->alloc, text);
    return status;
}

/* [{"name": ..., "template": ...}, ...] */
static dsc_status read_named(dsc_chat_folder *chat, const cJSON *list, dsc_error *err)
{
    for (const cJSON *each = list->child; each != NULL; each = each->next) {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(each, "name");
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(each, "template");
        if (!cJSON_IsString(name) || !cJSON_IsString(text))
            return DSC_FAIL(err, DSC_ERR_INPUT, chat->source, "chat_template: expected a text, or a list of objects "
                            "with name and template");
        dsc_chat_template **out = strcmp(name->valuestring, "default") == 0    ? &chat->chat
                                  : strcmp(name->valuestring, "tool_use") == 0 ? &chat->with_tools
                                                                               : NULL;
        if (out != NULL && *out == NULL)
            DSC_TRY(open_template(chat, text->valuestring, (int64_t)strlen(text->valuestring), out, err));
    }
    return chat->chat != NULL ? DSC_OK
                              : DSC_FAIL(err, DSC_ERR_INPUT, chat->source, "chat_template: no template is named "
                                         "\"default\"; name one with dsc.sft.template");
}

static dsc_status read_configured(dsc_chat_folder *chat, const cJSON *config, dsc_error *err)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, "chat_template");
    if (value == NULL || cJSON_IsNull(value))
        return DSC_OK;
    if (cJSON_IsArray(value))
        return read_named(chat, value, err);
    if (!cJSON_IsString(value))
        return DSC_FAIL(err, DSC_ERR_INPUT, chat->source, "chat_template: expected a text, or a list of objects with "
                        "name and template");
    return open_template(chat, value->valuestring, (int64_t)strlen(value->valuestring), &chat->chat, err);
}

static dsc_status use_built_in(dsc_chat_folder *chat, const dsc_tokenizer *tokenizer, dsc_error *err)
{
    const bool has_chatml = dsc_tokenizer_find(tokenizer, "<|im_start|>") >= 0 &&
                            dsc_tokenizer_find(tokenizer, "<|im_end|>") >= 0;
    const char *text = has_chatml ? chatml : plain;
    chat->built_in = true;
    snprintf(chat->source, sizeof chat->source, "%s", has_chatml ? "the built-in ChatML" : "a built-in plain template");
    return open_template(chat, text, (int64_t)strlen(text), &chat->chat, err);
}

/* ---- The folder ---- */

/* A JSON object, NULL: no such file. The dialect of configs takes the integers above 2^53 that folders have. */
static dsc_status read_object(const dsc_io *io, dsc_alloc *alloc, const char *folder, const char *name, dsc_json **out,
                              dsc_error *err)
{
    const dsc_json_limits limits = { CONFIG_BYTES_MAX, 64, 4000000 };
    dsc_error inner = DSC_ERROR_INIT;
    char path[1024], *text = NULL;
    int64_t bytes = 0;
    *out = NULL;
    DSC_TRY(dsc_path_join(path, sizeof path, folder, name, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(io, alloc, path, CONFIG_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_CONFIG, &limits, out, &inner);
    dsc_alloc_free(alloc, text);
    if (status == DSC_ERR_CONFIG)
        status = DSC_FAIL(err, DSC_ERR_INPUT, inner.where, "%s", inner.message);
    else if (status != DSC_OK && err != NULL)
        *err = inner;
    if (status == DSC_OK && !cJSON_IsObject(dsc_json_root(*out)))
        status = DSC_FAIL(err, DSC_ERR_INPUT, path, "expected a JSON object");
    return status;
}

static const cJSON *root_of(const dsc_json *json) { return json != NULL ? dsc_json_root(json) : NULL; }

static dsc_status read_folder(dsc_chat_folder *chat, const dsc_io *io, const char *folder, const char *template_file,
                              const dsc_tokenizer *tokenizer, dsc_error *err)
{
    dsc_json *config = NULL, *map = NULL;
    char path[1024];
    dsc_status status;
    DSC_TRY_OUT(read_object(io, chat->alloc, folder, "tokenizer_config.json", &config, err));
    DSC_TRY_OUT(read_object(io, chat->alloc, folder, "special_tokens_map.json", &map, err));
    DSC_TRY_OUT(read_special(chat, root_of(config), root_of(map), tokenizer, err));
    DSC_TRY_OUT(dsc_path_join(path, sizeof path, folder, "chat_template.jinja", err));
    if (template_file[0] != 0) {
        DSC_TRY_OUT(read_template_file(chat, io, template_file, err));
    } else if (dsc_io_kind(path) == DSC_PATH_FILE) {
        DSC_TRY_OUT(read_template_file(chat, io, path, err));
    } else if (config != NULL) {
        DSC_TRY_OUT(dsc_path_join(chat->source, sizeof chat->source, folder, "tokenizer_config.json", err));
        DSC_TRY_OUT(read_configured(chat, root_of(config), err));
    }
    if (chat->chat == NULL)
        status = use_built_in(chat, tokenizer, err);
out:
    dsc_json_close(&config);
    dsc_json_close(&map);
    return status;
}

dsc_status dsc_chat_folder_open(const dsc_io *io, dsc_alloc *alloc, const char *folder, const char *template_file,
                                const dsc_tokenizer *tokenizer, dsc_chat_folder *out, dsc_error *err)
{
    *out = (dsc_chat_folder){ .alloc = alloc, .special = { .alloc = alloc } };
    const dsc_status status = read_folder(out, io, folder, template_file, tokenizer, err);
    if (status != DSC_OK)
        dsc_chat_folder_close(out);
    return status;
}

dsc_status dsc_chat_folder_of(const char *path, char *out, size_t out_bytes, dsc_error *err)
{
    const char *slash = strrchr(path, '/');
    int length;
    if (dsc_io_kind(path) == DSC_PATH_DIR)
        length = snprintf(out, out_bytes, "%s", path);
    else if (slash == NULL)
        length = snprintf(out, out_bytes, ".");
    else
        length = snprintf(out, out_bytes, "%.*s", (int)dsc_max_i64(slash - path, 1), path);
    return length >= 0 && (size_t)length < out_bytes
               ? DSC_OK
               : DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long; expected at most %zu bytes", out_bytes - 1);
}

void dsc_chat_folder_close(dsc_chat_folder *chat)
{
    dsc_chat_template_close(&chat->chat);
    dsc_chat_template_close(&chat->with_tools);
    dsc_text_free(&chat->special);
}
