/* labeled.c - see labeled.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/labeled.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/text/pair.h"

#define NUMBER_TEXT_MAX 64
/* Numbers whose square, and the sum of a batch's squares, fp32 holds. */
#define NUMBER_MAX 1e15

/* Names of columns that data sets of the Hugging Face hub have, the first one of which counts. */
static const char *const text_names[] = { "text", "sentence", "sentence1", "premise", "question1", "content" };
static const char *const pair_names[] = { "text_pair", "sentence2", "hypothesis", "question2" };
static const char *const label_names[] = { "label", "labels", "score" };

/* Limits of rows whose words have labels. */
static const char *const words_names[] = { "tokens", "words" };
static const char *const tags_names[] = { "ner_tags", "tags", "labels", "pos_tags", "label" };

typedef struct label_column {
    const char *name;   /* name of the column that the row has or should have */
    const cJSON *value; /* NULL: the row has none */
} label_column;

static label_column find_column(const dsc_sft_section *section, const cJSON *row, dsc_sft_column column,
                                const char *const *names, size_t count)
{
    const bool given = section->column[column][0] != 0;
    label_column out = { .name = given ? section->column[column] : names[0] };
    for (size_t i = 0; i < (given ? 1 : count) && out.value == NULL; i++) {
        const char *const name = given ? section->column[column] : names[i];
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(row, name);
        if (value != NULL && !cJSON_IsNull(value))
            out = (label_column) { name, value };
    }
    return out;
}

static label_column text_of(const dsc_sft_section *section, const cJSON *row)
{
    if (section->labels.tokens > 0)
        return find_column(section, row, DSC_SFT_COLUMN_TEXT, words_names, DSC_COUNT(words_names));
    return find_column(section, row, DSC_SFT_COLUMN_TEXT, text_names, DSC_COUNT(text_names));
}

static label_column pair_of(const dsc_sft_section *section, const cJSON *row)
{
    return find_column(section, row, DSC_SFT_COLUMN_TEXT_PAIR, pair_names, DSC_COUNT(pair_names));
}

static label_column label_of(const dsc_sft_section *section, const cJSON *row)
{
    if (section->labels.tokens > 0)
        return find_column(section, row, DSC_SFT_COLUMN_LABEL, tags_names, DSC_COUNT(tags_names));
    return find_column(section, row, DSC_SFT_COLUMN_LABEL, label_names, DSC_COUNT(label_names));
}

const char *dsc_sft_label_columns(const dsc_sft_section *section, const cJSON *row, char *out, size_t out_bytes)
{
    const label_column pair = pair_of(section, row);
    snprintf(out, out_bytes, "%.50s%s%.50s, %.50s", text_of(section, row).name, pair.value != NULL ? ", " : "",
             pair.value != NULL ? pair.name : "", label_of(section, row).name);
    return out;
}

/* ---- A label ---- */

typedef struct label_reader {
    const dsc_labels *labels;
    const char *where, *name; /* of the column */
    dsc_ids *words;
    dsc_error *err;
} label_reader;

static dsc_status refuse(const label_reader *r, const char *expected)
{
    return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "\"%.60s\" is not a label; expected %s", r->name, expected);
}

bool dsc_sft_label_number(const cJSON *value, double *out)
{
    *out = 0;
    if (cJSON_IsNumber(value)) {
        *out = value->valuedouble;
        return isfinite(*out);
    }
    if (!cJSON_IsString(value) || strlen(value->valuestring) > NUMBER_TEXT_MAX)
        return false;
    cJSON *parsed = cJSON_ParseWithOpts(value->valuestring, NULL, true);
    const bool good = cJSON_IsNumber(parsed) && isfinite(parsed->valuedouble);
    if (good)
        *out = parsed->valuedouble;
    cJSON_Delete(parsed);
    return good;
}

static dsc_status refuse_class(const label_reader *r, const cJSON *value)
{
    const dsc_labels *labels = r->labels;
    char text[80] = "of another type";
    double number = 0;
    if (cJSON_IsString(value))
        snprintf(text, sizeof text, "\"%.60s\"", value->valuestring);
    else if (dsc_sft_label_number(value, &number))
        snprintf(text, sizeof text, "%g", number);
    return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                    "\"%.60s\" is %s; expected one of %lld classes, 0 to %lld or a name (\"%.40s\" to \"%.40s\"): "
                    "dsc.labels.names or \"id2label\" of config.json has them",
                    r->name, text, (long long)labels->count, (long long)labels->count - 1, labels->names[0],
                    labels->names[labels->count - 1]);
}

