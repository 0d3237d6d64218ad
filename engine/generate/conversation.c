/* conversation.c - see conversation.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/generate/conversation.h"

#include <string.h>

#include "engine/data/sft/render.h"
#include "engine/text/token_ends.h"
#include "engine/text/unicode.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

typedef struct turn {
    int64_t begin, end; /* bytes of the question or answer in `texts` */
} turn;

struct dsc_conversation {
    dsc_conversation_options o;
    dsc_sft_render render;
    dsc_sft_row row;
    dsc_encoder *encoder;
    dsc_token_map *map;
    dsc_text texts, messages; /* texts one behind the other; messages as a JSON list */
    turn *turns;              /* [turn_room] questions and answers alternate */
    int64_t first, turn_count, turn_room; /* turns[first, turn_count) are part of the conversation */
};

dsc_status dsc_conversation_open(const dsc_conversation_options *options, dsc_conversation **out, dsc_error *err)
{
    dsc_conversation *c = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, 1, sizeof *c, &c, err));
    c->o = *options;
    c->texts.alloc = c->messages.alloc = options->alloc;
    dsc_sft_render_open(options->alloc, options->folder, options->now_s, &c->render);
    dsc_sft_row_open(options->alloc, &c->row);
    dsc_status status = dsc_encoder_open(&c->encoder, options->tokenizer, err);
    if (status == DSC_OK)
        status = dsc_token_map_open(options->alloc, options->tokenizer, &c->map, err);
    if (status != DSC_OK)
        dsc_conversation_close(&c);
    *out = c;
    return status;
}

void dsc_conversation_close(dsc_conversation **conversation)
{
    dsc_conversation *c = *conversation;
    if (c == NULL)
        return;
    dsc_token_map_close(&c->map);
    dsc_encoder_close(&c->encoder);
    dsc_sft_row_close(&c->row);
    dsc_sft_render_close(&c->render);
    dsc_text_free(&c->texts);
    dsc_text_free(&c->messages);
    dsc_alloc_free(c->o.alloc, c->turns);
    dsc_alloc_free(c->o.alloc, c);
    *conversation = NULL;
}

/* ---- Turns ---- */

static bool is_question(const dsc_conversation *c, int64_t index) { return (index - c->first) % 2 == 0; }

static dsc_status reserve_turn(dsc_conversation *c, dsc_error *err)
{
    turn *more = NULL;
    if (c->turn_count < c->turn_room)
        return DSC_OK;
    const int64_t room = dsc_max_i64(16, 2 * c->turn_room);
    DSC_TRY(dsc_alloc_zeroed(c->o.alloc, DSC_TAG_DATA, room, sizeof *more, &more, err));
    if (c->turn_count > 0)
        memcpy(more, c->turns, (size_t)c->turn_count * sizeof *more);
    dsc_alloc_free(c->o.alloc, c->turns);
    c->turns = more;
    c->turn_room = room;
    return DSC_OK;
}

/* A context of JSON has no NUL. */
static dsc_status add_text(dsc_conversation *c, const char *text, int64_t bytes, dsc_error *err)
{
    for (int64_t at = 0; at < bytes;) {
        const char *nul = memchr(text + at, 0, (size_t)(bytes - at));
        const int64_t end = nul != NULL ? nul - text : bytes;
        DSC_TRY(dsc_utf8_repair(text + at, end - at, &c->texts, err));
        if (nul != NULL)
            DSC_TRY(dsc_text_add(&c->texts, REPLACEMENT, 3, err));
        at = end + (nul != NULL);
    }
    return DSC_OK;
}

static dsc_status add_turn(dsc_conversation *c, const char *text, int64_t bytes, dsc_error *err)
{
    const int64_t begin = c->texts.bytes;
    DSC_TRY(reserve_turn(c, err));
    DSC_TRY(add_text(c, text, bytes, err));
    c->turns[c->turn_count++] = (turn){ begin, c->texts.bytes };
    return DSC_OK;
}

dsc_status dsc_conversation_ask(dsc_conversation *c, const char *text, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(is_question(c, c->turn_count));
    return add_turn(c, text, bytes, err);
}

dsc_status dsc_conversation_answer(dsc_conversation *c, const char *text, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(!is_question(c, c->turn_count));
    return add_turn(c, text, bytes, err);
}

/* ---- Tokens ---- */

/* The row <- the system prompt, without turns. */
static dsc_status begin_row(dsc_conversation *c, dsc_error *err)
{
    const char *system = c->o.system;
    dsc_sft_row_begin(&c->row);
    return system != NULL ? dsc_sft_row_add(&c->row, "system", system, (int64_t)strlen(system), err) : DSC_OK;
}

