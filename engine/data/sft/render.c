/* render.c - see render.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/render.h"

#include <string.h>

#include "engine/data/sft/json_out.h"

void dsc_sft_render_open(dsc_alloc *alloc, const dsc_chat_folder *folder, int64_t now_s, dsc_sft_render *out)
{
    *out = (dsc_sft_render){ .folder = folder, .now_s = now_s, .whole = { .text = { .alloc = alloc } },
                             .part = { .text = { .alloc = alloc } }, .context = { .alloc = alloc } };
}

void dsc_sft_render_close(dsc_sft_render *render)
{
    if (render->span != NULL)
        dsc_alloc_free(render->context.alloc, render->span);
    render->span = NULL;
    render->span_count = render->span_room = 0;
    dsc_chat_output_free(&render->whole);
    dsc_chat_output_free(&render->part);
    dsc_text_free(&render->context);
}

dsc_status dsc_sft_add_span(dsc_sft_render *render, dsc_sft_span span, dsc_error *err)
{
    if (render->span_count == render->span_room) {
        dsc_sft_span *more = NULL;
        const int64_t room = dsc_max_i64(16, 2 * render->span_room);
        DSC_TRY(dsc_alloc_zeroed(render->context.alloc, DSC_TAG_DATA, room, sizeof *more, &more, err));
        if (render->span_count > 0)
            memcpy(more, render->span, (size_t)render->span_count * sizeof *more);
        dsc_alloc_free(render->context.alloc, render->span);
        render->span = more;
        render->span_room = room;
    }
    DSC_ASSERT(span.begin <= span.end);
    render->span[render->span_count++] = span;
    return DSC_OK;
}

/* ---- Renders ---- */

/* The first `count` messages. replaced: the message whose content is one character, -1: none. */
typedef struct request {
    int64_t count, replaced;
    bool answer_begins; /* add_generation_prompt */
} request;

static dsc_status add_message(dsc_text *out, const dsc_sft_row *row, int64_t index, bool replaced, dsc_error *err)
{
    const dsc_sft_message *m = &row->message[index];
    const char other[3] = { '"', m->other, '"' };
    if (!replaced)
        return dsc_text_add(out, row->json.ptr + m->begin, m->end - m->begin, err);
    DSC_TRY(dsc_text_add(out, row->json.ptr + m->begin, m->content_begin - m->begin, err));
    DSC_TRY(dsc_text_add(out, other, sizeof other, err));
    return dsc_text_add(out, row->json.ptr + m->content_end, m->end - m->content_end, err);
}

static dsc_status make_context(dsc_sft_render *render, const dsc_sft_row *row, request what, dsc_error *err)
{
    dsc_text *out = &render->context;
    out->bytes = 0;
    DSC_TRY(dsc_json_out_raw(out, "{\"messages\":[", err));
    for (int64_t i = 0; i < what.count; i++) {
        DSC_TRY(dsc_json_out_raw(out, i > 0 ? "," : "", err));
        DSC_TRY(add_message(out, row, i, i == what.replaced, err));
    }
    DSC_TRY(dsc_json_out_raw(out, "],\"add_generation_prompt\":", err));
    DSC_TRY(dsc_json_out_raw(out, what.answer_begins ? "true" : "false", err));
    if (row->tools.bytes > 0) {
        DSC_TRY(dsc_json_out_raw(out, ",\"tools\":", err));
        DSC_TRY(dsc_text_add(out, row->tools.ptr, row->tools.bytes, err));
    }
    return dsc_json_out_raw(out, "}", err);
}

static dsc_status render_request(dsc_sft_render *render, const dsc_sft_row *row, request what, dsc_chat_output *out,
                                 dsc_error *err)
{
    const dsc_chat_folder *folder = render->folder;
    const dsc_chat_template *chat =
        row->tools.bytes > 0 && folder->with_tools != NULL ? folder->with_tools : folder->chat;
    dsc_chat_options options = DSC_CHAT_OPTIONS_DEFAULT;
    options.now_s = render->now_s;
    DSC_TRY(make_context(render, row, what, err));
    const dsc_chat_text context[] = { { folder->special.ptr, folder->special.bytes },
                                      { render->context.ptr, render->context.bytes } };
    return dsc_chat_template_render(chat, context, 2, &options, out, err);
}

