/* maker.c - see maker.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/maker.h"
#include "engine/data/sft/labeled.h"
#include "engine/data/sft/texts.h"

#include <string.h>

void dsc_sft_maker_clear(const dsc_sft_options *options, const dsc_chat_folder *folder, dsc_sft_maker *out)
{
    *out = (dsc_sft_maker) { .o = options, .folder = folder, .end_id = -1 };
    dsc_sft_render_open(options->alloc, folder, options->now_s, &out->render);
    dsc_sft_row_open(options->alloc, &out->row);
    out->ids.alloc = out->counted.alloc = out->text.alloc = options->alloc;
}

dsc_status dsc_sft_maker_open(dsc_sft_maker *m, dsc_error *err)
{
    const dsc_sft_options *o = m->o;
    m->row.keeps_parts = dsc_sft_render_reads_parts(&m->render);
    m->end_id = dsc_tokenizer_find(o->tokenizer, m->folder->end_token);
    if (m->end_id < 0)
        m->end_id = dsc_tokenizer_text_end(o->tokenizer);
    DSC_TRY(dsc_encoder_open(&m->encoder, o->tokenizer, err));
    return dsc_token_map_open(o->alloc, o->tokenizer, &m->map, err);
}

void dsc_sft_maker_close(dsc_sft_maker *m)
{
    if (m->o == NULL)
        return;
    dsc_token_map_close(&m->map);
    dsc_encoder_close(&m->encoder);
    dsc_sft_row_close(&m->row);
    dsc_sft_render_close(&m->render);
    dsc_ids_free(&m->ids);
    dsc_ids_free(&m->counted);
    dsc_text_free(&m->text);
    dsc_alloc_free(m->o->alloc, m->ends);
    *m = (dsc_sft_maker) { .o = NULL };
}

/* ---- Tokens ---- */

static dsc_status add_ids(dsc_sft_maker *m, const int32_t *ids, int64_t count, bool counts, dsc_error *err)
{
    DSC_TRY(dsc_ids_reserve(&m->ids, count, err));
    DSC_TRY(dsc_ids_reserve(&m->counted, count, err));
    for (int64_t i = 0; i < count; i++) {
        m->ids.ptr[m->ids.count++] = ids[i];
        m->counted.ptr[m->counted.count++] = counts;
    }
    return DSC_OK;
}

static dsc_status reserve_ends(dsc_sft_maker *m, int64_t count, dsc_error *err)
{
    if (count <= m->end_room)
        return DSC_OK;
    dsc_alloc_free(m->o->alloc, m->ends);
    m->ends = NULL;
    m->end_room = 0;
    DSC_TRY(dsc_alloc_zeroed(m->o->alloc, DSC_TAG_DATA, 2 * count, sizeof *m->ends, &m->ends, err));
    m->end_room = 2 * count;
    return DSC_OK;
}

/* The end token among tokens [first, last) of a message: the last special one, if only blanks follow it. -1: none. */
static int64_t find_end(const dsc_sft_maker *m, int64_t first, int64_t last)
{
    int64_t at = last - 1;
    while (at >= first && dsc_token_map_is_blank(m->map, m->ids.ptr[at]))
        at--;
    return at >= first && dsc_token_map_is_special(m->map, m->ids.ptr[at]) ? at : -1;
}

/* Marks tokens [first, last), which are those of a span. Returns the token behind the marked ones. */
static int64_t count_tokens(dsc_sft_maker *m, dsc_sft_span_kind kind, int64_t first, int64_t last)
{
    if (kind == DSC_SFT_CONTENT && last < m->ids.count && dsc_token_map_is_special(m->map, m->ids.ptr[last]))
        last++;
    const int64_t end = find_end(m, first, last);
    if (end >= 0 && kind != DSC_SFT_BLOCK)
        last = end + 1;
    for (int64_t i = first; i < last; i++)
        m->counted.ptr[i] = i != end || m->o->section->end_token;
    return last;
}

/* Marks the tokens that overlap a span. *next is the first token that may belong to it. */
static void count_span(dsc_sft_maker *m, const dsc_sft_span *span, int64_t *next)
{
    const int64_t count = m->ids.count;
    int64_t first = *next, last;
    while (first < count && m->ends[first] <= span->begin)
        first++;
    last = first;
    while (last < count && (last > 0 ? m->ends[last - 1] : 0) < span->end)
        last++;
    *next = count_tokens(m, span->kind, first, last);
}

/* The text between spans and the spans, each encoded alone. The spans become those of tokens. */
static dsc_status encode_parts(dsc_sft_maker *m, const dsc_text *text, dsc_error *err)
{
    dsc_sft_render *render = &m->render;
    const int32_t *ids;
    int64_t at = 0, count;
    m->ids.count = m->counted.count = 0;
    m->in_parts++;
    for (int64_t i = 0; i <= 2 * render->span_count; i++) {
        dsc_sft_span *span = i < 2 * render->span_count ? &render->span[i / 2] : NULL;
        int64_t *const border = span == NULL ? NULL : i % 2 == 0 ? &span->begin : &span->end;
        const int64_t to = border != NULL ? *border : text->bytes;
        if (to > at) {
            DSC_TRY(
                dsc_encode(m->encoder, text->ptr + at, to - at, at > 0 ? DSC_ENCODE_GOES_ON : 0, &ids, &count, err));
            DSC_TRY(add_ids(m, ids, count, false, err));
            at = to;
        }
        if (border != NULL)
            *border = m->ids.count;
    }
    for (int64_t i = 0; i < render->span_count; i++)
        (void)count_tokens(m, render->span[i].kind, render->span[i].begin, render->span[i].end);
    return DSC_OK;
}

