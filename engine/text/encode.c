/* encode.c - from a text to ids: added tokens, normalizer, pre-tokenizer, model, post-processor.
 *
 * Each stage passes its pieces to the next one, so that a piece is still in the cache when the model encodes it. Only
 * the ids are stored. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/formats/utf8.h"
#include "engine/text/encoder.h"

#define TEXT_BYTES_MAX (INT64_C(1) << 30)

dsc_status dsc_encoder_open(dsc_encoder **out, const dsc_tokenizer *tokenizer, dsc_error *err)
{
    dsc_encoder *e = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(tokenizer->alloc, DSC_TAG_DATA, 1, sizeof *e, &e, err));
    e->tokenizer = tokenizer;
    e->ids.alloc = e->repaired.alloc = e->unigram.alloc = tokenizer->alloc;
    e->mapped.alloc = e->unmapped.alloc = tokenizer->alloc;
    for (size_t i = 0; i < DSC_COUNT(e->normal); i++)
        e->normal[i].alloc = tokenizer->alloc;
    for (size_t i = 0; i < DSC_COUNT(e->prefixed); i++)
        e->prefixed[i].alloc = tokenizer->alloc;
    for (size_t i = 0; i < DSC_COUNT(e->decoded); i++) {
        e->decoded[i].text.alloc = tokenizer->alloc;
        e->decoded[i].ends.alloc = tokenizer->alloc;
    }
    if (tokenizer->model != TOK_BPE) {
        *out = e;
        return DSC_OK;
    }
    const dsc_status status = dsc_bpe_work_open(&tokenizer->bpe, &e->work, err);
    if (status != DSC_OK)
        dsc_encoder_close(&e);
    *out = e;
    return status;
}

void dsc_encoder_close(dsc_encoder **encoder)
{
    dsc_encoder *e = *encoder;
    if (e == NULL)
        return;
    dsc_bpe_work_close(&e->work);
    dsc_unigram_work_free(&e->unigram);
    dsc_ids_free(&e->ids);
    dsc_text_free(&e->repaired);
    dsc_text_free(&e->mapped);
    dsc_text_free(&e->unmapped);
    for (size_t i = 0; i < DSC_COUNT(e->normal); i++)
        dsc_text_free(&e->normal[i]);
    for (size_t i = 0; i < DSC_COUNT(e->prefixed); i++)
        dsc_text_free(&e->prefixed[i]);
    for (size_t i = 0; i < DSC_COUNT(e->decoded); i++) {
        dsc_text_free(&e->decoded[i].text);
        dsc_ids_free(&e->decoded[i].ends);
    }
    dsc_alloc_free(e->tokenizer->alloc, e);
    *encoder = NULL;
}

/* A piece that begins before `border` is "first" for Metaspace: the piece begins with the normalised first character of
 * a text that does not continue another text. `joined`: the piece holds the start of a text that does continue one. */
typedef struct piece_place {
    const char *border;
    bool joined;
} piece_place;

static bool begins_with(tok_string text, const char *with, int64_t bytes)
{
    return text.bytes >= bytes && memcmp(text.ptr, with, (size_t)bytes) == 0;
}

/* Prefix and replacements of a piece by ByteLevel and Metaspace. */
static dsc_status prefix_piece(dsc_encoder *e, int32_t step, piece_place *place, tok_string *piece, dsc_error *err)
{
    const tok_splitter *s = &e->tokenizer->splitter[step];
    const tok_string space = { " ", 1 };
    const tok_string mark = s->kind == TOK_METASPACE ? s->literal : space;
    const bool replaces = s->kind == TOK_METASPACE && memchr(piece->ptr, ' ', (size_t)piece->bytes) != NULL;
    const bool first = piece->ptr < place->border;
    const bool wanted = s->prepend == TOK_PREPEND_ALWAYS || (s->prepend == TOK_PREPEND_FIRST && first);
    const bool has = begins_with(*piece, mark.ptr, mark.bytes) || (replaces && piece->ptr[0] == ' ');
    if ((!wanted || has || place->joined) && !replaces)
        return DSC_OK;
    dsc_text *out = &e->prefixed[step];
    out->bytes = 0;
    if (wanted && !has && !place->joined)
        DSC_TRY(dsc_text_add(out, mark.ptr, mark.bytes, err));
    if (replaces)
        DSC_TRY(tok_replace_all(*piece, space, mark, out, err));
    else
        DSC_TRY(dsc_text_add(out, piece->ptr, piece->bytes, err));
    *piece = (tok_string){ out->ptr, out->bytes };
    place->border = piece->ptr + (first ? 1 : 0);
    return DSC_OK;
}

/* Bytes as the printable characters that stand for them. */
static dsc_status map_bytes(tok_string *word, dsc_text *out, dsc_error *err)
{
    out->bytes = 0;
    DSC_TRY(dsc_text_reserve(out, 2 * word->bytes, err));
    for (int64_t i = 0; i < word->bytes; i++)
        out->bytes += dsc_utf8_encode(dsc_byte_char((uint8_t)word->ptr[i]), out->ptr + out->bytes);
    *word = (tok_string){ out->ptr, out->bytes };
    return DSC_OK;
}

static dsc_status unmap_bytes(tok_string *word, dsc_text *out, dsc_error *err)
{
    int length;
    out->bytes = 0;
    DSC_TRY(dsc_text_reserve(out, word->bytes, err));
    for (int64_t i = 0; i < word->bytes; i += length)
        out->ptr[out->bytes++] = (char)dsc_char_byte(dsc_char_at(word->ptr + i, &length));
    *word = (tok_string){ out->ptr, out->bytes };
    return DSC_OK;
}

