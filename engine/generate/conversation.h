/* conversation.h - a conversation with a model as the token ids that its next answer continues.
 *
 * Texts and ids are those of instruction data (engine/data/sft): the whole conversation is rendered by the chat
 * template and encoded anew for each question. Questions that no longer fit are left out with their answers, oldest
 * first; the system prompt stays. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_GENERATE_CONVERSATION_H
#define DSC_ENGINE_GENERATE_CONVERSATION_H

#include <dsc/text.h>

#include "engine/text/buffer.h"
#include "engine/text/chat/folder.h"

typedef struct dsc_conversation_options {
    dsc_alloc *alloc;               /* all are borrowed until close */
    const dsc_tokenizer *tokenizer;
    const dsc_chat_folder *folder;  /* the template */
    const char *system;             /* system prompt, NULL: none */
    int64_t now_s;                  /* for templates that print the date */
} dsc_conversation_options;

typedef struct dsc_conversation dsc_conversation;
/* Owned. DSC_ERR_NOMEM. */
DSC_MUST_USE dsc_status dsc_conversation_open(const dsc_conversation_options *options, dsc_conversation **out,
                                              dsc_error *err);
void dsc_conversation_close(dsc_conversation **conversation); /* safe on NULL */

/* Adds a question or its answer; the two alternate. Invalid UTF-8 and NUL become U+FFFD. */
DSC_MUST_USE dsc_status dsc_conversation_ask(dsc_conversation *conversation, const char *text, int64_t bytes,
                                             dsc_error *err);
DSC_MUST_USE dsc_status dsc_conversation_answer(dsc_conversation *conversation, const char *text, int64_t bytes,
                                                dsc_error *err);

/* The context of the next answer. Borrowed until the next call. */
typedef struct dsc_conversation_context {
    const char *messages; /* a JSON list of objects with role and content; not terminated */
    int64_t messages_bytes;
    const int32_t *ids;
    int64_t count;
    int64_t dropped; /* questions that were left out now */
} dsc_conversation_context;
/* At most `most` ids, after a question. DSC_ERR_INPUT: the last question alone has more; the template refuses the
 * conversation. */
DSC_MUST_USE dsc_status dsc_conversation_render(dsc_conversation *conversation, int64_t most,
                                                dsc_conversation_context *out, dsc_error *err);

/* The special token that the template puts behind an answer; -1: none, or the template refuses a short conversation. */
DSC_MUST_USE dsc_status dsc_conversation_end(dsc_conversation *conversation, int32_t *id, dsc_error *err);

#endif
