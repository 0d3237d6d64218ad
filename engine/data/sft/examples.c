/* examples.c - see examples.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/examples.h"

#include <stdio.h>
#include <string.h>

#include "engine/data/sft/render.h"
#include "engine/text/token_ends.h"

struct dsc_sft_reader {
    dsc_sft_options o;
    dsc_records *records;
    dsc_sft_format format; /* format of the first row */
    const cJSON *object;   /* the row */
    dsc_sft_side side;     /* of it that was read last */
    dsc_chat_folder folder;
    dsc_sft_render render;
    dsc_sft_row row;
    dsc_encoder *encoder;
    dsc_token_map *map;
    dsc_ids ids, counted;
    dsc_text text; /* text of a row without messages */
    int64_t *ends, end_room;
    int32_t end_id; /* -1: none */
    dsc_sft_counts counts;
};

/* ---- Open ---- */

static dsc_status open_parts(dsc_sft_reader *r, dsc_error *err)
{
    const dsc_sft_options *o = &r->o;
    char folder[1024];
    DSC_TRY(dsc_chat_folder_of(o->tokenizer_path, folder, sizeof folder, err));
    DSC_TRY(dsc_chat_folder_open(o->io, o->alloc, folder, o->section->template_file, o->tokenizer, &r->folder, err));
    dsc_sft_render_open(o->alloc, &r->folder, o->now_s, &r->render);
    r->row.keeps_parts = dsc_sft_render_reads_parts(&r->render);
    r->end_id = dsc_tokenizer_find(o->tokenizer, r->folder.end_token);
    if (r->end_id < 0)
        r->end_id = dsc_tokenizer_text_end(o->tokenizer);
    DSC_TRY(dsc_encoder_open(&r->encoder, o->tokenizer, err));
    DSC_TRY(dsc_token_map_open(o->alloc, o->tokenizer, &r->map, err));
    return dsc_records_open(o->io, o->alloc, o->path, &r->records, err);
}

dsc_status dsc_sft_reader_open(const dsc_sft_options *options, dsc_sft_reader **out, dsc_error *err)
{
    dsc_sft_reader *r = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, 1, sizeof *r, &r, err));
    r->o = *options;
    r->folder = (dsc_chat_folder){ .alloc = options->alloc, .special = { .alloc = options->alloc } };
    dsc_sft_render_open(options->alloc, &r->folder, 0, &r->render);
    dsc_sft_row_open(options->alloc, &r->row);
    r->ids.alloc = r->counted.alloc = options->alloc;
    r->text.alloc = options->alloc;
    const dsc_status status = open_parts(r, err);
    if (status != DSC_OK)
        dsc_sft_reader_close(&r);
    *out = r;
    return status;
}

void dsc_sft_reader_close(dsc_sft_reader **reader)
{
    dsc_sft_reader *r = *reader;
    if (r == NULL)
        return;
    dsc_records_close(&r->records);
    dsc_token_map_close(&r->map);
    dsc_encoder_close(&r->encoder);
    dsc_sft_row_close(&r->row);
    dsc_sft_render_close(&r->render);
    dsc_chat_folder_close(&r->folder);
    dsc_ids_free(&r->ids);
    dsc_ids_free(&r->counted);
    dsc_text_free(&r->text);
    dsc_alloc_free(r->o.alloc, r->ends);
    dsc_alloc_free(r->o.alloc, r);
    *reader = NULL;
}

/* ---- Tokens ---- */

static dsc_status add_ids(dsc_sft_reader *r, const int32_t *ids, int64_t count, bool counts, dsc_error *err)
{
    DSC_TRY(dsc_ids_reserve(&r->ids, count, err));
    DSC_TRY(dsc_ids_reserve(&r->counted, count, err));
    for (int64_t i = 0; i < count; i++) {
        r->ids.ptr[r->ids.count++] = ids[i];
        r->counted.ptr[r->counted.count++] = counts;
    }
    return DSC_OK;
}

static dsc_status reserve_ends(dsc_sft_reader *r, int64_t count, dsc_error *err)
{
    if (count <= r->end_room)
        return DSC_OK;
    dsc_alloc_free(r->o.alloc, r->ends);
    r->ends = NULL;
    r->end_room = 0;
    DSC_TRY(dsc_alloc_zeroed(r->o.alloc, DSC_TAG_DATA, 2 * count, sizeof *r->ends, &r->ends, err));
    r->end_room = 2 * count;
    return DSC_OK;
}

/* The end token among tokens [first, last) of a message: the last special one, if only blanks follow it. -1: none. */
static int64_t find_end(const dsc_sft_reader *r, int64_t first, int64_t last)
{
    int64_t at = last - 1;
    while (at >= first && dsc_token_map_is_blank(r->map, r->ids.ptr[at]))
        at--;
    return at >= first && dsc_token_map_is_special(r->map, r->ids.ptr[at]) ? at : -1;
}