static dsc_status encode_turns(dsc_conversation *c, dsc_conversation_context *out, dsc_error *err)
{
    DSC_TRY(begin_row(c, err));
    for (int64_t i = c->first; i < c->turn_count; i++) {
        const turn *t = &c->turns[i];
        const char *text = c->texts.ptr != NULL ? c->texts.ptr + t->begin : "";
        DSC_TRY(dsc_sft_row_add(&c->row, is_question(c, i) ? "user" : "assistant", text, t->end - t->begin, err));
    }
    DSC_TRY(dsc_sft_render_question(&c->render, &c->row, c->o.folder->source, err));
    const dsc_text *text = &c->render.whole.text;
    return dsc_encode(c->encoder, text->ptr != NULL ? text->ptr : "", text->bytes, 0, &out->ids, &out->count, err);
}

static dsc_status list_messages(dsc_conversation *c, dsc_conversation_context *out, dsc_error *err)
{
    c->messages.bytes = 0;
    for (int64_t i = 0; i < c->row.message_count; i++) {
        const dsc_sft_message *m = &c->row.message[i];
        DSC_TRY(dsc_text_add(&c->messages, i > 0 ? "," : "[", 1, err));
        DSC_TRY(dsc_text_add(&c->messages, c->row.json.ptr + m->begin, m->end - m->begin, err));
    }
    DSC_TRY(dsc_text_add(&c->messages, "]", 1, err));
    out->messages = c->messages.ptr;
    out->messages_bytes = c->messages.bytes;
    return DSC_OK;
}

dsc_status dsc_conversation_render(dsc_conversation *c, int64_t most, dsc_conversation_context *out, dsc_error *err)
{
    *out = (dsc_conversation_context){ 0 };
    DSC_ASSERT(c->turn_count > c->first && is_question(c, c->turn_count - 1));
    DSC_TRY(encode_turns(c, out, err));
    while (out->count > most && c->turn_count - c->first > 1) {
        c->first += 2;
        out->dropped++;
        DSC_TRY(encode_turns(c, out, err));
    }
    if (out->count > most)
        return DSC_FAIL(err, DSC_ERR_INPUT, "the conversation", "the question alone, with the system prompt and the "
                        "template, has %lld tokens, and there is room for %lld; ask less, or use fewer "
                        "--max-new-tokens or a larger --context", (long long)out->count, (long long)most);
    return list_messages(c, out, err);
}

/* ---- The end of an answer ---- */

/* The first special token of a text, if only blanks come before it; -1: none. */
static dsc_status first_special(dsc_conversation *c, const char *text, int64_t bytes, int32_t *id, dsc_error *err)
{
    const int32_t *ids = NULL;
    int64_t count = 0, at = 0, blanks = 0;
    *id = -1;
    DSC_TRY(dsc_encode(c->encoder, text, bytes, DSC_ENCODE_GOES_ON, &ids, &count, err));
    while (at < count && !dsc_token_map_is_special(c->map, ids[at]))
        at++;
    while (blanks < bytes && text[blanks] != 0 && strchr(" \t\r\n", text[blanks]) != NULL)
        blanks++;
    const char *name = at < count ? dsc_tokenizer_token(c->o.tokenizer, ids[at]) : NULL;
    const int64_t name_bytes = name != NULL ? (int64_t)strlen(name) : bytes + 1;
    if (name_bytes <= bytes - blanks && memcmp(text + blanks, name, (size_t)name_bytes) == 0)
        *id = ids[at];
    return DSC_OK;
}

dsc_status dsc_conversation_end(dsc_conversation *c, int32_t *id, dsc_error *err)
{
    static const char answer[] = "@@@"; /* a text that no template has */
    const dsc_text *text = &c->render.whole.text;
    dsc_error refused = DSC_ERROR_INIT;
    int64_t at = -1;
    *id = -1;
    DSC_TRY(begin_row(c, err));
    DSC_TRY(dsc_sft_row_add(&c->row, "user", "x", 1, err));
    DSC_TRY(dsc_sft_row_add(&c->row, "assistant", answer, sizeof answer - 1, err));
    const dsc_status status = dsc_sft_render_row(&c->render, &c->row, c->o.folder->source, &refused);
    if (status != DSC_OK) /* a conversation of a user shows the same error */
        return status == DSC_ERR_NOMEM ? DSC_FAIL(err, status, refused.where, "%s", refused.message) : DSC_OK;
    for (int64_t i = 0; i + (int64_t)sizeof answer - 1 <= text->bytes; i++)
        if (memcmp(text->ptr + i, answer, sizeof answer - 1) == 0)
            at = i + (int64_t)sizeof answer - 1;
    return at >= 0 ? first_special(c, text->ptr + at, text->bytes - at, id, err) : DSC_OK;
}
