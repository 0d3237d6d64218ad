/* pair.c - see pair.h: the post-processor's form of one text and of two. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/pair.h"

#include <string.h>

#include "engine/text/load.h"
#include "engine/text/tokenizer_internal.h"

int32_t dsc_tokenizer_pieces(const dsc_tokenizer *t, bool pair, const dsc_pair_piece **pieces)
{
    *pieces = t->form[pair].piece;
    return t->form[pair].count;
}

static bool add_piece(tok_form *form, int32_t id, int64_t type)
{
    if (form->count == TOK_PIECES_MAX || type < 0 || type > 1)
        return false;
    form->piece[form->count++] = (dsc_pair_piece) { id, (int32_t)type };
    return true;
}

/* The type of a template's piece, and its name. */
static const char *piece_name(const cJSON *piece, int64_t *type)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(piece, "id");
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(piece, "type_id");
    *type = cJSON_IsNumber(of) && (of->valuedouble == 0 || of->valuedouble == 1) ? (int64_t)of->valuedouble : -1;
    return cJSON_IsString(name) ? name->valuestring : "";
}

static bool add_template_piece(const dsc_tokenizer *t, const cJSON *component, const cJSON *item, tok_form *form)
{
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(item, "SpecialToken");
    const cJSON *sequence = cJSON_GetObjectItemCaseSensitive(item, "Sequence");
    int64_t type = -1;
    const char *const name = piece_name(cJSON_IsObject(special) ? special : sequence, &type);
    if (!cJSON_IsObject(special))
        return (strcmp(name, "A") == 0 && add_piece(form, DSC_PAIR_FIRST, type)) ||
               (strcmp(name, "B") == 0 && add_piece(form, DSC_PAIR_SECOND, type));
    const cJSON *table = cJSON_GetObjectItemCaseSensitive(component, "special_tokens");
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(table, name), "ids");
    for (const cJSON *id = cJSON_IsArray(ids) ? ids->child : NULL; id != NULL; id = id->next)
        if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble > INT32_MAX ||
            dsc_tokenizer_token(t, (int32_t)id->valuedouble) == NULL ||
            !add_piece(form, (int32_t)id->valuedouble, type))
            return false;
    return cJSON_IsArray(ids);
}

/* Each of the texts has to come once. */
static bool has_texts(const tok_form *form, bool pair)
{
    int32_t count[2] = { 0, 0 };
    for (int32_t i = 0; i < form->count; i++)
        if (form->piece[i].id < 0)
            count[form->piece[i].id == DSC_PAIR_SECOND]++;
    return count[0] == 1 && count[1] == (pair ? 1 : 0);
}

void tok_read_template_form(dsc_tokenizer *t, const cJSON *component, bool pair)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(component, pair ? "pair" : "single");
    tok_form *form = &t->form[pair];
    bool good = cJSON_IsArray(list);
    form->count = 0;
    for (const cJSON *item = good ? list->child : NULL; item != NULL && good; item = item->next)
        good = add_template_piece(t, component, item, form);
    if (!good || !has_texts(form, pair))
        form->count = 0; /* a row of two texts is refused then */
}

void tok_set_bert_form(dsc_tokenizer *t, int32_t cls, int32_t sep, bool roberta)
{
    const int32_t one[] = { cls, DSC_PAIR_FIRST, sep };
    const int32_t two[] = { cls, DSC_PAIR_FIRST, sep, sep, DSC_PAIR_SECOND, sep };
    t->form[0].count = t->form[1].count = 0;
    for (size_t i = 0; i < DSC_COUNT(one); i++)
        (void)add_piece(&t->form[0], one[i], 0);
    for (size_t i = 0; i < DSC_COUNT(two); i++)
        if (i != 3 || roberta)
            (void)add_piece(&t->form[1], two[i], i > 3 && !roberta);
}

void dsc_pair_cut(int64_t most, int64_t *first, int64_t *second)
{
    const bool swapped = *first > *second;
    int64_t shorter = swapped ? *second : *first, longer = swapped ? *first : *second;
    if (*first + *second <= most)
        return;
    longer = shorter > most ? shorter : dsc_max_i64(shorter, most - shorter);
    if (shorter + longer > most) {
        shorter = most / 2;
        longer = shorter + most % 2;
    }
    *first = swapped ? longer : shorter;
    *second = swapped ? shorter : longer;
}
