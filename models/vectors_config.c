/* vectors_config.c - models that make a vector of each text, as sentence-transformers has them: the modules of a
 * folder, and a family with such a head. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "models/families.h"
#include "models/lm.h"

#define FILE_BYTES_MAX 100000
#define PATH_BYTES 1024

/* The member of config.json that says how a saved model makes vectors. */
#define MEMBER "sentence_transformers"

static const char *const poolings[] = { "auto", "mean", "cls", "lasttoken" };
/* Members of older versions' 1_Pooling/config.json, in the order of poolings; the others have modes that are not built.
 */
static const char *const switches[] = { "", "pooling_mode_mean_tokens", "pooling_mode_cls_token",
                                        "pooling_mode_lasttoken" };
static const char *const other_switches[] = { "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
                                              "pooling_mode_weightedmean_tokens" };

/* Settings of a folder; DSC_POOLING_AUTO: it has none. */
typedef struct folder_vectors {
    dsc_pooling pooling;
    bool unit;
    int64_t longest; /* max_seq_length; 0: none */
} folder_vectors;

typedef struct folder_reader {
    dsc_alloc *alloc;
    const char *dir;
    int64_t width;         /* numbers of a vector of the model */
    char path[PATH_BYTES]; /* the file that is read */
    dsc_error *err;
} folder_reader;

#define REFUSE(r, ...) DSC_FAIL((r)->err, DSC_ERR_UNSUPPORTED, (r)->path, __VA_ARGS__)

/* *json stays NULL where nothing has the name. A link to nothing, a folder or a pipe fails to be read. */
static dsc_status open_file(folder_reader *r, const char *name, dsc_json **json)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char *text = NULL;
    int64_t bytes = 0;
    DSC_TRY(dsc_path_join(r->path, sizeof r->path, r->dir, name, r->err));
    if (dsc_io_kind(r->path) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(NULL, r->alloc, r->path, FILE_BYTES_MAX, &text, &bytes, r->err));
    const dsc_status status = dsc_json_open(r->alloc, r->path, text, bytes, DSC_JSON_STRICT, &limits, json, r->err);
    dsc_alloc_free(r->alloc, text);
    return status;
}

/* A member of a root that says yes, no, or nothing. */
static dsc_status check_switch(const folder_reader *r, const cJSON *root, const char *name)
{
    const cJSON *const value = cJSON_GetObjectItemCaseSensitive(root, name);
    if (value == NULL || cJSON_IsNull(value) || cJSON_IsBool(value))
        return DSC_OK;
    return REFUSE(r, "\"%s\" must be true or false", name);
}

/* The pooling of a text; refused: one of the others. */
static dsc_status find_pooling(const folder_reader *r, const char *name, dsc_pooling *out)
{
    for (size_t i = 1; i < DSC_COUNT(poolings); i++)
        if (strcmp(name, poolings[i]) == 0) {
            *out = (dsc_pooling)i;
            return DSC_OK;
        }
    return REFUSE(r, "pooling mode \"%.40s\" is not built; what exists: mean, cls and lasttoken", name);
}

static dsc_status read_switches(const folder_reader *r, const cJSON *root, dsc_pooling *out)
{
    for (size_t i = 0; i < DSC_COUNT(other_switches); i++)
        DSC_TRY(check_switch(r, root, other_switches[i]));
    for (size_t i = 1; i < DSC_COUNT(switches); i++)
        DSC_TRY(check_switch(r, root, switches[i]));
    for (size_t i = 0; i < DSC_COUNT(other_switches); i++)
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, other_switches[i])))
            return REFUSE(r, "\"%s\" is not built; what exists: mean, cls and lasttoken", other_switches[i]);
    for (size_t i = 1; i < DSC_COUNT(switches); i++) {
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, switches[i])))
            continue;
        if (*out != DSC_POOLING_AUTO)
            return REFUSE(r, "two pooling modes side by side are not built; expected one of mean, cls and lasttoken");
        *out = (dsc_pooling)i;
    }
    if (*out == DSC_POOLING_AUTO)
        return REFUSE(r, "names no pooling mode; expected \"pooling_mode\": \"mean\", \"cls\" or \"lasttoken\"");
    return DSC_OK;
}

/* The names of versions up to 5 and of later ones. */
static dsc_status check_width(const folder_reader *r, const cJSON *root)
{
    static const char *const names[] = { "word_embedding_dimension", "embedding_dimension" };
    for (size_t i = 0; i < DSC_COUNT(names); i++) {
        const cJSON *const value = cJSON_GetObjectItemCaseSensitive(root, names[i]);
        int64_t width = 0;
        if (value != NULL && !cJSON_IsNull(value) && !dsc_json_integer(value, r->width, r->width, &width))
            return REFUSE(r, "\"%s\" must be %lld, the width of the model's vectors", names[i], (long long)r->width);
    }
    return DSC_OK;
}

