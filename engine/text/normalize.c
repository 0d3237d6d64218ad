/* normalize.c - the normalizer's steps. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/tokenizer_internal.h"

dsc_status tok_replace_all(tok_string in, tok_string from, tok_string to, dsc_text *out, dsc_error *err)
{
    const char *at = in.ptr, *const end = in.ptr + in.bytes;
    for (;;) {
        const char *hit = memmem(at, (size_t)(end - at), from.ptr, (size_t)from.bytes);
        DSC_TRY(dsc_text_add(out, at, (hit != NULL ? hit : end) - at, err));
        if (hit == NULL)
            return DSC_OK;
        DSC_TRY(dsc_text_add(out, to.ptr, to.bytes, err));
        at = hit + from.bytes;
    }
}

static bool changes(const tok_normalizer *step, tok_string text, bool goes_on)
{
    switch (step->kind) {
    case TOK_UNICODE: return !dsc_text_is_normal(text.ptr, text.bytes, step->form);
    case TOK_PREPEND: return text.bytes > 0 && !goes_on;
    default: return memmem(text.ptr, (size_t)text.bytes, step->from.ptr, (size_t)step->from.bytes) != NULL;
    }
}

static dsc_status apply(const tok_normalizer *step, tok_string text, dsc_text *out, dsc_error *err)
{
    switch (step->kind) {
    case TOK_UNICODE: return dsc_text_normalize(text.ptr, text.bytes, step->form, out, err);
    case TOK_PREPEND:
        DSC_TRY(dsc_text_add(out, step->to.ptr, step->to.bytes, err));
        return dsc_text_add(out, text.ptr, text.bytes, err);
    default: return tok_replace_all(text, step->from, step->to, out, err);
    }
}

dsc_status tok_normalize(const dsc_tokenizer *t, tok_string *text, bool goes_on, dsc_text buffer[2], dsc_error *err)
{
    int which = 0;
    for (int32_t i = 0; i < t->normalizer_count; i++) {
        if (!changes(&t->normalizer[i], *text, goes_on))
            continue;
        buffer[which].bytes = 0;
        DSC_TRY(apply(&t->normalizer[i], *text, &buffer[which], err));
        *text = (tok_string){ buffer[which].ptr, buffer[which].bytes };
        which = !which;
    }
    return DSC_OK;
}
