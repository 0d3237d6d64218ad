/* folder.h - the chat template of a model folder, with the special tokens that it prints.
 *
 * Read are, in this order: a template file that the caller names, chat_template.jinja, and the chat_template of
 * tokenizer_config.json, which is a text or a list of named ones. The template named "default" is used, and "tool_use"
 * for a conversation with tools. A folder without a template gets ChatML if its vocabulary has ChatML's tokens. Other
 * folders get a plain template, whose answers end with the tokenizer's end token.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_CHAT_FOLDER_H
#define DSC_ENGINE_TEXT_CHAT_FOLDER_H

#include <dsc/text.h>

#include "base/io.h"
#include "engine/text/chat/chat.h"

typedef struct dsc_chat_folder {
    dsc_alloc *alloc;
    dsc_chat_template *chat, *with_tools; /* with_tools: NULL without a template of its own */
    dsc_text special;  /* JSON object: bos_token, eos_token, ... */
    char source[1100]; /* file of the template, for messages */
    char end_token[128]; /* eos_token, "": none */
    bool built_in;     /* the folder has no template */
} dsc_chat_folder;

/* `template_file` "": the folder's. Owned; closed also after a failure. DSC_ERR_INPUT and DSC_ERR_UNSUPPORTED name the
 * file, and the place in the template. */
DSC_MUST_USE dsc_status dsc_chat_folder_open(const dsc_io *io, dsc_alloc *alloc, const char *folder,
                                             const char *template_file, const dsc_tokenizer *tokenizer,
                                             dsc_chat_folder *out, dsc_error *err);
void dsc_chat_folder_close(dsc_chat_folder *chat);
/* The folder that belongs to a tokenizer: the path itself, or the folder of a file. */
DSC_MUST_USE dsc_status dsc_chat_folder_of(const char *tokenizer_path, char *out, size_t out_bytes, dsc_error *err);

#endif