static dsc_status read_pooling_root(const folder_reader *r, const cJSON *root, dsc_pooling *out)
{
    const cJSON *const mode = cJSON_GetObjectItemCaseSensitive(root, "pooling_mode");
    if (!cJSON_IsObject(root))
        return REFUSE(r, "is not an object; expected the settings of a pooling");
    DSC_TRY(check_width(r, root));
    DSC_TRY(check_switch(r, root, "include_prompt"));
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(root, "include_prompt")))
        return REFUSE(r, "\"include_prompt\": false is not built: pooling has all tokens of a text");
    if (cJSON_IsString(mode))
        return find_pooling(r, mode->valuestring, out);
    if (mode != NULL && !cJSON_IsNull(mode))
        return REFUSE(r, "\"pooling_mode\" is not one text; expected \"mean\", \"cls\" or \"lasttoken\"");
    return read_switches(r, root, out);
}

static dsc_status read_pooling(folder_reader *r, const char *module, dsc_pooling *out)
{
    dsc_json *json = NULL;
    char name[PATH_BYTES];
    if (!dsc_path_is_plain(module))
        return REFUSE(r, "the path \"%.60s\" of the pooling is not that of a folder here", module);
    DSC_TRY(dsc_path_join(name, sizeof name, module, "config.json", r->err));
    DSC_TRY(open_file(r, name, &json));
    if (json == NULL)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->path, "is missing, and modules.json names it");
    const dsc_status status = read_pooling_root(r, dsc_json_root(json), out);
    dsc_json_close(&json);
    return status;
}

/* The name of a class, behind its last point. */
static const char *class_of(const cJSON *module)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(module, "type");
    const char *text = cJSON_IsString(type) ? type->valuestring : "";
    const char *point = strrchr(text, '.');
    return point != NULL ? point + 1 : text;
}

/* A transformer, its pooling and, in some folders, unit vectors. */
static dsc_status read_module(folder_reader *r, const cJSON *module, int64_t place, folder_vectors *out)
{
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(module, "path");
    const char *const name = class_of(module), *const folder = cJSON_IsString(path) ? path->valuestring : "";
    if (path != NULL && !cJSON_IsString(path))
        return REFUSE(r, "\"path\" of module %lld must be a text", (long long)place);
    if (place == 0 && strcmp(name, "Transformer") == 0) {
        if (folder[0] == 0)
            return DSC_OK;
        return REFUSE(r, "the transformer is in the folder \"%.60s\"; name that folder, and set dsc.embedding.pooling",
                      folder);
    }
    if (place == 1 && strcmp(name, "Pooling") == 0) {
        dsc_pooling pooling = DSC_POOLING_AUTO;
        DSC_TRY(read_pooling(r, folder, &pooling));
        out->pooling = pooling;
        return DSC_OK;
    }
    if (place == 2 && strcmp(name, "Normalize") == 0) {
        out->unit = true;
        return DSC_OK;
    }
    return REFUSE(r, "module %lld is \"%.60s\", which is not built there; what exists: Transformer, Pooling, Normalize",
                  (long long)place, name);
}

static dsc_status read_modules(folder_reader *r, folder_vectors *out)
{
    dsc_json *json = NULL;
    dsc_status status = DSC_OK;
    int64_t place = 0;
    DSC_TRY(open_file(r, "modules.json", &json));
    if (json == NULL)
        return DSC_OK;
    const cJSON *const list = dsc_json_root(json);
    char own[PATH_BYTES];
    snprintf(own, sizeof own, "%s", r->path);
    if (!cJSON_IsArray(list))
        status = REFUSE(r, "is not a list; expected a list of modules");
    for (const cJSON *each = cJSON_IsArray(list) ? list->child : NULL; each != NULL && status == DSC_OK;
         each = each->next) {
        status = read_module(r, each, place++, out);
        if (status == DSC_OK)
            snprintf(r->path, sizeof r->path, "%s", own);
    }
    if (status == DSC_OK && out->pooling == DSC_POOLING_AUTO)
        status = REFUSE(r, "has no pooling; expected the modules Transformer and Pooling");
    dsc_json_close(&json);
    return status;
}

static dsc_status read_longest(folder_reader *r, folder_vectors *out)
{
    dsc_json *json = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY(open_file(r, "sentence_bert_config.json", &json));
    if (json == NULL)
        return DSC_OK;
    const cJSON *const root = dsc_json_root(json);
    const cJSON *const longest = cJSON_GetObjectItemCaseSensitive(root, "max_seq_length");
    if (!cJSON_IsObject(root))
        status = REFUSE(r, "is not an object; expected \"max_seq_length\" and \"do_lower_case\" in one");
    else if ((status = check_switch(r, root, "do_lower_case")) != DSC_OK)
        ; /* the error is set */
    else if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "do_lower_case")))
        status = REFUSE(r, "\"do_lower_case\": true is not built; put a Lowercase normalizer into tokenizer.json");
    else if (longest != NULL && !cJSON_IsNull(longest) &&
             !dsc_json_integer(longest, 1, DSC_LM_POSITIONS_MAX, &out->longest))
        status = REFUSE(r, "\"max_seq_length\" must be a whole number from 1 to %d", DSC_LM_POSITIONS_MAX);
    dsc_json_close(&json);
    return status;
}