/* Names such as "1" to "5": a number that names another class than it counts has two meanings. */
static dsc_status refuse_two_meanings(const label_reader *r, int64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)number);
    for (int64_t i = 0; i < r->labels->count; i++)
        if (i != number && strcmp(r->labels->names[i], text) == 0)
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                            "\"%.60s\" is the number %s, which is also the name of class %lld; write names as texts, "
                            "as \"%s\", or name the classes by other texts than numbers",
                            r->name, text, (long long)i, text);
    return DSC_OK;
}

/* A name comes before a number that a text may also be: all cells of a CSV file are texts. */
static dsc_status find_class(const label_reader *r, const cJSON *value, int32_t *out)
{
    double number = -1;
    if (cJSON_IsNumber(value) && fabs(value->valuedouble) < 1e9 && floor(value->valuedouble) == value->valuedouble)
        DSC_TRY(refuse_two_meanings(r, (int64_t)value->valuedouble));
    for (int64_t i = 0; cJSON_IsString(value) && i < r->labels->count; i++)
        if (strcmp(r->labels->names[i], value->valuestring) == 0) {
            *out = (int32_t)i;
            return DSC_OK;
        }
    if (!dsc_sft_label_number(value, &number) || number < 0 || number >= (double)r->labels->count ||
        floor(number) != number)
        return refuse_class(r, value);
    *out = (int32_t)number;
    return DSC_OK;
}

static dsc_status add_float(const label_reader *r, double number)
{
    const float value = (float)number;
    int32_t word;
    if (!(fabs(number) <= NUMBER_MAX))
        return refuse(r, "numbers from -1e15 to 1e15, whose squares the loss can add");
    memcpy(&word, &value, sizeof word);
    return dsc_ids_add(r->words, word, r->err);
}

/* A list of as many numbers as the model has. */
static dsc_status read_list(const label_reader *r, const cJSON *list, double least, double most)
{
    char expected[100];
    snprintf(expected, sizeof expected, "a list of %lld numbers%s", (long long)r->labels->count,
             most < 2 ? " from 0 to 1" : "");
    if (cJSON_GetArraySize(list) != r->labels->count)
        return refuse(r, expected);
    for (const cJSON *each = list->child; each != NULL; each = each->next) {
        double number = 0;
        if (!dsc_sft_label_number(each, &number) || number < least || number > most)
            return refuse(r, expected);
        DSC_TRY(add_float(r, number));
    }
    return DSC_OK;
}

static dsc_status read_numbers(const label_reader *r, const cJSON *value)
{
    double number = 0;
    if (cJSON_IsArray(value))
        return read_list(r, value, -HUGE_VAL, HUGE_VAL);
    if (r->labels->count != 1 || !dsc_sft_label_number(value, &number))
        return refuse(r, r->labels->count == 1 ? "a number" : "a list of numbers");
    return add_float(r, number);
}

/* A list of names of classes; or one of 0 or 1 for each class. */
static dsc_status read_set(const label_reader *r, const cJSON *value)
{
    const int64_t first = r->words->count;
    int32_t class_number = 0;
    if (!cJSON_IsArray(value))
        return refuse(r, "a list of names of classes, or of a number for each class");
    if (value->child != NULL && !cJSON_IsString(value->child))
        return read_list(r, value, 0, 1);
    for (int64_t i = 0; i < r->labels->count; i++)
        DSC_TRY(add_float(r, 0));
    for (const cJSON *each = value->child; each != NULL; each = each->next) {
        const float one = 1;
        if (!cJSON_IsString(each))
            return refuse(r, "a list of names of classes, or of a number for each class");
        DSC_TRY(find_class(r, each, &class_number));
        memcpy(&r->words->ptr[first + class_number], &one, sizeof one);
    }
    return DSC_OK;
}

