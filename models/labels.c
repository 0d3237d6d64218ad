/* labels.c - heads that classify texts, as transformers' classes *ForSequenceClassification have them: what config.json
 * says about labels, and a family with such a head. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/families.h"
#include "models/lm.h"

/* Ends of the names of classes: labels of texts, and of tokens. */
static const char *const endings[] = { "ForSequenceClassification", "ForTokenClassification" };

static const char *const problems[] = { "", "single_label_classification", "regression", "multi_label_classification" };
static const dsc_label_kind kinds[] = { DSC_LABELS_NONE, DSC_LABELS_CLASS, DSC_LABELS_NUMBERS, DSC_LABELS_SET };

/* Whether the first architecture is such a class. */
static bool says_class(dsc_hf_config *reader, bool of_tokens)
{
    const cJSON *list = dsc_hf_field(reader, "architectures");
    const char *text = cJSON_IsArray(list) && cJSON_IsString(list->child) ? list->child->valuestring : "";
    const size_t bytes = strlen(text), end = strlen(endings[of_tokens]);
    return bytes > end && strcmp(text + bytes - end, endings[of_tokens]) == 0;
}

static bool says_labels(dsc_hf_config *reader) { return says_class(reader, false) || says_class(reader, true); }

static const dsc_lm_classifier *head_of(const dsc_lm_family *family, bool of_tokens)
{
    return of_tokens ? family->token_classifier : family->classifier;
}

static bool has_classifier(const dsc_lm_family *family) { return family->classifier != NULL; }

/* ---- names of classes -------------------------------------------------------------------------------------------- */

/* list[count] <- the names in "id2label" by their classes, whatever their order; NULL: a name is missing. */
static void list_names(const cJSON *id2label, int64_t count, const char **list)
{
    for (const cJSON *each = id2label->child; each != NULL; each = each->next) {
        char key[32];
        const long long i = strtoll(each->string, NULL, 10);
        snprintf(key, sizeof key, "%lld", i);
        if (i >= 0 && i < count && strcmp(key, each->string) == 0 && cJSON_IsString(each) && list[i] == NULL)
            list[i] = each->valuestring;
    }
}

static const char *name_of(const struct dsc_label_options *options, const char *const *list, int64_t i, char usual[32])
{
    snprintf(usual, 32, "LABEL_%lld", (long long)i);
    if (options->names != NULL)
        return options->names[i];
    return list != NULL ? list[i] : usual;
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* A row names one class, and "label2id" has a name once. */
static dsc_status refuse_equal_names(dsc_hf_config *reader, dsc_alloc *alloc, const char *const *list, int64_t count)
{
    const char **sorted = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *sorted, &sorted, reader->err));
    memcpy((void *)sorted, (const void *)list, (size_t)count * sizeof *sorted);
    qsort((void *)sorted, (size_t)count, sizeof *sorted, compare_texts);
    for (int64_t i = 1; i < count && status == DSC_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status =
                DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                              "\"id2label\" has \"%.60s\" for two classes; expected another name for each", sorted[i]);
    dsc_alloc_free(alloc, (void *)sorted);
    return status;
}

static dsc_status check_names(dsc_hf_config *reader, dsc_alloc *alloc, const char *const *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i] == NULL)
            return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                                 "\"id2label\" has no name for class %lld; expected a text for "
                                 "each of 0 to %lld",
                                 (long long)i, (long long)count - 1);
    return refuse_equal_names(reader, alloc, list, count);
}

/* Pointers and texts in one block. */
static dsc_status join_names(dsc_hf_config *reader, dsc_alloc *alloc, const struct dsc_label_options *options,
                             const char *const *list, int64_t count, const char *const **out)
{
    char usual[32];
    int64_t bytes = count * (int64_t)sizeof(char *);
    for (int64_t i = 0; i < count; i++)
        bytes += (int64_t)strlen(name_of(options, list, i, usual)) + 1;
    const char **names = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, bytes, 1, &names, reader->err));
    char *at = (char *)(names + count);
    for (int64_t i = 0; i < count; i++) {
        const char *name = name_of(options, list, i, usual);
        const size_t size = strlen(name) + 1;
        memcpy(at, name, size);
        names[i] = at;
        at += size;
    }
    *out = names;
    return DSC_OK;
}