/* config.json of a checkpoint says it in one member, the folders of sentence-transformers in files. */
static dsc_status read_member(dsc_hf_config *reader, const cJSON *member, folder_vectors *out)
{
    const cJSON *pooling = cJSON_GetObjectItemCaseSensitive(member, "pooling");
    const cJSON *longest = cJSON_GetObjectItemCaseSensitive(member, "max_seq_length");
    const cJSON *unit = cJSON_GetObjectItemCaseSensitive(member, "normalize");
    for (size_t i = 1; i < DSC_COUNT(poolings) && cJSON_IsString(pooling); i++)
        if (strcmp(pooling->valuestring, poolings[i]) == 0)
            out->pooling = (dsc_pooling)i;
    if (out->pooling == DSC_POOLING_AUTO || (unit != NULL && !cJSON_IsBool(unit)) ||
        (longest != NULL && !dsc_json_integer(longest, 1, DSC_LM_POSITIONS_MAX, &out->longest)))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "\"" MEMBER "\" must have \"pooling\", one of mean, cls and lasttoken, a "
                             "\"normalize\" of true or false, and a \"max_seq_length\" of at least 1");
    out->unit = cJSON_IsTrue(unit);
    return DSC_OK;
}

static bool has_embedder(const dsc_lm_family *family) { return family->embedder != NULL; }

/* Changes what follows the last block. */
static void set_head(dsc_lm_family *family, dsc_lm_config *config)
{
    family->classifies = true;
    family->head_table = "";
    family->head_bias = NULL;
    family->beside = family->embedder->beside;
    config->embeds = true;
    config->tied = false;
    config->classes = config->channels;
    if (!config->masked)
        return;
    family->transform = family->transform_norm = NULL;
    family->final_norm = family->embedder->norm;
    config->bare_head = family->embedder->norm == NULL;
    config->no_transform = true;
    config->places_skip_padding = false; /* as for labels.c */
}

dsc_status dsc_lm_read_vectors(dsc_hf_config *reader, dsc_alloc *alloc, const char *dir,
                               const struct dsc_label_options *options, dsc_lm_family *family, dsc_lm_config *config)
{
    folder_vectors says = { .pooling = DSC_POOLING_AUTO };
    folder_reader files = { .alloc = alloc, .dir = dir, .width = config->channels, .err = reader->err };
    const cJSON *const member = dsc_hf_field(reader, MEMBER);
    DSC_ASSERT(dsc_label_kind_pairs(options->kind));
    if (family->embedder == NULL || config->embed_channels > 0 || config->channels > DSC_LABELS_MAX)
        return dsc_lm_refuse_family(reader, family, "vectors of texts are not", has_embedder);
    if (member != NULL)
        DSC_TRY(read_member(reader, member, &says));
    else if (dir != NULL) {
        DSC_TRY(read_modules(&files, &says));
        DSC_TRY(read_longest(&files, &says));
    }
    const dsc_pooling usual = config->masked ? DSC_POOLING_MEAN : DSC_POOLING_LAST;
    config->pooling = options->pooling != DSC_POOLING_AUTO ? options->pooling
                      : says.pooling != DSC_POOLING_AUTO   ? says.pooling
                                                           : usual;
    config->unit_vectors = options->unit != DSC_UNIT_AUTO ? options->unit == DSC_UNIT_YES : says.unit;
    config->similarity_scale = options->scale > 0 ? options->scale : 20;
    config->label_kind = options->kind;
    config->longest_text = says.longest;
    set_head(family, config);
    return DSC_OK;
}

bool dsc_lm_write_vectors(cJSON *root, const dsc_lm_family *family, const dsc_lm_config *config)
{
    static const char *const own[] = { "architectures", "num_labels", "id2label", "label2id", "problem_type", MEMBER };
    char text[100];
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(root, own[i]);
    snprintf(text, sizeof text, "%sModel", family->class_prefix);
    cJSON *list = cJSON_AddArrayToObject(root, "architectures");
    cJSON *const member = cJSON_AddObjectToObject(root, MEMBER);
    return list != NULL && member != NULL && cJSON_AddItemToArray(list, cJSON_CreateString(text)) &&
           cJSON_AddStringToObject(member, "pooling", poolings[config->pooling]) != NULL &&
           cJSON_AddBoolToObject(member, "normalize", config->unit_vectors) != NULL &&
           cJSON_AddNumberToObject(member, "dimension", (double)config->channels) != NULL &&
           cJSON_AddNumberToObject(member, "max_seq_length", (double)config->sequence) != NULL;
}