/* Marks tokens [first, last), which are those of a span. Returns the token behind the marked ones. */
static int64_t count_tokens(dsc_sft_reader *r, dsc_sft_span_kind kind, int64_t first, int64_t last)
{
    if (kind == DSC_SFT_CONTENT && last < r->ids.count && dsc_token_map_is_special(r->map, r->ids.ptr[last]))
        last++;
    const int64_t end = find_end(r, first, last);
    if (end >= 0 && kind != DSC_SFT_BLOCK)
        last = end + 1;
    for (int64_t i = first; i < last; i++)
        r->counted.ptr[i] = i != end || r->o.section->end_token;
    return last;
}

/* Marks the tokens that overlap a span. *next is the first token that may belong to it. */
static void count_span(dsc_sft_reader *r, const dsc_sft_span *span, int64_t *next)
{
    const int64_t count = r->ids.count;
    int64_t first = *next, last;
    while (first < count && r->ends[first] <= span->begin)
        first++;
    last = first;
    while (last < count && (last > 0 ? r->ends[last - 1] : 0) < span->end)
        last++;
    *next = count_tokens(r, span->kind, first, last);
}

/* The text between spans and the spans, each encoded alone. The spans become those of tokens. */
static dsc_status encode_parts(dsc_sft_reader *r, const dsc_text *text, dsc_error *err)
{
    dsc_sft_render *render = &r->render;
    const int32_t *ids;
    int64_t at = 0, count;
    r->ids.count = r->counted.count = 0;
    r->counts.in_parts++;
    for (int64_t i = 0; i <= 2 * render->span_count; i++) {
        dsc_sft_span *span = i < 2 * render->span_count ? &render->span[i / 2] : NULL;
        int64_t *const border = span == NULL ? NULL : i % 2 == 0 ? &span->begin : &span->end;
        const int64_t to = border != NULL ? *border : text->bytes;
        if (to > at) {
            DSC_TRY(
                dsc_encode(r->encoder, text->ptr + at, to - at, at > 0 ? DSC_ENCODE_GOES_ON : 0, &ids, &count, err));
            DSC_TRY(add_ids(r, ids, count, false, err));
            at = to;
        }
        if (border != NULL)
            *border = r->ids.count;
    }
    for (int64_t i = 0; i < render->span_count; i++)
        (void)count_tokens(r, render->span[i].kind, render->span[i].begin, render->span[i].end);
    return DSC_OK;
}

/* A text and its spans, as tokens. */
static dsc_status encode_spans(dsc_sft_reader *r, const dsc_text *text, dsc_error *err)
{
    const int32_t *ids;
    int64_t count, next = 0;
    DSC_TRY(dsc_encode(r->encoder, text->ptr != NULL ? text->ptr : "", text->bytes, 0, &ids, &count, err));
    DSC_TRY(reserve_ends(r, count, err));
    if (!dsc_token_map_ends(r->map, text->ptr, text->bytes, ids, count, r->ends))
        return encode_parts(r, text, err);
    DSC_TRY(add_ids(r, ids, count, false, err));
    for (int64_t i = 0; i < r->render.span_count; i++)
        count_span(r, &r->render.span[i], &next);
    return DSC_OK;
}

/* A prompt and its completion, with the tokens that the tokenizer puts around a text, and the end token. */
static dsc_status encode_texts(dsc_sft_reader *r, dsc_error *err)
{
    const dsc_sft_row *row = &r->row;
    const int32_t *ids;
    int64_t count, before, after;
    r->text.bytes = r->render.span_count = 0;
    DSC_TRY(dsc_text_add(&r->text, row->prompt.ptr, row->prompt.bytes, err));
    DSC_TRY(dsc_text_add(&r->text, row->completion.ptr, row->completion.bytes, err));
    DSC_TRY(dsc_sft_add_span(&r->render, (dsc_sft_span){ row->prompt.bytes, r->text.bytes, DSC_SFT_BLOCK }, err));
    DSC_TRY(encode_spans(r, &r->text, err));
    dsc_tokenizer_around(r->o.tokenizer, &before, &after);
    DSC_TRY(dsc_encode(r->encoder, "", 0, DSC_ENCODE_SPECIAL, &ids, &count, err));
    if (count == before + after && count > 0) {
        const bool whole = row->format == DSC_SFT_TEXT;
        DSC_TRY(add_ids(r, ids + before, after, r->o.section->end_token, err));
        DSC_TRY(dsc_ids_reserve(&r->ids, before, err));
        DSC_TRY(dsc_ids_reserve(&r->counted, before, err));
        memmove(r->ids.ptr + before, r->ids.ptr, (size_t)r->ids.count * sizeof *ids);
        memmove(r->counted.ptr + before, r->counted.ptr, (size_t)r->counted.count * sizeof *ids);
        for (int64_t i = 0; i < before; i++) {
            r->ids.ptr[i] = ids[i];
            r->counted.ptr[i] = whole;
        }
        r->ids.count += before;
        r->counted.count += before;
    }
    if (r->end_id < 0 || (r->ids.count > 0 && r->ids.ptr[r->ids.count - 1] == r->end_id))
        return DSC_OK;
    return add_ids(r, &r->end_id, 1, r->o.section->end_token, err);
}

