/* load_unigram.c - a Unigram model of a tokenizer.json: pieces with their scores.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/load.h"

#define UNKNOWN_PENALTY 10.0 /* below the worst score */

static dsc_status read_piece(const tok_loader *l, const cJSON *item, const char **text, double *score)
{
    const cJSON *name = cJSON_IsArray(item) ? item->child : NULL, *number = name != NULL ? name->next : NULL;
    if (!cJSON_IsString(name) || !cJSON_IsNumber(number) || number->next != NULL || !isfinite(number->valuedouble))
        return tok_fail(l, item, DSC_ERR_INPUT, "a piece must be an array of a text and a score");
    *text = name->valuestring;
    *score = number->valuedouble;
    if (strlen(*text) > DSC_UNIGRAM_PIECE_MAX)
        return tok_fail(l, item, DSC_ERR_UNSUPPORTED, "a piece of %lld bytes; at most %d are built",
                        (long long)strlen(*text), DSC_UNIGRAM_PIECE_MAX);
    return DSC_OK;
}

/* Texts and scores by id; *bytes <- those of all texts. */
static dsc_status read_pieces(const tok_loader *l, const cJSON *vocab, int64_t *bytes)
{
    dsc_unigram *unigram = &l->t->unigram;
    double least = INFINITY;
    int64_t id = 0;
    *bytes = 0;
    for (const cJSON *item = vocab->child; item != NULL; item = item->next, id++) {
        const char *text = NULL;
        DSC_TRY(read_piece(l, item, &text, &unigram->score[id]));
        const tok_string kept = tok_keep(l, text, (int64_t)strlen(text));
        l->t->vocab.token[id] = (dsc_token){ .text = kept.ptr, .bytes = (int32_t)kept.bytes };
        *bytes += kept.bytes;
        least = fmin(least, unigram->score[id]);
    }
    unigram->unknown_score = least - UNKNOWN_PENALTY;
    return DSC_OK;
}

/* From the end, because a text's last id counts. */
static void add_pieces(dsc_tokenizer *t, int64_t count)
{
    for (int64_t id = count - 1; id >= 0; id--) {
        const dsc_token *token = &t->vocab.token[id];
        (void)dsc_names_add(&t->vocab.by_text, token->text, token->bytes, (int32_t)id);
        dsc_tree_add(&t->unigram.pieces, token->text, token->bytes, (int32_t)id);
    }
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        t->unigram.byte_id[i] = dsc_names_find(&t->vocab.by_text, name, (int64_t)strlen(name));
    }
}

dsc_status tok_load_unigram(const tok_loader *l, const cJSON *model)
{
    dsc_tokenizer *t = l->t;
    const cJSON *vocab = tok_get(model, "vocab"), *unk = tok_get(model, "unk_id");
    const int64_t count = cJSON_IsArray(vocab) ? cJSON_GetArraySize(vocab) : 0;
    int64_t id = -1, bytes = 0;
    DSC_TRY(tok_check_keys(l, model, "type unk_id vocab byte_fallback "));
    if (t->bpe.of_bytes)
        return tok_fail(l, model, DSC_ERR_UNSUPPORTED, "Unigram behind ByteLevel is not built");
    if (count == 0 || count > DSC_VOCAB_MAX)
        return tok_fail(l, vocab != NULL ? vocab : model, DSC_ERR_INPUT,
                        "\"vocab\" must be an array of 1 to %d pieces with their scores", DSC_VOCAB_MAX);
    if (unk != NULL)
        DSC_TRY(tok_get_integer(l, model, "unk_id", count - 1, &id));
    t->unigram.unk = (int32_t)id;
    DSC_TRY(tok_get_bool(l, model, "byte_fallback", false, &t->unigram.byte_fallback));
    DSC_TRY(tok_open_vocab(l, count, count - 1));
    DSC_TRY(dsc_alloc_zeroed(t->alloc, DSC_TAG_DATA, count, sizeof *t->unigram.score, &t->unigram.score, l->err));
    DSC_TRY(read_pieces(l, vocab, &bytes));
    DSC_TRY(dsc_tree_open(t->alloc, bytes, &t->unigram.pieces, l->err));
    add_pieces(t, count);
    return DSC_OK;
}