static dsc_status read_label(const label_reader *r, const cJSON *value)
{
    int32_t class_number = 0;
    if (value == NULL)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is missing; expected the label of each row (format "
                        "labels): name the column in dsc.labels.columns.label",
                        r->name);
    if (r->labels->kind == DSC_LABELS_NUMBERS)
        return read_numbers(r, value);
    if (r->labels->kind == DSC_LABELS_SET)
        return read_set(r, value);
    DSC_TRY(find_class(r, value, &class_number));
    return dsc_ids_add(r->words, class_number, r->err);
}

/* ---- Texts ---- */

static dsc_status check_text(const char *where, label_column column, dsc_error *err)
{
    if (cJSON_IsString(column.value))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, where,
                    "\"%.60s\" is %s; expected a text (format labels): name the column in dsc.labels.columns.text",
                    column.name, column.value == NULL ? "missing" : "of another type");
}

/* A text's ids in `to`. */
static dsc_status encode(const dsc_sft_maker *m, const cJSON *value, dsc_ids *to, dsc_error *err)
{
    const int32_t *ids = NULL;
    int64_t count = 0;
    to->count = 0;
    DSC_TRY(dsc_encode(m->encoder, value->valuestring, (int64_t)strlen(value->valuestring), 0, &ids, &count, err));
    DSC_TRY(dsc_ids_reserve(to, count, err));
    if (count > 0)
        memcpy(to->ptr, ids, (size_t)count * sizeof *ids);
    to->count = count;
    return DSC_OK;
}

static dsc_status add_tokens(dsc_sft_maker *m, const int32_t *ids, int64_t count, int32_t type, dsc_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        DSC_TRY(dsc_ids_add(&m->ids, ids[i], err));
        DSC_TRY(dsc_ids_add(&m->counted, type, err));
    }
    return DSC_OK;
}

/* The texts alone, of a tokenizer that puts nothing around them. */
static const dsc_pair_piece bare[] = { { DSC_PAIR_FIRST, 0 }, { DSC_PAIR_SECOND, 1 } };

dsc_status dsc_sft_join_texts(dsc_sft_maker *m, const char *where, const dsc_ids text[2], bool pair, bool *truncated,
                              dsc_error *err)
{
    const dsc_pair_piece *piece = NULL;
    const int64_t start = m->ids.count;
    int64_t before = 0, after = 0, most = m->o->sequence, first = text[0].count, second = pair ? text[1].count : 0;
    int32_t count = dsc_tokenizer_pieces(m->o->tokenizer, pair, &piece);
    dsc_tokenizer_around(m->o->tokenizer, &before, &after);
    if (count == 0 && before + after > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "%s, and the post-processor of tokenizer.json has no form for it",
                        pair ? "a row of two texts" : "a text");
    if (count == 0) {
        piece = bare;
        count = 1 + pair;
    }
    for (int32_t i = 0; i < count; i++)
        most -= piece[i].id >= 0;
    if (most < 1 + pair)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "samples of %lld tokens have no room for a text; set a larger "
                        "dsc.seq_length",
                        (long long)m->o->sequence);
    dsc_pair_cut(most, &first, &second);
    *truncated = first < text[0].count || (pair && second < text[1].count);
    for (int32_t i = 0; i < count; i++) {
        const bool is_second = piece[i].id == DSC_PAIR_SECOND;
        if (piece[i].id >= 0)
            DSC_TRY(add_tokens(m, &piece[i].id, 1, piece[i].type, err));
        else
            DSC_TRY(add_tokens(m, text[is_second].ptr, is_second ? second : first, piece[i].type, err));
    }
    if (m->ids.count == start)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "the text has no token; leave the row out");
    return DSC_OK;
}

/* ---- Words with labels ---- */

/* The ids of a list of words in row.ids, each encoded alone. The first token of a word has its label, a word's other
 * tokens have -1: in row.counted. */
static dsc_status encode_words(dsc_sft_maker *m, const label_reader *r, const cJSON *list, const cJSON *labels,
                               dsc_error *err)
{
    const cJSON *label = labels->child;
    m->row.ids.count = m->row.counted.count = 0;
    for (const cJSON *word = list->child; word != NULL; word = word->next) {
        const int32_t *ids = NULL;
        int32_t tag = -1;
        int64_t count = 0;
        if (!cJSON_IsString(word) || label == NULL)
            return refuse(r, label == NULL ? "as many labels as words" : "words that are texts");
        const bool ignored = cJSON_IsNumber(label) && label->valuedouble == -100;
        if (!ignored)
            DSC_TRY(find_class(r, label, &tag));
        DSC_TRY(dsc_encode(m->encoder, word->valuestring, (int64_t)strlen(word->valuestring), 0, &ids, &count, err));
        for (int64_t i = 0; i < count; i++) {
            DSC_TRY(dsc_ids_add(&m->row.ids, ids[i], err));
            DSC_TRY(dsc_ids_add(&m->row.counted, i == 0 ? tag : -1, err));
        }
        label = label->next;
    }
    return label == NULL ? DSC_OK : refuse(r, "as many labels as words");
}

