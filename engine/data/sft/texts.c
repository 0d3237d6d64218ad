/* texts.c - see texts.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/texts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/data/sft/labeled.h"

#define NAME_BYTES 160
#define NEGATIVES_MAX (DSC_TEXTS_MAX - 2)
#define SCORE_MAX 1e15 /* as labels have: the loss adds squares and differences of scores */

/* Names of columns that data sets of the Hugging Face hub have, the first one of which counts. */
static const char *const anchor_names[] = {
    "anchor", "query", "sentence1", "question", "premise", "text1", "sentence_A"
};
static const char *const positive_names[] = { "positive", "answer",     "document", "passage",   "sentence2",
                                              "response", "hypothesis", "text2",    "sentence_B" };
static const char *const score_names[] = { "score", "label", "similarity_score" };
static const char *const alone_names[] = { "text", "sentence", "anchor", "query", "sentence1", "content" };

/* A column of a row: its name, and its value or NULL. */
typedef struct text_column {
    char name[NAME_BYTES];
    const cJSON *value;
} text_column;

static text_column take(const cJSON *row, const char *name)
{
    text_column out;
    snprintf(out.name, sizeof out.name, "%s", name);
    out.value = cJSON_GetObjectItemCaseSensitive(row, name);
    if (cJSON_IsNull(out.value))
        out.value = NULL;
    return out;
}

static text_column find(const dsc_sft_section *section, const cJSON *row, dsc_sft_column column,
                        const char *const *names, size_t count)
{
    if (section->column[column][0] != 0)
        return take(row, section->column[column]);
    text_column out = take(row, names[0]);
    for (size_t i = 1; i < count && out.value == NULL; i++) {
        const text_column other = take(row, names[i]);
        if (other.value != NULL)
            out = other;
    }
    return out;
}

static text_column anchor_of(const dsc_sft_section *section, const cJSON *row)
{
    if (section->unlabeled)
        return find(section, row, DSC_SFT_COLUMN_TEXT, alone_names, DSC_COUNT(alone_names));
    return find(section, row, DSC_SFT_COLUMN_TEXT, anchor_names, DSC_COUNT(anchor_names));
}

static text_column positive_of(const dsc_sft_section *section, const cJSON *row)
{
    return find(section, row, DSC_SFT_COLUMN_TEXT_PAIR, positive_names, DSC_COUNT(positive_names));
}

static text_column score_of(const dsc_sft_section *section, const cJSON *row)
{
    return find(section, row, DSC_SFT_COLUMN_LABEL, score_names, DSC_COUNT(score_names));
}

static const char *negative_base(const dsc_sft_section *section)
{
    const char *const given = section->column[DSC_SFT_COLUMN_NEGATIVE];
    return given[0] != 0 ? given : "negative";
}

/* Negative 0 is "negative", or else "negative_1"; those behind it are "negative_2" and so on. */
static text_column negative_of(const dsc_sft_section *section, const cJSON *row, int64_t number)
{
    const char *const base = negative_base(section);
    const bool plain = take(row, base).value != NULL;
    char name[NAME_BYTES];
    if (number == 0 && plain)
        return take(row, base);
    snprintf(name, sizeof name, "%.130s_%lld", base, (long long)number + !plain);
    return take(row, name);
}

static int64_t count_negatives(const dsc_sft_section *section, const cJSON *row)
{
    int64_t count = 0;
    while (count <= NEGATIVES_MAX && negative_of(section, row, count).value != NULL)
        count++;
    return count;
}

static bool needs_score(const dsc_sft_section *section) { return section->labels.kind != DSC_LABELS_RANKED; }

