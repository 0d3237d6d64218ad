/* chat.h - chat templates of Hugging Face model folders: conversations to text, as transformers renders them.
 *
 * The language is the subset of Jinja that README.md lists; everything else is refused by name, line and column. The
 * semantics are jinja2 3.1's ImmutableSandboxedEnvironment with trim_blocks and lstrip_blocks, the extension
 * loopcontrols, and the tag `generation`, filter `tojson` and functions `raise_exception` and `strftime_now` of
 * transformers 5.24 (utils/chat_template_utils.py). An accepted template gives the bytes of apply_chat_template.
 *
 * Templates and contexts are hostile input. Bytes, tokens, nesting, steps, output and memory have limits, and a render
 * that reaches one ends with an error. Functions are thread-safe for different outputs: a template is read only after
 * dsc_chat_template_open. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_CHAT_CHAT_H
#define DSC_ENGINE_TEXT_CHAT_CHAT_H

#include "engine/text/buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fixed limits of a template and of a context. */
#define DSC_CHAT_TEMPLATE_BYTES_MAX (1 << 20)
#define DSC_CHAT_TOKENS_MAX 200000
#define DSC_CHAT_NESTING_MAX 100 /* nested tags or expressions; nested arrays and objects of a context */
#define DSC_CHAT_CONTEXT_BYTES_MAX (64 << 20)

typedef struct dsc_chat_template dsc_chat_template;

/* Limits of one render. */
typedef struct dsc_chat_limits {
    int64_t steps;        /* evaluated nodes, compared values, and 4 to 64 bytes of processed text by its cost */
    int64_t output_bytes;
    int64_t memory_bytes; /* all values of the render, the context included; not the JSON tree that is read */
    int64_t depth;        /* nested evaluations, macro calls included */
} dsc_chat_limits;
#define DSC_CHAT_LIMITS_DEFAULT { 10000000, 16 << 20, 128 << 20, 600 }

typedef struct dsc_chat_options {
    dsc_chat_limits limits;
    int64_t now_s; /* seconds since 1970, printed by strftime_now as UTC */
} dsc_chat_options;
#define DSC_CHAT_OPTIONS_DEFAULT { DSC_CHAT_LIMITS_DEFAULT, 0 }

/* A borrowed text. */
typedef struct dsc_chat_text {
    const char *text;
    int64_t bytes;
} dsc_chat_text;

typedef struct dsc_chat_span {
    int64_t begin, end;
} dsc_chat_span;

/* The result of renders; a render replaces the previous result. Zeroed but for text.alloc: empty. */
typedef struct dsc_chat_output {
    dsc_text text;           /* not terminated */
    dsc_chat_span *span;     /* [span_count] bytes of text from generation blocks, in order of their ends */
    int64_t span_count, span_capacity;
} dsc_chat_output;
void dsc_chat_output_free(dsc_chat_output *output);

/* Reads a template; `text` is valid UTF-8 and borrowed until return. The caller owns *out. Errors name the place as
 * "chat template:LINE:COLUMN": DSC_ERR_INPUT for a template that jinja2 refuses too, DSC_ERR_UNSUPPORTED for valid
 * Jinja outside of the subset, DSC_ERR_NOMEM. Memory has the tag DATA. */
DSC_MUST_USE dsc_status dsc_chat_template_open(dsc_alloc *alloc, const char *text, int64_t bytes,
                                               dsc_chat_template **out, dsc_error *err);
void dsc_chat_template_close(dsc_chat_template **chat); /* safe on NULL */

/* Renders with the variables of `count` JSON objects; a later object replaces variables of an earlier one. Numbers keep
 * Python's distinction of 1 and 1.0. An integer beyond 2^53, a repeated key and a NUL are refused. The variables tools
 * and documents are None and add_generation_prompt is False unless given. Special tokens (bos_token, eos_token) are
 * variables like all others.
 *
 * A generation block inside of a macro or of a block `set` has the span that transformers reports: it begins at the
 * output of the whole template up to then. Errors: DSC_ERR_INPUT (raise_exception, wrong types, invalid JSON, a
 * limit), DSC_ERR_UNSUPPORTED, DSC_ERR_NOMEM. On an error *output is empty. */
DSC_MUST_USE dsc_status dsc_chat_template_render(const dsc_chat_template *chat, const dsc_chat_text *context,
                                                 int32_t count, const dsc_chat_options *options,
                                                 dsc_chat_output *output, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
