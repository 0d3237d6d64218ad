/* generate.h - parts of `dsc generate`: settings, tokens of a text, its output. SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_DSC_GENERATE_H
#define TOOLS_DSC_GENERATE_H

#include <dsc/text.h>

#include "engine/generate/infer.h"
#include "engine/generate/sample.h"
#include "engine/generate/settings.h"
#include "engine/text/buffer.h"
#include "tools/dsc/tool.h"

typedef struct generation {
    const char *model, *prompt, *prompt_ids, *tokenizer_path, *device;
    const char *system, *chat_template; /* text; file, NULL: the folder's template */
    int64_t new_count, seed, threads, context; /* new_count -1: not given; context 0: the default */
    dsc_sample_options sample; /* until generation_settle: -1: not given */
    double repetition_penalty; /* likewise */
    dsc_dtype dtype;
    bool chat, show_context, ignore_end;
    dsc_generation_settings settings;
    dsc_alloc *alloc;
    dsc_tokenizer *tokenizer; /* NULL: a token is a byte */
    dsc_encoder *encoder;
    dsc_infer *infer;
    dsc_ids ids;            /* ids of the prompt, then of the generated text */
    int64_t first;          /* the first one whose text is printed or counts as printed */
    dsc_text bytes;         /* text of byte tokens, repaired */
    dsc_sample_work *work;
    float *logits;          /* with a penalty */
    int64_t drawn;          /* random choices so far */
    int64_t printed; /* bytes of the text from `first`, the prompt's among them; of ids: whether there was one */
} generation;

/* Settings that no flag gives <- those of the model folder, else the usual ones. */
DSC_MUST_USE dsc_status generation_settle(generation *g, dsc_error *err);
/* The tokenizer beside the weights, or of --tokenizer. */
DSC_MUST_USE dsc_status generation_open_tokenizer(generation *g, dsc_error *err);
/* Takes the memory for texts of up to `tokens`. Once. */
DSC_MUST_USE dsc_status generation_start(generation *g, int64_t tokens, dsc_error *err);
/* *id <- the token behind g->ids, not added. */
DSC_MUST_USE dsc_status generation_next(generation *g, int32_t *id, dsc_error *err);
/* The text of g->ids from `first`. Borrowed until the next call. */
DSC_MUST_USE dsc_status generation_text(generation *g, const char **text, int64_t *bytes, dsc_error *err);
/* Adds up to new_count tokens and prints their text as it comes. *ended: an end token came, which is not added. */
DSC_MUST_USE dsc_status generation_go_on(generation *g, bool *ended, dsc_error *err);

/* --chat: a conversation by lines of standard input, or one answer to --prompt. */
DSC_MUST_USE dsc_status generation_chat(generation *g, dsc_error *err);

#endif