bool dsc_sft_render_reads_parts(dsc_sft_render *render)
{
    static const char messages[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A question?\"}]}]}";
    static const char part[] = "A question?";
    const dsc_text *out = &render->part.text;
    dsc_chat_options options = DSC_CHAT_OPTIONS_DEFAULT;
    options.now_s = render->now_s;
    const dsc_chat_text context[] = { { render->folder->special.ptr, render->folder->special.bytes },
                                      { messages, sizeof messages - 1 } };
    if (dsc_chat_template_render(render->folder->chat, context, 2, &options, &render->part, NULL) != DSC_OK)
        return false;
    const char *const at = out->bytes > 0 ? memmem(out->ptr, (size_t)out->bytes, part, sizeof part - 1) : NULL;
    return at != NULL && (at == out->ptr || (at[-1] != '"' && at[-1] != '\''));
}

/* Bytes of the part, if the whole begins with it; -1: another text, or the template refuses the part. */
static int64_t shared_bytes(dsc_sft_render *render, const dsc_sft_row *row, request what)
{
    const dsc_text *part = &render->part.text, *whole = &render->whole.text;
    if (render_request(render, row, what, &render->part, NULL) != DSC_OK || part->bytes > whole->bytes ||
        (part->bytes > 0 && memcmp(part->ptr, whole->ptr, (size_t)part->bytes) != 0))
        return -1;
    return part->bytes;
}

/* ---- Parts that count ---- */

static bool is_answer(const dsc_sft_row *row, int64_t index)
{
    return strncmp(row->json.ptr + row->message[index].begin, "{\"role\":\"assistant\"", 19) == 0;
}

/* Generation blocks are the answers in order. False: the template has none, or they are not one for each answer. */
static dsc_status take_blocks(dsc_sft_render *render, const dsc_sft_row *row, bool *taken, dsc_error *err)
{
    const dsc_chat_output *whole = &render->whole;
    int64_t answers = 0, counted = 0, others = 0, block = 0;
    for (int64_t i = 0; i < row->message_count; i++) {
        answers += is_answer(row, i);
        counted += is_answer(row, i) && row->message[i].counts;
        others += !is_answer(row, i) && row->message[i].counts;
    }
    *taken = whole->span_count > 0 && others == 0 && (counted == answers || whole->span_count == answers);
    for (int64_t i = 0; *taken && counted == answers && i < whole->span_count; i++)
        DSC_TRY(dsc_sft_add_span(render, (dsc_sft_span){ whole->span[i].begin, whole->span[i].end, DSC_SFT_BLOCK },
                                 err));
    for (int64_t i = 0; *taken && counted < answers && i < row->message_count; i++) {
        if (!is_answer(row, i))
            continue;
        const dsc_chat_span span = whole->span[block++];
        if (row->message[i].counts)
            DSC_TRY(dsc_sft_add_span(render, (dsc_sft_span){ span.begin, span.end, DSC_SFT_BLOCK }, err));
    }
    return DSC_OK;
}

static bool find_turn(dsc_sft_render *render, const dsc_sft_row *row, int64_t index, dsc_sft_span *out)
{
    const bool answer = is_answer(row, index), last = index == row->message_count - 1;
    const int64_t begin = shared_bytes(render, row, (request){ index, -1, answer });
    if (begin < 0)
        return false;
    const int64_t end = last ? render->whole.text.bytes : shared_bytes(render, row, (request){ index + 1, -1, false });
    const bool empty = row->message[index].content_end - row->message[index].content_begin <= 2; /* quotes alone */
    *out = (dsc_sft_span) { begin, end, DSC_SFT_MESSAGE };
    return end > begin || (end == begin && empty);
}

/* The two texts must differ in the content alone. */
static bool find_content(dsc_sft_render *render, const dsc_sft_row *row, int64_t index, dsc_sft_span *out)
{
    const dsc_text *whole = &render->whole.text, *part = &render->part.text;
    int64_t begin = 0, end = 0;
    if (row->message[index].content_end == row->message[index].content_begin ||
        render_request(render, row, (request){ row->message_count, index, false }, &render->part, NULL) != DSC_OK)
        return false;
    const int64_t shorter = dsc_min_i64(whole->bytes, part->bytes);
    while (begin < shorter && whole->ptr[begin] == part->ptr[begin])
        begin++;
    while (end < shorter - begin && whole->ptr[whole->bytes - 1 - end] == part->ptr[part->bytes - 1 - end])
        end++;
    *out = (dsc_sft_span){ begin, whole->bytes - end, DSC_SFT_CONTENT };
    return part->bytes - begin - end == 1 && part->ptr[begin] == row->message[index].other;
}

static dsc_status find_span(dsc_sft_render *render, const dsc_sft_row *row, int64_t index, const char *where,
                            dsc_error *err)
{
    dsc_sft_span span;
    const int64_t floor = render->span_count > 0 ? render->span[render->span_count - 1].end : 0;
    bool found = find_turn(render, row, index, &span);
    if (!found) {
        found = find_content(render, row, index, &span);
        render->replaced += found;
    }
    if (found && span.begin >= floor)
        return dsc_sft_add_span(render, span, err);
    return DSC_FAIL(err, DSC_ERR_INPUT, where, "message %lld is not found in the rendered text, so its tokens cannot "
                    "count; give a template with {%% generation %%} blocks (dsc.sft.template), or set \"train\": false "
                    "in the message", (long long)index + 1);
}

static dsc_status render_whole(dsc_sft_render *render, const dsc_sft_row *row, bool answer_begins, const char *where,
                               dsc_error *err)
{
    dsc_error inner = DSC_ERROR_INIT;
    const request what = { row->message_count, -1, answer_begins };
    render->span_count = 0;
    const dsc_status status = render_request(render, row, what, &render->whole, &inner);
    return status == DSC_OK ? DSC_OK
                            : DSC_FAIL(err, status, where, "%s: %s",
                                       inner.where[0] != 0 ? inner.where : "chat template", inner.message);
}

dsc_status dsc_sft_render_question(dsc_sft_render *render, const dsc_sft_row *row, const char *where, dsc_error *err)
{
    return render_whole(render, row, true, where, err);
}

dsc_status dsc_sft_render_row(dsc_sft_render *render, const dsc_sft_row *row, const char *where, dsc_error *err)
{
    bool taken = false;
    DSC_TRY(render_whole(render, row, false, where, err));
    DSC_TRY(take_blocks(render, row, &taken, err));
    for (int64_t i = 0; !taken && i < row->message_count; i++)
        if (row->message[i].counts)
            DSC_TRY(find_span(render, row, i, where, err));
    return DSC_OK;
}