static dsc_status copy_names(dsc_hf_config *reader, dsc_alloc *alloc, const struct dsc_label_options *options,
                             const cJSON *id2label, int64_t count, const char *const **out)
{
    const char **list = NULL;
    if (options->names != NULL || id2label == NULL || options->count != 0)
        return join_names(reader, alloc, options, NULL, count, out);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *list, &list, reader->err));
    list_names(id2label, count, list);
    dsc_status status = check_names(reader, alloc, list, count);
    if (status == DSC_OK)
        status = join_names(reader, alloc, options, list, count, out);
    dsc_alloc_free(alloc, (void *)list);
    return status;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static dsc_status read_count(dsc_hf_config *reader, const struct dsc_label_options *options, const cJSON *id2label,
                             int64_t *out)
{
    int64_t stated = 0;
    DSC_TRY(dsc_hf_int_or_null(reader, "num_labels", DSC_LABELS_MAX, 0, &stated));
    *out = options->count > 0 ? options->count : stated;
    if (options->count == 0 && id2label != NULL)
        *out = cJSON_GetArraySize(id2label);
    if (options->count == 0 && stated > 0 && *out != stated)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"num_labels\" is %lld and \"id2label\" has %lld names",
                             (long long)stated, (long long)*out);
    if (*out == 0 && options->kind == DSC_LABELS_NUMBERS)
        *out = 1;
    if (*out == 0 && says_labels(reader))
        *out = 2; /* transformers writes no id2label then */
    if (*out < 1 || *out > DSC_LABELS_MAX)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "the number of classes is not known, or above %d; name them in "
                             "dsc.labels.names, or set dsc.labels.count or \"id2label\" of config.json",
                             DSC_LABELS_MAX);
    return DSC_OK;
}

/* As transformers chooses it for whole numbers. */
static dsc_status read_kind(dsc_hf_config *reader, const struct dsc_label_options *options, dsc_lm_config *config)
{
    int32_t problem = 0;
    DSC_TRY(dsc_hf_choice(reader, "problem_type", problems, DSC_COUNT(problems), &problem));
    if (config->of_tokens)
        problem = DSC_LABELS_CLASS;
    config->label_kind = options->kind != DSC_LABELS_NONE ? options->kind : kinds[problem];
    if (config->label_kind == DSC_LABELS_NONE)
        config->label_kind = config->classes == 1 ? DSC_LABELS_NUMBERS : DSC_LABELS_CLASS;
    if (config->label_kind == DSC_LABELS_CLASS && config->classes < 2)
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT,
                             "a single-label classification needs at least 2 classes; set "
                             "dsc.labels.count, or dsc.labels.problem to \"regression\"");
    return DSC_OK;
}

/* Changes what follows the last block. */
static void set_head(dsc_lm_family *family, dsc_lm_config *config)
{
    const dsc_lm_classifier *head = head_of(family, config->of_tokens);
    family->classifies = true;
    family->head_table = head->table;
    family->head_bias = head->bias;
    family->beside = head->beside;
    config->tied = false;
    if (!config->masked)
        return;
    family->transform = head->transform;
    family->final_norm = head->norm;
    config->bare_head = head->norm == NULL;
    config->pools_tanh = head->tanh;
    config->no_transform = head->transform == NULL;
    if (head->relu)
        config->activation = DSC_RELU;
    /* Positions of the batch count the tokens of a text, as RoBERTa's places do. */
    config->places_skip_padding = false;
    config->takes_segments = family->segment_table != NULL && config->segments > 1;
}

dsc_status dsc_lm_read_labels(dsc_hf_config *reader, dsc_alloc *alloc, const struct dsc_label_options *options,
                              dsc_lm_family *family, dsc_lm_config *config, const char *const **names)
{
    static const char *const poolings[] = { "cls", "mean" };
    int32_t pooling = 0;
    const bool of_tokens = options->of_tokens || (options->kind == DSC_LABELS_NONE && says_class(reader, true));
    const dsc_lm_classifier *head = head_of(family, of_tokens);
    if (!options->wanted && (!says_labels(reader) || head == NULL))
        return DSC_OK;
    if (head == NULL || config->embed_channels > 0)
        return dsc_lm_refuse_family(reader, family, "a head for labels is not", has_classifier);
    config->of_tokens = of_tokens;
    const cJSON *id2label = dsc_hf_field(reader, "id2label");
    if (id2label != NULL && !cJSON_IsObject(id2label))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"id2label\" must be an object of numbers and names");
    DSC_TRY(read_count(reader, options, id2label, &config->classes));
    DSC_TRY(read_kind(reader, options, config));
    if (head->pools_by_key)
        DSC_TRY(dsc_hf_choice(reader, "classifier_pooling", poolings, DSC_COUNT(poolings), &pooling));
    config->pools_mean = pooling == 1;
    set_head(family, config);
    return copy_names(reader, alloc, options, id2label, config->classes, names);
}

