/* companions.c - see companions.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/companions.h"

#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"

#define COMPANION_BYTES_MAX (INT64_C(256) << 20)
#define COPY_BYTES 32768

static const char *const of_tokenizer[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
    "chat_template.json" };
static const char *const of_model[] = { "config_sentence_transformers.json", "generation_config.json",
                                        "preprocessor_config.json", "processor_config.json",
                                        "video_preprocessor_config.json" };

void dsc_ckpt_companion_add(dsc_ckpt_companion_list *list, const char *name, const uint8_t sha256[32])
{
    char hex[65];
    if (list == NULL)
        return;
    dsc_hex(hex, sha256, 32);
    const int64_t room = (int64_t)sizeof list->text - list->bytes;
    const int bytes = snprintf(list->text + list->bytes, (size_t)room, "%s  %s\n", hex, name);
    DSC_ASSERT(bytes > 0);
    DSC_ASSERT(bytes < room); /* names are those of the lists here */
    list->bytes += bytes;
}

static dsc_status copy_bytes(const dsc_io *io, dsc_file *from, dsc_file *to, uint8_t sha256[32], dsc_error *err)
{
    char block[COPY_BYTES];
    int64_t bytes = 0;
    dsc_sha256 sha;
    dsc_sha256_init(&sha);
    DSC_TRY(dsc_io_size(io, from, &bytes, err));
    if (bytes > COMPANION_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, from->path, "%lld bytes; a file beside a model has at most %lld",
                        (long long)bytes, (long long)COMPANION_BYTES_MAX);
    for (int64_t at = 0; at < bytes; at += COPY_BYTES) {
        const int64_t count = dsc_min_i64(COPY_BYTES, bytes - at);
        DSC_ASSERT(count > 0);
        DSC_TRY(dsc_io_read(io, from, block, count, at, err));
        DSC_TRY(dsc_io_write(io, to, block, count, at, err));
        dsc_sha256_update(&sha, block, (size_t)count);
    }
    dsc_sha256_final(&sha, sha256);
    return dsc_io_fsync(io, to, err);
}

static dsc_status copy_file(const dsc_io *io, const char *path, const char *to, const char *name,
                            dsc_ckpt_companion_list *list, dsc_error *err)
{
    char target[DSC_CKPT_PATH_BYTES];
    uint8_t sha256[32];
    dsc_file in = DSC_FILE_INIT, out = DSC_FILE_INIT;
    DSC_ASSERT(dsc_path_is_plain(name));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_path_join(target, sizeof target, to, name, err));
    dsc_status status = dsc_io_open(io, path, DSC_IO_READ_ONLY, &in, err);
    if (status == DSC_OK)
        status = dsc_io_open(io, target, DSC_IO_CREATE_NEW, &out, err);
    if (status == DSC_OK)
        status = copy_bytes(io, &in, &out, sha256, err);
    (void)dsc_io_close(io, &in, NULL); /* only read: nothing can be lost */
    const dsc_status closed = dsc_io_close(io, &out, status == DSC_OK ? err : NULL);
    if (status == DSC_OK && closed == DSC_OK)
        dsc_ckpt_companion_add(list, name, sha256);
    return status != DSC_OK ? status : closed;
}

