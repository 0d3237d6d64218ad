/* normalize.c - the normalizer's steps. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/formats/utf8.h"
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

static dsc_status replace_matches(const tok_normalizer *step, tok_string in, dsc_text *out, dsc_error *err)
{
    dsc_regex_search search = dsc_regex_start(in.ptr, in.bytes);
    const char *at = in.ptr, *start, *end;
    bool found = true;
    for (;;) {
        DSC_TRY(dsc_regex_next(step->regex, &search, &start, &end, &found, err));
        if (!found)
            return dsc_text_add(out, at, in.ptr + in.bytes - at, err);
        DSC_TRY(dsc_text_add(out, at, start - at, err));
        DSC_TRY(dsc_text_add(out, step->to.ptr, step->to.bytes, err));
        at = end;
    }
}

/* ---- Characters ---- */

int tok_clean_char(uint32_t code, char *out)
{
    if (code == '\t' || code == '\n' || code == '\r')
        code = ' ';
    if (code == 0xfffd || dsc_char_is_other(code))
        return 0;
    return dsc_utf8_encode(dsc_char_is_space(code) ? ' ' : code, out);
}

int tok_nmt_char(uint32_t code, char *out)
{
    if ((code >= 0x01 && code <= 0x08) || code == 0x0b || (code >= 0x0e && code <= 0x1f) || code == 0x7f ||
        code == 0x8f || code == 0x9f)
        return 0;
    const bool blank = code == '\t' || code == '\n' || code == '\f' || code == '\r' || code == 0x1680 ||
                       (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                       code == 0xfeff || code == 0xfffd;
    return dsc_utf8_encode(blank ? ' ' : code, out);
}

int tok_space_ideograph(uint32_t code, char *out)
{
    const bool ideograph =
        (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
        (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b81f) ||
        (code >= 0x2b920 && code <= 0x2ceaf) || (code >= 0xf900 && code <= 0xfaff) ||
        (code >= 0x2f800 && code <= 0x2fa1f);
    int bytes = 0;
    if (ideograph)
        out[bytes++] = ' ';
    bytes += dsc_utf8_encode(code, out + bytes);
    if (ideograph)
        out[bytes++] = ' ';
    return bytes;
}

int tok_drop_nonspacing_mark(uint32_t code, char *out)
{
    return dsc_char_is_nonspacing_mark(code) ? 0 : dsc_utf8_encode(code, out);
}

int tok_drop_mark(uint32_t code, char *out)
{
    return dsc_char_is_mark(code) ? 0 : dsc_utf8_encode(code, out);
}

int tok_lower_char(uint32_t code, char *out)
{
    if (code == 0x130) { /* the only one that becomes two: i and a dot above */
        memcpy(out, "i\xcc\x87", 3);
        return 3;
    }
    return dsc_utf8_encode(dsc_char_lower(code), out);
}

static dsc_status change_chars(const tok_normalizer *step, tok_string in, dsc_text *out, dsc_error *err)
{
    int length;
    for (int64_t i = 0; i < in.bytes; i += length) {
        char changed[TOK_CHAR_BYTES_MAX];
        const int bytes = step->change(dsc_char_at(in.ptr + i, &length), changed);
        DSC_TRY(dsc_text_add(out, changed, bytes, err));
    }
    return DSC_OK;
}

static tok_string strip(const tok_normalizer *step, tok_string s)
{
    int length;
    while (step->left && s.bytes > 0 && dsc_char_is_space(dsc_char_at(s.ptr, &length)))
        s = (tok_string){ s.ptr + length, s.bytes - length };
    while (step->right && s.bytes > 0) {
        const char *last = dsc_char_before(s.ptr + s.bytes);
        if (!dsc_char_is_space(dsc_char_at(last, &length)))
            break;
        s.bytes = last - s.ptr;
    }
    return s;
}

/* ---- Steps ---- */

static bool changes(const tok_normalizer *step, tok_string text, bool goes_on)
{
    switch (step->kind) {
    case TOK_UNICODE: return !dsc_text_is_normal(text.ptr, text.bytes, step->form);
    case TOK_PREPEND: return text.bytes > 0 && !goes_on;
    case TOK_REPLACE:
        return step->regex != NULL ||
               memmem(text.ptr, (size_t)text.bytes, step->from.ptr, (size_t)step->from.bytes) != NULL;
    default: return true;
    }
}

static dsc_status apply(const tok_normalizer *step, tok_string text, dsc_text *out, dsc_error *err)
{
    switch (step->kind) {
    case TOK_UNICODE: return dsc_text_normalize(text.ptr, text.bytes, step->form, out, err);
    case TOK_PREPEND:
        DSC_TRY(dsc_text_add(out, step->to.ptr, step->to.bytes, err));
        return dsc_text_add(out, text.ptr, text.bytes, err);
    case TOK_CHARS: return change_chars(step, text, out, err);
    case TOK_CHARSMAP: return dsc_charsmap_apply(step->charsmap, text.ptr, text.bytes, out, err);
    default:
        return step->regex != NULL ? replace_matches(step, text, out, err)
                                   : tok_replace_all(text, step->from, step->to, out, err);
    }
}

/* ---- What a text began with ---- */

/* The first `lead` bytes of `text` come from its first character; *lead <- their number after a replacement. As in the
 * tokenizers package, the replacement counts as the last character that it removes. */
static dsc_status lead_replaced(const tok_normalizer *step, tok_string text, int64_t *lead, dsc_error *err)
{
    dsc_regex_search search = dsc_regex_start(text.ptr, text.bytes);
    const char *at = text.ptr, *const border = text.ptr + *lead, *start, *end;
    bool found = true;
    *lead = 0;
    for (; at < border; at = end) {
        if (step->regex != NULL) {
            DSC_TRY(dsc_regex_next(step->regex, &search, &start, &end, &found, err));
        } else {
            start = memmem(at, (size_t)(text.ptr + text.bytes - at), step->from.ptr, (size_t)step->from.bytes);
            found = start != NULL;
            end = found ? start + step->from.bytes : NULL;
        }
        if (!found || start >= border) {
            *lead += border - at;
            return DSC_OK;
        }
        *lead += start - at;
        if (step->to.bytes > 0 && end > start && dsc_char_before(end) >= border)
            return DSC_OK;
        *lead += step->to.bytes;
    }
    return DSC_OK;
}

/* Characters compose with what follows them too, so it is as many as these make alone. */
static dsc_status lead_normalized(const tok_normalizer *step, tok_string text, tok_string made, int64_t *lead,
                                  dsc_text *buffer, dsc_error *err)
{
    int length;
    buffer->bytes = 0;
    DSC_TRY(dsc_text_normalize(text.ptr, *lead, step->form, buffer, err));
    *lead = 0;
    for (int64_t i = 0; i < buffer->bytes && *lead < made.bytes; i += length) {
        (void)dsc_char_at(made.ptr + *lead, &length);
        *lead += length;
        (void)dsc_char_at(buffer->ptr + i, &length);
    }
    return DSC_OK;
}

/* A character of the output that takes the place of `takes` characters; 0: it only follows the one before. */
typedef struct mapped_char {
    int64_t bytes, takes;
} mapped_char;

/* Adds a character to the lead if the text that it takes, from *at on, begins before `border`. */
static void count_mapped(mapped_char c, tok_string text, int64_t border, int64_t *at, int64_t *lead)
{
    int length;
    if (c.takes > 0 ? *at < border : *at <= border)
        *lead += c.bytes;
    for (int64_t i = 0; i < c.takes && *at < text.bytes; i++, *at += length)
        (void)dsc_char_at(text.ptr + *at, &length);
}

static int64_t char_count(const char *text, int64_t bytes)
{
    int64_t count = 0;
    for (int64_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* As in the tokenizers package, characters that vanish belong to the one before. Those that vanish at the start shift
 * what each later one takes the place of. */
static dsc_status lead_mapped(const tok_normalizer *step, tok_string text, int64_t *lead, dsc_error *err)
{
    const int64_t border = *lead;
    dsc_charsmap_walk walk = dsc_charsmap_start(step->charsmap, text.ptr, text.bytes);
    mapped_char last = { 0, 0 };
    int64_t at = 0;
    *lead = 0;
    while (at <= border) { /* one more part: it may vanish into the last character of the lead */
        dsc_charsmap_part part;
        int length;
        DSC_TRY(dsc_charsmap_next(&walk, &part, err));
        if (part.from_bytes == 0)
            break;
        const int64_t old = char_count(part.from, part.from_bytes), new = char_count(part.to, part.to_bytes);
        for (int64_t i = 0, k = 0; i < part.to_bytes; i += length, k++) {
            if (last.bytes > 0)
                count_mapped(last, text, border, &at, lead);
            (void)dsc_char_at(part.to + i, &length);
            last = (mapped_char){ length, k < old };
        }
        if (last.bytes > 0 && new < old)
            last.takes += old - new;
    }
    if (last.bytes > 0)
        count_mapped(last, text, border, &at, lead);
    return DSC_OK;
}

/* *lead after any normalizer step, from the step's output. */
static dsc_status lead_after(const tok_normalizer *step, tok_string text, tok_string made, int64_t *lead,
                             dsc_text *buffer, dsc_error *err)
{
    const int64_t before = *lead;
    int length;
    if (before == 0)
        return DSC_OK;
    switch (step->kind) {
    case TOK_PREPEND: *lead += step->to.bytes; return DSC_OK;
    case TOK_REPLACE: return lead_replaced(step, text, lead, err);
    case TOK_STRIP:
        *lead = dsc_min_i64(dsc_max_i64(0, before - (made.ptr - text.ptr)), made.bytes);
        return DSC_OK;
    case TOK_CHARS:
        *lead = 0;
        for (int64_t i = 0; i < before; i += length) {
            char changed[TOK_CHAR_BYTES_MAX];
            *lead += step->change(dsc_char_at(text.ptr + i, &length), changed);
        }
        return DSC_OK;
    case TOK_CHARSMAP: return lead_mapped(step, text, lead, err);
    default: return lead_normalized(step, text, made, lead, buffer, err);
    }
}

dsc_status tok_normalize(const dsc_tokenizer *t, tok_string *text, bool goes_on, int64_t *lead,
                         dsc_text buffer[TOK_NORMAL_BUFFERS], dsc_error *err)
{
    int which = 0, length = 0;
    if (text->bytes > 0)
        (void)dsc_char_at(text->ptr, &length);
    *lead = length;
    for (int32_t i = 0; i < t->normalizer_count; i++) {
        const tok_normalizer *step = &t->normalizer[i];
        const tok_string before = *text;
        if (!changes(step, before, goes_on))
            continue;
        if (step->kind == TOK_STRIP) {
            *text = strip(step, before);
        } else {
            buffer[which].bytes = 0;
            DSC_TRY(apply(step, before, &buffer[which], err));
            *text = (tok_string){ buffer[which].ptr, buffer[which].bytes };
            which = !which;
        }
        DSC_TRY(lead_after(step, before, *text, lead, &buffer[TOK_NORMAL_BUFFERS - 1], err));
    }
    return DSC_OK;
}