bool dsc_lm_write_labels(cJSON *root, const dsc_lm_family *family, const dsc_lm_config *config,
                         const char *const *names)
{
    static const char *const own[] = { "architectures", "num_labels", "id2label", "label2id", "problem_type" };
    char text[100];
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(root, own[i]);
    snprintf(text, sizeof text, "%s%s", family->class_prefix, endings[config->of_tokens]);
    cJSON *list = cJSON_AddArrayToObject(root, "architectures");
    bool good = list != NULL && cJSON_AddItemToArray(list, cJSON_CreateString(text));
    cJSON *const by_id = cJSON_AddObjectToObject(root, "id2label");
    cJSON *const by_label = cJSON_AddObjectToObject(root, "label2id");
    good = good && by_id != NULL && by_label != NULL;
    for (int64_t i = 0; i < config->classes && good; i++) {
        snprintf(text, sizeof text, "%lld", (long long)i);
        good = cJSON_AddStringToObject(by_id, text, names[i]) != NULL &&
               cJSON_AddNumberToObject(by_label, names[i], (double)i) != NULL;
    }
    const char *const problem = problems[config->label_kind];
    return good && (config->of_tokens || cJSON_AddStringToObject(root, "problem_type", problem) != NULL);
}

/* The number where a key has it. */
static bool replace_number(cJSON *object, const char *key, int64_t number)
{
    if (cJSON_GetObjectItemCaseSensitive(object, key) == NULL)
        return true;
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    return cJSON_AddNumberToObject(object, key, (double)number) != NULL;
}

bool dsc_lm_write_classes(cJSON *root, int64_t classes)
{
    static const char *const names[] = { "label_names", "label_descriptions", "num_labels",
                                         "num_classes", "id2label",           "label2id" };
    const bool is_hf = cJSON_GetObjectItemCaseSensitive(root, "model_type") != NULL;
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(root, names[i]);
    if (!is_hf)
        return cJSON_AddNumberToObject(root, "num_classes", (double)classes) != NULL &&
               replace_number(cJSON_GetObjectItemCaseSensitive(root, "model_args"), "num_classes", classes) &&
               replace_number(cJSON_GetObjectItemCaseSensitive(root, "pretrained_cfg"), "num_classes", classes);
    cJSON *const by_id = cJSON_AddObjectToObject(root, "id2label");
    cJSON *const by_label = cJSON_AddObjectToObject(root, "label2id");
    bool good = by_id != NULL && by_label != NULL;
    for (int64_t i = 0; i < classes && good; i++) {
        char number[32], name[40];
        snprintf(number, sizeof number, "%lld", (long long)i);
        snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
        good = cJSON_AddStringToObject(by_id, number, name) != NULL &&
               cJSON_AddNumberToObject(by_label, name, (double)i) != NULL;
    }
    return good;
}

int32_t dsc_lm_describe_labels(const dsc_lm_config *config, dsc_batch_spec *out)
{
    const int64_t tokens = config->sequence, items = config->predictions;
    const int64_t numbers = config->embeds ? 2 : config->label_kind == DSC_LABELS_CLASS ? items : config->classes;
    const dsc_batch_spec all[DSC_LM_BATCH_MAX] = {
        [DSC_LM_TOKENS] = { "tokens", DSC_I32, 1, { tokens } },
        [DSC_LM_TARGETS] = { DSC_BATCH_TARGETS,
                             config->label_kind == DSC_LABELS_CLASS ? DSC_I32 : DSC_F32,
                             1,
                             { numbers } },
        [DSC_LM_POSITIONS] = { DSC_BATCH_POSITIONS, DSC_I32, 1, { tokens } },
        [DSC_LM_POOLED] = { DSC_BATCH_POOLED, DSC_I32, 1, { items } },
        [DSC_LM_SEGMENTS] = { DSC_BATCH_SEGMENTS, DSC_I32, 1, { tokens } }
    };
    memcpy(out, all, sizeof all);
    return config->takes_segments ? DSC_LM_BATCH_MAX : DSC_LM_SEGMENTS;
}