static dsc_status copy_list(const dsc_io *io, const char *folder, const char *const *names, size_t count,
                            const char *to, dsc_ckpt_companion_list *list, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(count > 0);
    for (size_t i = 0; i < count && folder != NULL; i++) {
        DSC_TRY(dsc_path_join(path, sizeof path, folder, names[i], err));
        DSC_TRY(copy_file(io, path, to, names[i], list, err));
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_copy_companions(const dsc_io *io, const dsc_ckpt_companions *from, const char *to,
                                    dsc_ckpt_companion_list *list, dsc_error *err)
{
    const char *const given = from->tokenizer != NULL ? from->tokenizer : "";
    const char *folder = given[0] == 0 ? from->model : given;
    char parent[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(to[0] != 0);
    DSC_TRY(copy_list(io, from->model, of_model, DSC_COUNT(of_model), to, list, err));
    if (strcmp(given, "none") == 0)
        return DSC_OK;
    if (given[0] != 0 && dsc_io_kind(given) == DSC_PATH_FILE) {
        snprintf(parent, sizeof parent, "%s", given);
        char *slash = strrchr(parent, '/');
        const char *const name = slash != NULL ? slash + 1 : parent;
        if (strcmp(name, of_tokenizer[0]) != 0) /* a file of another name stands alone */
            return copy_file(io, given, to, of_tokenizer[0], list, err);
        if (slash != NULL)
            slash[slash == parent] = 0;
        folder = slash != NULL ? parent : ".";
    }
    return copy_list(io, folder, of_tokenizer, DSC_COUNT(of_tokenizer), to, list, err);
}

/* ---- config.json ---- */

/* The value of a member of the outermost object: text[*first, *end). */
static bool find_member(const char *text, int64_t bytes, const char *key, int64_t *first, int64_t *end)
{
    const int64_t key_bytes = (int64_t)strlen(key);
    int64_t depth = 0, start = -1;
    bool in_string = false, found = false;
    for (int64_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (in_string && c == '\\') {
            i++;
        } else if (c == '"') {
            in_string = !in_string;
            if (in_string)
                start = i + 1;
            else if (!found && depth == 1)
                found = i - start == key_bytes && memcmp(text + start, key, (size_t)key_bytes) == 0;
        } else if (!in_string && found && c == ':' && depth == 1) {
            *first = i + 1;
            *first += (int64_t)strspn(text + *first, " \t\r\n");
            const char *const value = text + *first;
            const char *const close = value[0] == '"' ? strchr(value + 1, '"') : NULL;
            *end = *first + (close != NULL ? close - value + 1 : (int64_t)strcspn(value, ",} \t\r\n"));
            return true;
        } else if (!in_string) {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            found = found && (c == ' ' || c == '\t' || c == '\r' || c == '\n');
        }
    }
    return false;
}

/* PyTorch's name. */
static const char *dtype_name(dsc_dtype dtype)
{
    DSC_ASSERT(dtype == DSC_F32 || dtype == DSC_BF16 || dtype == DSC_F16);
    return dtype == DSC_F32 ? "float32" : dtype == DSC_BF16 ? "bfloat16" : "float16";
}

/* Replaces text[first, end) by a value. */
static dsc_status replace(dsc_alloc *alloc, char **text, int64_t *bytes, int64_t first, int64_t end, const char *value,
                          dsc_error *err)
{
    const int64_t added = (int64_t)strlen(value);
    char *out = NULL;
    DSC_ASSERT(first <= end);
    DSC_ASSERT(end <= *bytes);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, *bytes + added + 1, 1, &out, err));
    memcpy(out, *text, (size_t)first);
    memcpy(out + first, value, (size_t)added);
    memcpy(out + first + added, *text + end, (size_t)(*bytes - end));
    dsc_alloc_free(alloc, *text);
    *text = out;
    *bytes += added - (end - first);
    return DSC_OK;
}

dsc_status dsc_ckpt_config_with_dtype(dsc_alloc *alloc, const char *text, int64_t bytes, dsc_dtype dtype, char **out,
                                      int64_t *out_bytes, dsc_error *err)
{
    static const char *const keys[] = { "torch_dtype", "dtype" };
    const char *const name = dtype_name(dtype), *const brace = memchr(text, '{', (size_t)bytes);
    int64_t first = 0, end = 0;
    char value[80];
    bool found = false;
    DSC_ASSERT(bytes >= 0);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, bytes + 1, 1, out, err));
    memcpy(*out, text, (size_t)bytes);
    *out_bytes = bytes;
    dsc_status status = DSC_OK;
    for (size_t i = 0; i < DSC_COUNT(keys) && status == DSC_OK; i++)
        if (find_member(*out, *out_bytes, keys[i], &first, &end)) {
            found = true;
            snprintf(value, sizeof value, "\"%s\"", name);
            status = replace(alloc, out, out_bytes, first, end, value, err);
        }
    if (!found && brace != NULL) {
        first = brace - text + 1;
        snprintf(value, sizeof value, "\n  \"torch_dtype\": \"%s\"%s", name,
                 text[first + (int64_t)strspn(text + first, " \t\r\n")] == '}' ? "" : ",");
        status = replace(alloc, out, out_bytes, first, first, value, err);
    }
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, *out);
        *out = NULL;
    }
    return status;
}