static dsc_status encode_word(dsc_encoder *e, tok_string word, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    if (t->of_byte_chars)
        DSC_TRY(unmap_bytes(&word, &e->unmapped, err));
    switch (t->model) {
    case TOK_WORDPIECE: return dsc_wordpiece_encode(&t->wordpiece, word.ptr, word.bytes, &e->ids, err);
    case TOK_UNIGRAM: return dsc_unigram_encode(&t->unigram, &e->unigram, word.ptr, word.bytes, &e->ids, err);
    default: return dsc_bpe_encode(&t->bpe, e->work, word.ptr, word.bytes, &e->ids, err);
    }
}

/* The pieces of one step go through the next ones. As deep as there are steps. */
static dsc_status encode_piece(dsc_encoder *e, int32_t step, piece_place place, tok_string piece, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    if (piece.bytes == 0)
        return DSC_OK;
    if (step == t->splitter_count)
        return encode_word(e, piece, err);
    const tok_splitter *s = &t->splitter[step];
    const bool maps = s->kind == TOK_BYTE_LEVEL && t->of_byte_chars;
    if (s->kind != TOK_SPLIT)
        DSC_TRY(prefix_piece(e, step, &place, &piece, err));
    if (maps && s->regex == NULL)
        DSC_TRY(map_bytes(&piece, &e->mapped, err));
    if ((s->kind == TOK_BYTE_LEVEL && s->regex == NULL) || (s->kind == TOK_METASPACE && !s->split))
        return encode_piece(e, step + 1, place, piece, err);
    tok_pieces pieces;
    tok_string next;
    tok_pieces_open(&pieces, s, piece);
    for (;;) {
        DSC_TRY(tok_pieces_next(&pieces, &next, err));
        if (next.bytes == 0)
            return DSC_OK;
        if (maps)
            DSC_TRY(map_bytes(&next, &e->mapped, err));
        DSC_TRY(encode_piece(e, step + 1, place, next, err));
        place.joined = false;
    }
}

/* A part of the text without added tokens that stand as written. */
static dsc_status encode_part(dsc_encoder *e, tok_string part, bool first, bool joined, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    int64_t at = 0, start = 0, lead;
    DSC_TRY(tok_normalize(t, &part, joined, &lead, e->normal, err));
    piece_place place = { .border = part.ptr + (first ? lead : 0), .joined = joined };
    for (;;) {
        const tok_match match = tok_added_find(t, &t->normalized, part.ptr, part.bytes, &at, start);
        const tok_string before = { part.ptr + start, dsc_max_i64(match.start - start, 0) };
        DSC_TRY(encode_piece(e, 0, place, before, err));
        if (match.token == NULL)
            return DSC_OK;
        place.joined = false;
        DSC_TRY(dsc_ids_add(&e->ids, match.token->id, err));
        start = match.end;
    }
}

static dsc_status encode_text(dsc_encoder *e, tok_string text, bool goes_on, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    int64_t at = 0, start = 0;
    for (bool begins = true;; begins = false) {
        const tok_match match = tok_added_find(t, &t->as_written, text.ptr, text.bytes, &at, start);
        if (match.start > start)
            DSC_TRY(encode_part(e, (tok_string){ text.ptr + start, match.start - start }, begins && !goes_on,
                                begins && goes_on, err));
        if (match.token == NULL)
            return DSC_OK;
        DSC_TRY(dsc_ids_add(&e->ids, match.token->id, err));
        start = match.end;
    }
}

dsc_status dsc_encode(dsc_encoder *e, const char *text, int64_t bytes, unsigned flags, const int32_t **ids,
                      int64_t *count, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    const bool special = (flags & DSC_ENCODE_SPECIAL) != 0;
    tok_string whole = { text, bytes };
    if (bytes < 0 || bytes > TEXT_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "a text of %lld bytes; at most %lld are encoded at once",
                        (long long)bytes, (long long)TEXT_BYTES_MAX);
    e->ids.count = 0;
    if (!dsc_utf8_is_valid(text, bytes)) {
        e->repaired.bytes = 0;
        DSC_TRY(dsc_utf8_repair(text, bytes, &e->repaired, err));
        whole = (tok_string){ e->repaired.ptr, e->repaired.bytes };
    }
    for (int32_t i = 0; special && i < t->before_count; i++)
        DSC_TRY(dsc_ids_add(&e->ids, t->before[i], err));
    DSC_TRY(encode_text(e, whole, (flags & DSC_ENCODE_GOES_ON) != 0, err));
    for (int32_t i = 0; special && i < t->after_count; i++)
        DSC_TRY(dsc_ids_add(&e->ids, t->after[i], err));
    *ids = e->ids.ptr;
    *count = e->ids.count;
    return DSC_OK;
}

/* A line end between two characters other than white space, both before `bytes`. */
int64_t dsc_tokenizer_cut(const dsc_tokenizer *tokenizer, const char *text, int64_t bytes)
{
    for (int64_t i = tokenizer->may_cut ? bytes - 1 : 0; i >= 2; i--) {
        const unsigned char left = (unsigned char)text[i - 2], right = (unsigned char)text[i];
        /* Printable ASCII on both sides: beyond it there are more kinds of white space, and marks that combine. */
        if (text[i - 1] == '\n' && left > ' ' && left < 0x7f && right > ' ' && right < 0x7f)
            return i;
    }
    return 0;
}