/* A class, or -1, for each token of a sample. The words' tokens begin behind the form's first piece. */
static dsc_status add_tags(dsc_sft_maker *m, int64_t count, dsc_error *err)
{
    const dsc_pair_piece *piece = NULL;
    const int32_t pieces = dsc_tokenizer_pieces(m->o->tokenizer, false, &piece);
    int64_t before = 0, around = pieces > 0 ? pieces - 1 : 0;
    while (before < pieces && piece[before].id >= 0)
        before++;
    for (int64_t i = 0; i < m->o->sequence; i++) {
        const int64_t word = i - before;
        const bool inside = word >= 0 && word < count - around;
        DSC_TRY(dsc_ids_add(&m->ids, inside ? m->row.counted.ptr[word] : -1, err));
    }
    return DSC_OK;
}

static dsc_status make_words(dsc_sft_maker *m, const label_reader *r, label_column words, const cJSON *labels,
                             dsc_sft_example *out, dsc_error *err)
{
    bool truncated = false;
    if (!cJSON_IsArray(words.value))
        return DSC_FAIL(err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is %s; expected a list of words (format labels): name "
                        "the column in dsc.labels.columns.text",
                        words.name, words.value == NULL ? "missing" : "of another type");
    if (labels != NULL && !cJSON_IsArray(labels))
        return refuse(r, "a list with the label of each word");
    if (labels == NULL)
        return read_label(r, NULL);
    DSC_TRY(encode_words(m, r, words.value, labels, err));
    const dsc_ids texts[2] = { m->row.ids, m->row.ids };
    DSC_TRY(dsc_sft_join_texts(m, r->where, texts, false, &truncated, err));
    const int64_t count = m->ids.count;
    DSC_TRY(add_tags(m, count, err));
    while (m->counted.count < m->ids.count)
        DSC_TRY(dsc_ids_add(&m->counted, 0, err));
    *out = (dsc_sft_example) { .ids = m->ids.ptr,
                               .counted = m->counted.ptr,
                               .count = count,
                               .label_words = m->ids.count - count,
                               .truncated = truncated };
    return DSC_OK;
}

dsc_status dsc_sft_make_labeled(dsc_sft_maker *m, const char *where, const cJSON *object, dsc_sft_example *out,
                                dsc_error *err)
{
    const dsc_sft_section *section = m->o->section;
    const label_column text = text_of(section, object), second = pair_of(section, object); /* of words there is none */
    const label_column label = label_of(section, object);
    const bool pair = second.value != NULL;
    const label_reader reader = { &section->labels, where, label.name, &m->ids, err };
    bool truncated = false;
    m->ids.count = m->counted.count = 0;
    m->row.format = DSC_SFT_LABELS;
    m->row.conversation = false;
    if (section->labels.tokens > 0)
        return make_words(m, &reader, text, label.value, out, err);
    DSC_TRY(check_text(where, text, err));
    DSC_TRY(encode(m, text.value, &m->row.ids, err));
    if (pair) {
        DSC_TRY(check_text(where, second, err));
        DSC_TRY(encode(m, second.value, &m->row.counted, err));
    }
    const dsc_ids texts[2] = { m->row.ids, m->row.counted };
    DSC_TRY(dsc_sft_join_texts(m, where, texts, pair, &truncated, err));
    const int64_t count = m->ids.count;
    if (!section->unlabeled)
        DSC_TRY(read_label(&reader, label.value));
    while (m->counted.count < m->ids.count)
        DSC_TRY(dsc_ids_add(&m->counted, 0, err));
    *out = (dsc_sft_example) { .ids = m->ids.ptr,
                               .counted = m->counted.ptr,
                               .count = count,
                               .label_words = m->ids.count - count,
                               .truncated = truncated };
    return DSC_OK;
}