const char *dsc_sft_text_columns(const dsc_sft_section *section, const cJSON *row, char *out, size_t out_bytes)
{
    const int64_t negatives = count_negatives(section, row);
    const text_column score = score_of(section, row);
    size_t used =
        (size_t)snprintf(out, out_bytes, "%.30s, %.30s", anchor_of(section, row).name, positive_of(section, row).name);
    if (negatives > 0 && used < out_bytes)
        used += (size_t)snprintf(out + used, out_bytes - used, ", %.30s", negative_of(section, row, 0).name);
    if (negatives > 1 && used < out_bytes)
        used +=
            (size_t)snprintf(out + used, out_bytes - used, " to %.30s", negative_of(section, row, negatives - 1).name);
    if (score.value != NULL && used < out_bytes)
        snprintf(out + used, out_bytes - used, ", %.30s%s", score.name,
                 needs_score(section) ? "" : " (for evaluation alone)");
    return out;
}

/* ---- A row ---- */

typedef struct text_row {
    dsc_sft_maker *maker;
    const char *where;
    const cJSON *object;
    dsc_sft_example *out;
    dsc_error *err;
} text_row;

static dsc_status add(const text_row *r, int32_t id)
{
    DSC_TRY(dsc_ids_add(&r->maker->ids, id, r->err));
    return dsc_ids_add(&r->maker->counted, 0, r->err);
}

/* The text with its prompt, as ids in row.ids. */
static dsc_status encode(const text_row *r, const char *prompt, const char *text)
{
    dsc_sft_maker *const m = r->maker;
    dsc_ids *const to = &m->row.ids;
    const int32_t *ids = NULL;
    int64_t count = 0;
    m->text.bytes = to->count = 0;
    DSC_TRY(dsc_text_add(&m->text, prompt, (int64_t)strlen(prompt), r->err));
    DSC_TRY(dsc_text_add(&m->text, text, (int64_t)strlen(text), r->err));
    DSC_TRY(dsc_encode(m->encoder, m->text.ptr != NULL ? m->text.ptr : "", m->text.bytes, 0, &ids, &count, r->err));
    DSC_TRY(dsc_ids_reserve(to, count, r->err));
    if (count > 0)
        memcpy(to->ptr, ids, (size_t)count * sizeof *ids);
    to->count = count;
    return DSC_OK;
}

/* Appends a text in the tokenizer's form; its tokens are counted in row.counted. */
static dsc_status add_text(const text_row *r, const text_column *column, const char *prompt)
{
    dsc_sft_maker *const m = r->maker;
    bool truncated = false;
    const int64_t first = m->ids.count;
    if (!cJSON_IsString(column->value))
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "\"%.60s\" is %s; expected a text (format texts): name %s",
                        column->name, column->value == NULL ? "missing" : "of another type",
                        m->o->section->unlabeled ? "its column with --text" : "the columns in dsc.embedding.columns");
    if (column->value->valuestring[strspn(column->value->valuestring, " \t\r\n")] == 0)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "\"%.60s\" is an empty text; leave the row out", column->name);
    DSC_TRY(encode(r, prompt, column->value->valuestring));
    const dsc_ids texts[2] = { m->row.ids, m->row.ids };
    DSC_TRY(dsc_sft_join_texts(m, r->where, texts, false, &truncated, r->err));
    r->out->truncated |= truncated;
    return dsc_ids_add(&m->row.counted, (int32_t)(m->ids.count - first), r->err);
}

static dsc_status read_score(const text_row *r, float *out)
{
    const dsc_sft_section *section = r->maker->o->section;
    const text_column score = score_of(section, r->object);
    double number = 0;
    *out = NAN;
    if (score.value == NULL && !needs_score(section))
        return DSC_OK;
    if (score.value == NULL)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is missing; expected the score of each pair: name the column in "
                        "dsc.embedding.columns.score, or set dsc.embedding.loss to multiple_negatives",
                        score.name);
    if (!dsc_sft_label_number(score.value, &number) || fabs(number) > SCORE_MAX)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is not a score; expected a number from -1e15 to 1e15", score.name);
    if (section->labels.kind == DSC_LABELS_COSINE && fabs(number) > 1)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is %g, and no cosine is; expected -1 to 1: divide all scores by the largest one, or "
                        "set dsc.embedding.loss to cosent",
                        score.name, number);
    *out = (float)number;
    return DSC_OK;
}