static dsc_status check_ids(const dsc_sft_reader *r, dsc_error *err)
{
    const int64_t vocab = dsc_tokenizer_vocab_size(r->o.tokenizer);
    for (int64_t i = 0; i < r->ids.count; i++)
        if (r->ids.ptr[i] >= vocab)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_records_where(r->records), "token %lld is %d, and the tokenizer "
                            "has %lld tokens; the ids are those of another tokenizer", (long long)i,
                            (int)r->ids.ptr[i], (long long)vocab);
    return DSC_OK;
}

static dsc_status encode_row(dsc_sft_reader *r, dsc_error *err)
{
    r->ids.count = r->counted.count = 0;
    if (r->row.format == DSC_SFT_TOKENS) {
        for (int64_t i = 0; i < r->row.ids.count; i++)
            DSC_TRY(add_ids(r, &r->row.ids.ptr[i], 1, r->row.counted.ptr[i] != 0, err));
        return check_ids(r, err);
    }
    if (!r->row.conversation)
        return encode_texts(r, err);
    DSC_TRY(dsc_sft_render_row(&r->render, &r->row, dsc_records_where(r->records), err));
    return encode_spans(r, &r->render.whole.text, err);
}

/* ---- Interface ---- */

/* Reads the next row, or the other side of this one. Behind the last row r->object is NULL. */
static dsc_status read_row(dsc_sft_reader *r, dsc_error *err)
{
    const char *where = dsc_records_where(r->records);
    const bool again = r->side == DSC_SFT_CHOSEN;
    if (!again)
        DSC_TRY(dsc_records_next(r->records, &r->object, err));
    if (r->object == NULL)
        return DSC_OK;
    if (r->format == DSC_SFT_AUTO)
        DSC_TRY(dsc_sft_find_format(r->o.section, where, r->object, &r->format, err));
    if (r->format != DSC_SFT_PREFERENCE)
        return dsc_sft_row_read(r->o.section, r->format, !r->folder.built_in, where, r->object, &r->row, err);
    r->side = again ? DSC_SFT_REJECTED : DSC_SFT_CHOSEN;
    return dsc_sft_row_read_side(r->o.section, r->side, where, r->object, &r->row, err);
}

dsc_status dsc_sft_reader_next(dsc_sft_reader *r, bool *found, dsc_sft_example *out, dsc_error *err)
{
    *found = false;
    DSC_TRY(read_row(r, err));
    if (r->object == NULL)
        return DSC_OK;
    DSC_TRY(encode_row(r, err));
    DSC_ASSERT(r->ids.count == r->counted.count);
    *out = (dsc_sft_example) { .ids = r->ids.ptr,
                               .counted = r->counted.ptr,
                               .count = r->ids.count,
                               .line = dsc_records_line(r->records),
                               .side = r->side };
    const dsc_text *text = r->row.conversation ? &r->render.whole.text : &r->text;
    out->text = r->row.format == DSC_SFT_TOKENS ? NULL : text->ptr != NULL ? text->ptr : "";
    out->text_bytes = text->bytes;
    for (int64_t i = 0; i < r->counted.count; i++)
        out->counted_count += r->counted.ptr[i];
    r->counts.examples += r->side != DSC_SFT_REJECTED;
    r->counts.tokens += out->count;
    r->counts.counted_tokens += out->counted_count;
    *found = true;
    return DSC_OK;
}

dsc_sft_counts dsc_sft_reader_counts(const dsc_sft_reader *r)
{
    dsc_sft_counts counts = r->counts;
    counts.replaced = r->render.replaced;
    return counts;
}

const char *dsc_sft_reader_describe(const dsc_sft_reader *r, char *out, size_t out_bytes)
{
    const bool templated = r->row.conversation;
    snprintf(out, out_bytes, "format %s%s%s", dsc_sft_format_text(r->format), templated ? ", template " : "",
             templated ? r->folder.source : "");
    return out;
}

bool dsc_sft_reader_lacks_end(const dsc_sft_reader *r) { return r->end_id < 0; }
