/* export_vectors.c - see export_vectors.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/export_vectors.h"

#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/checkpoint/internal.h"

#define MEMBER "sentence_transformers" /* models/vectors_config.c writes it */
#define POOLING_FOLDER "1_Pooling"
#define UNIT_FOLDER "2_Normalize"
#define PROMPTS_FILE "config_sentence_transformers.json"
#define TEXT_BYTES 1024

/* Contents of the member, and the place of the files. */
typedef struct vectors {
    const dsc_io *io;
    const char *to;
    const char *pooling;
    bool unit;
    int64_t dimension, longest;
} vectors;

static dsc_status write_file(const vectors *v, const char *folder, const char *name, const char *text, dsc_error *err)
{
    char dir[DSC_CKPT_PATH_BYTES], path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(text[0] != 0);
    snprintf(dir, sizeof dir, "%s", v->to);
    if (folder[0] != 0) {
        DSC_TRY(dsc_path_join(dir, sizeof dir, v->to, folder, err));
        DSC_TRY(dsc_io_mkdir(v->io, dir, err));
    }
    DSC_TRY(dsc_path_join(path, sizeof path, dir, name, err));
    return dsc_io_write_all_atomic(v->io, path, text, (int64_t)strlen(text), err);
}

/* Names of classes that each version of sentence-transformers knows. */
static dsc_status write_modules(const vectors *v, dsc_error *err)
{
    static const char *const names[] = { "Transformer", "Pooling", "Normalize" };
    const char *const folders[] = { "", POOLING_FOLDER, UNIT_FOLDER };
    char text[TEXT_BYTES];
    int used = snprintf(text, sizeof text, "[");
    DSC_ASSERT(v->dimension >= 1);
    for (int i = 0; i < 2 + v->unit; i++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s\n  {\n    \"idx\": %d,\n    \"name\": \"%d\",\n    \"path\": \"%s\",\n    \"type\": "
                         "\"sentence_transformers.models.%s\"\n  }",
                         i > 0 ? "," : "", i, i, folders[i], names[i]);
    DSC_ASSERT(used + 4 < TEXT_BYTES);
    snprintf(text + used, sizeof text - (size_t)used, "\n]\n");
    return write_file(v, "", "modules.json", text, err);
}

static dsc_status write_pooling(const vectors *v, dsc_error *err)
{
    static const char *const modes[] = { "mean", "cls", "lasttoken" };
    static const char *const keys[] = { "mean_tokens", "cls_token", "lasttoken" };
    char text[TEXT_BYTES];
    int used = snprintf(text, sizeof text, "{\n  \"word_embedding_dimension\": %lld", (long long)v->dimension);
    DSC_ASSERT(v->pooling != NULL);
    for (size_t i = 0; i < DSC_COUNT(modes); i++)
        used += snprintf(text + used, sizeof text - (size_t)used, ",\n  \"pooling_mode_%s\": %s", keys[i],
                         strcmp(v->pooling, modes[i]) == 0 ? "true" : "false");
    snprintf(text + used, sizeof text - (size_t)used,
             ",\n  \"pooling_mode_max_tokens\": false,\n  \"pooling_mode_mean_sqrt_len_tokens\": false,\n  "
             "\"pooling_mode_weightedmean_tokens\": false,\n  \"include_prompt\": true\n}\n");
    return write_file(v, POOLING_FOLDER, "config.json", text, err);
}

static dsc_status write_all(const vectors *v, dsc_error *err)
{
    char text[TEXT_BYTES], path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(v->longest >= 1);
    snprintf(text, sizeof text, "{\n  \"max_seq_length\": %lld,\n  \"do_lower_case\": false\n}\n",
             (long long)v->longest);
    DSC_TRY(write_file(v, "", "sentence_bert_config.json", text, err));
    DSC_TRY(dsc_path_join(path, sizeof path, v->to, PROMPTS_FILE, err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING) /* else it is the model folder's */
        DSC_TRY(write_file(v, "", PROMPTS_FILE,
                           "{\n  \"prompts\": {},\n  \"default_prompt_name\": null,\n  \"similarity_fn_name\": "
                           "\"cosine\"\n}\n",
                           err));
    DSC_TRY(write_pooling(v, err));
    if (v->unit)
        DSC_TRY(write_file(v, UNIT_FOLDER, "config.json", "{}\n", err));
    return write_modules(v, err);
}

/* The folders inside of one that fails are removed here: who removes that one looks at its files alone. */
static dsc_status write_or_remove(const vectors *v, dsc_error *err)
{
    static const char *const folders[] = { POOLING_FOLDER, UNIT_FOLDER };
    char path[DSC_CKPT_PATH_BYTES];
    const dsc_status status = write_all(v, err);
    DSC_ASSERT(v->to[0] != 0);
    for (size_t i = 0; i < DSC_COUNT(folders) && status != DSC_OK; i++)
        if (dsc_path_join(path, sizeof path, v->to, folders[i], NULL) == DSC_OK)
            (void)!dsc_io_remove_dir(v->io, path, NULL);
    return status;
}

static dsc_status read_member(const char *path, const cJSON *root, vectors *out, dsc_error *err)
{
    const cJSON *const member = cJSON_GetObjectItemCaseSensitive(root, MEMBER);
    const cJSON *const pooling = cJSON_GetObjectItemCaseSensitive(member, "pooling");
    DSC_ASSERT(cJSON_IsObject(member));
    if (!cJSON_IsString(pooling) ||
        !dsc_json_integer(cJSON_GetObjectItemCaseSensitive(member, "dimension"), 1, DSC_JSON_INTEGER_MAX,
                          &out->dimension) ||
        !dsc_json_integer(cJSON_GetObjectItemCaseSensitive(member, "max_seq_length"), 1, DSC_JSON_INTEGER_MAX,
                          &out->longest))
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "\"" MEMBER "\" needs a pooling, a dimension and a max_seq_length, as a run with "
                        "dsc.embedding writes them");
    out->pooling = pooling->valuestring;
    out->unit = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(member, "normalize"));
    return DSC_OK;
}

dsc_status dsc_ckpt_export_vectors(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, const char *to,
                                   dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_MODEL; /* as the model's reader has */
    vectors v = { .io = io, .to = to };
    char path[DSC_CKPT_PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    DSC_ASSERT(step_dir[0] != 0);
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[DSC_CKPT_CONFIG], err));
    DSC_TRY(dsc_io_read_all(io, alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &text, &bytes, err));
    if (strstr(text, "\"" MEMBER "\"") == NULL) { /* another model's text is not looked at any further */
        dsc_alloc_free(alloc, text);
        return DSC_OK;
    }
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    dsc_alloc_free(alloc, text);
    const cJSON *const root = status == DSC_OK ? dsc_json_root(json) : NULL;
    if (status == DSC_OK && cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, MEMBER))) {
        status = read_member(path, root, &v, err);
        if (status == DSC_OK)
            status = write_or_remove(&v, err);
    }
    dsc_json_close(&json);
    return status;
}
