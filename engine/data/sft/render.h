/* render.h - a conversation as the text of a chat template, with the parts of the text that count.
 *
 * The parts come from the generation blocks of the template, where it has them. Otherwise message i is the difference
 * of two renders: of the messages up to i, and of those before it with the beginning of an answer. Both must begin the
 * whole text. Some templates render an earlier answer in another way than a last one, for example without its
 * reasoning. The content of such an answer is then found by its replacement with one character.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_RENDER_H
#define DSC_ENGINE_DATA_SFT_RENDER_H

#include "engine/data/sft/row.h"
#include "engine/text/chat/folder.h"

typedef enum dsc_sft_span_kind {
    DSC_SFT_BLOCK,   /* a generation block, as it is */
    DSC_SFT_MESSAGE, /* up to the end of a message: blanks behind its end token do not count */
    DSC_SFT_CONTENT  /* a content: the special token behind it belongs to it */
} dsc_sft_span_kind;

typedef struct dsc_sft_span {
    int64_t begin, end; /* bytes of the text */
    dsc_sft_span_kind kind;
} dsc_sft_span;

typedef struct dsc_sft_render {
    const dsc_chat_folder *folder;
    int64_t now_s;
    dsc_chat_output whole, part;
    dsc_text context;
    dsc_sft_span *span; /* [span_count], ascending and apart */
    int64_t span_count, span_room;
    int64_t replaced;   /* answers that were found by a replacement, of all rows */
} dsc_sft_render;
void dsc_sft_render_open(dsc_alloc *alloc, const dsc_chat_folder *folder, int64_t now_s, dsc_sft_render *out);
void dsc_sft_render_close(dsc_sft_render *render);
/* render->whole.text and the spans are those of the row's conversation. DSC_ERR_INPUT and DSC_ERR_UNSUPPORTED with
 * `where`. */
DSC_MUST_USE dsc_status dsc_sft_render_row(dsc_sft_render *render, const dsc_sft_row *row, const char *where,
                                           dsc_error *err);
/* render->whole.text is the row's conversation with the beginning of an answer, without spans. Errors as above. */
DSC_MUST_USE dsc_status dsc_sft_render_question(dsc_sft_render *render, const dsc_sft_row *row, const char *where,
                                                dsc_error *err);
/* Whether the template reads contents that are lists of text parts. Others refuse a list, or print it as JSON. */
bool dsc_sft_render_reads_parts(dsc_sft_render *render);
DSC_MUST_USE dsc_status dsc_sft_add_span(dsc_sft_render *render, dsc_sft_span span, dsc_error *err);

#endif