/* A text and its spans, as tokens. */
static dsc_status encode_spans(dsc_sft_maker *m, const dsc_text *text, dsc_error *err)
{
    const int32_t *ids;
    int64_t count, next = 0;
    DSC_TRY(dsc_encode(m->encoder, text->ptr != NULL ? text->ptr : "", text->bytes, 0, &ids, &count, err));
    DSC_TRY(reserve_ends(m, count, err));
    if (!dsc_token_map_ends(m->map, text->ptr, text->bytes, ids, count, m->ends))
        return encode_parts(m, text, err);
    DSC_TRY(add_ids(m, ids, count, false, err));
    for (int64_t i = 0; i < m->render.span_count; i++)
        count_span(m, &m->render.span[i], &next);
    return DSC_OK;
}

/* A prompt and its completion, with the tokens that the tokenizer puts around a text, and the end token. */
static dsc_status encode_texts(dsc_sft_maker *m, dsc_error *err)
{
    const dsc_sft_row *row = &m->row;
    const int32_t *ids;
    int64_t count, before, after;
    m->text.bytes = m->render.span_count = 0;
    DSC_TRY(dsc_text_add(&m->text, row->prompt.ptr, row->prompt.bytes, err));
    DSC_TRY(dsc_text_add(&m->text, row->completion.ptr, row->completion.bytes, err));
    DSC_TRY(dsc_sft_add_span(&m->render, (dsc_sft_span) { row->prompt.bytes, m->text.bytes, DSC_SFT_BLOCK }, err));
    DSC_TRY(encode_spans(m, &m->text, err));
    dsc_tokenizer_around(m->o->tokenizer, &before, &after);
    DSC_TRY(dsc_encode(m->encoder, "", 0, DSC_ENCODE_SPECIAL, &ids, &count, err));
    if (count == before + after && count > 0) {
        const bool whole = row->format == DSC_SFT_TEXT;
        DSC_TRY(add_ids(m, ids + before, after, m->o->section->end_token, err));
        DSC_TRY(dsc_ids_reserve(&m->ids, before, err));
        DSC_TRY(dsc_ids_reserve(&m->counted, before, err));
        memmove(m->ids.ptr + before, m->ids.ptr, (size_t)m->ids.count * sizeof *ids);
        memmove(m->counted.ptr + before, m->counted.ptr, (size_t)m->counted.count * sizeof *ids);
        for (int64_t i = 0; i < before; i++) {
            m->ids.ptr[i] = ids[i];
            m->counted.ptr[i] = whole;
        }
        m->ids.count += before;
        m->counted.count += before;
    }
    if (m->end_id < 0 || (m->ids.count > 0 && m->ids.ptr[m->ids.count - 1] == m->end_id))
        return DSC_OK;
    return add_ids(m, &m->end_id, 1, m->o->section->end_token, err);
}

static dsc_status check_ids(const dsc_sft_maker *m, const char *where, dsc_error *err)
{
    const int64_t vocab = dsc_tokenizer_vocab_size(m->o->tokenizer);
    for (int64_t i = 0; i < m->ids.count; i++)
        if (m->ids.ptr[i] >= vocab)
            return DSC_FAIL(err, DSC_ERR_INPUT, where,
                            "token %lld is %d, and the tokenizer "
                            "has %lld tokens; the ids are those of another tokenizer",
                            (long long)i, (int)m->ids.ptr[i], (long long)vocab);
    return DSC_OK;
}

static dsc_status encode_row(dsc_sft_maker *m, const char *where, dsc_error *err)
{
    m->ids.count = m->counted.count = 0;
    if (m->row.format == DSC_SFT_TOKENS) {
        for (int64_t i = 0; i < m->row.ids.count; i++)
            DSC_TRY(add_ids(m, &m->row.ids.ptr[i], 1, m->row.counted.ptr[i] != 0, err));
        return check_ids(m, where, err);
    }
    if (!m->row.conversation)
        return encode_texts(m, err);
    DSC_TRY(dsc_sft_render_row(&m->render, &m->row, where, err));
    return encode_spans(m, &m->render.whole.text, err);
}

/* ---- Interface ---- */

dsc_status dsc_sft_make(dsc_sft_maker *m, dsc_sft_format format, dsc_sft_side side, const char *where,
                        const cJSON *object, dsc_sft_example *out, dsc_error *err)
{
    const dsc_sft_section *section = m->o->section;
    if (format == DSC_SFT_LABELS)
        return dsc_sft_make_labeled(m, where, object, out, err);
    if (format == DSC_SFT_TEXTS)
        return dsc_sft_make_texts(m, where, object, out, err);
    DSC_ASSERT((format == DSC_SFT_PREFERENCE) == (side != DSC_SFT_ONLY));
    if (side == DSC_SFT_ONLY)
        DSC_TRY(dsc_sft_row_read(section, format, !m->folder->built_in, where, object, &m->row, err));
    else
        DSC_TRY(dsc_sft_row_read_side(section, side, where, object, &m->row, err));
    DSC_TRY(encode_row(m, where, err));
    DSC_ASSERT(m->ids.count == m->counted.count);
    *out = (dsc_sft_example) { .ids = m->ids.ptr, .counted = m->counted.ptr, .count = m->ids.count, .side = side };
    const dsc_text *text = m->row.conversation ? &m->render.whole.text : &m->text;
    out->text = m->row.format == DSC_SFT_TOKENS ? NULL : text->ptr != NULL ? text->ptr : "";
    out->text_bytes = text->bytes;
    for (int64_t i = 0; i < m->counted.count; i++)
        out->counted_count += m->counted.ptr[i];
    return DSC_OK;
}