/* A column that is named like a negative and is not read: behind a gap in the numbers, or a list. */
static dsc_status check_other_negatives(const text_row *r, int64_t count)
{
    const char *const base = negative_base(r->maker->o->section);
    const size_t bytes = strlen(base);
    for (const cJSON *each = r->object->child; each != NULL; each = each->next) {
        const char *const rest = strncmp(each->string, base, bytes) == 0 ? each->string + bytes : "";
        const bool numbered = rest[0] == '_' && rest[1] != 0 && rest[1 + strspn(rest + 1, "0123456789")] == 0;
        bool used = cJSON_IsNull(each) || (!numbered && strcmp(rest, "s") != 0);
        for (int64_t i = 0; i < count && !used; i++)
            used = strcmp(negative_of(r->maker->o->section, r->object, i).name, each->string) == 0;
        if (!used)
            return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                            "\"%.60s\" is not read: negatives are texts named \"%.60s\", \"%.60s_1\", \"%.60s_2\" and "
                            "so on, without a gap; rename the column, or leave it out",
                            each->string, base, base, base);
    }
    return DSC_OK;
}

/* Losses of scores compare two texts. */
static dsc_status check_negatives(const text_row *r, int64_t count)
{
    const dsc_sft_section *section = r->maker->o->section;
    if (count > NEGATIVES_MAX)
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where, "more than %d negatives; leave the others out", NEGATIVES_MAX);
    if (count > 0 && needs_score(section))
        return DSC_FAIL(r->err, DSC_ERR_INPUT, r->where,
                        "\"%.60s\" is a negative, and the loss compares pairs with a score; set dsc.embedding.loss to "
                        "multiple_negatives, or leave the column out",
                        negative_of(section, r->object, 0).name);
    return check_other_negatives(r, count);
}

/* The words of the row behind the ids: the texts' tokens, which row.counted has, and the score. */
static dsc_status add_words(const text_row *r, float score)
{
    const dsc_ids *lengths = &r->maker->row.counted;
    int32_t word;
    r->out->count = r->maker->ids.count;
    r->out->texts = lengths->count;
    for (int64_t i = 0; i < lengths->count; i++)
        DSC_TRY(add(r, lengths->ptr[i]));
    memcpy(&word, &score, sizeof word);
    DSC_TRY(add(r, word));
    r->out->label_words = r->maker->ids.count - r->out->count;
    return DSC_OK;
}

static dsc_status add_row(const text_row *r)
{
    const cJSON *const object = r->object;
    const dsc_sft_section *section = r->maker->o->section;
    const text_column positive = positive_of(section, object);
    const int64_t negatives = count_negatives(section, object);
    float score = NAN;
    DSC_TRY(check_negatives(r, negatives));
    DSC_TRY(add_text(r, &positive, section->prompt[1]));
    for (int64_t i = 0; i < negatives; i++) {
        const text_column negative = negative_of(section, object, i);
        DSC_TRY(add_text(r, &negative, section->prompt[1]));
    }
    DSC_TRY(read_score(r, &score));
    return add_words(r, score);
}

dsc_status dsc_sft_make_texts(dsc_sft_maker *m, const char *where, const cJSON *object, dsc_sft_example *out,
                              dsc_error *err)
{
    const dsc_sft_section *section = m->o->section;
    const text_row row = { m, where, object, out, err };
    const text_column anchor = anchor_of(section, object);
    *out = (dsc_sft_example) { .texts = 1 };
    m->ids.count = m->counted.count = m->row.counted.count = 0;
    m->row.format = DSC_SFT_TEXTS;
    m->row.conversation = false;
    DSC_TRY(add_text(&row, &anchor, section->prompt[0]));
    out->count = m->ids.count;
    if (!section->unlabeled)
        DSC_TRY(add_row(&row));
    while (m->counted.count < m->ids.count)
        DSC_TRY(dsc_ids_add(&m->counted, 0, err));
    out->ids = m->ids.ptr;
    out->counted = m->counted.ptr;
    return DSC_OK;
}
