/* decode.c - ids to text: each step of the decoder turns a list of strings into another.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/encoder.h"

static int64_t string_count(const tok_strings *list)
{
    return list->ends.count;
}

static tok_string string_at(const tok_strings *list, int64_t i)
{
    const int64_t start = i > 0 ? list->ends.ptr[i - 1] : 0;
    return (tok_string){ list->text.ptr + start, list->ends.ptr[i] - start };
}

/* The string that was just written ends here. */
static dsc_status end_string(tok_strings *list, dsc_error *err)
{
    if (list->text.bytes > INT32_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "ids of more than 2 GiB of text");
    return dsc_ids_add(&list->ends, (int32_t)list->text.bytes, err);
}

static dsc_status add_string(tok_strings *list, tok_string string, dsc_error *err)
{
    DSC_TRY(dsc_text_add(&list->text, string.ptr, string.bytes, err));
    return end_string(list, err);
}

/* The bytes that a ByteLevel token's characters stand for; the token itself when one of them stands for none. */
static dsc_status add_byte_level(tok_string token, dsc_text *out, dsc_error *err)
{
    const int64_t before = out->bytes;
    int length;
    DSC_TRY(dsc_text_reserve(out, token.bytes, err));
    for (int64_t i = 0; i < token.bytes; i += length) {
        const int byte = dsc_char_byte(dsc_char_at(token.ptr + i, &length));
        if (byte < 0) {
            out->bytes = before;
            return dsc_text_add(out, token.ptr, token.bytes, err);
        }
        out->ptr[out->bytes++] = (char)byte;
    }
    return DSC_OK;
}

/* Into one string, valid UTF-8. */
static dsc_status decode_byte_level(dsc_encoder *e, const tok_strings *in, tok_strings *out, dsc_error *err)
{
    e->repaired.bytes = 0;
    for (int64_t i = 0; i < string_count(in); i++)
        DSC_TRY(add_byte_level(string_at(in, i), &e->repaired, err));
    DSC_TRY(dsc_utf8_repair(e->repaired.ptr, e->repaired.bytes, &out->text, err));
    return end_string(out, err);
}

/* -1: not of the form <0xXX>. */
static int fallback_byte(tok_string token)
{
    int value = 0;
    if (token.bytes != 6 || memcmp(token.ptr, "<0x", 3) != 0 || token.ptr[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        const char c = token.ptr[i], lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            value = value * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            value = value * 16 + (lower - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* Bytes in a row are a string when they are UTF-8, else each is U+FFFD. */
static dsc_status decode_byte_fallback(const tok_strings *in, tok_strings *out, dsc_error *err)
{
    for (int64_t i = 0; i < string_count(in);) {
        const int64_t start = out->text.bytes;
        int64_t row = 0;
        for (; i < string_count(in); i++, row++) {
            const int byte = fallback_byte(string_at(in, i));
            if (byte < 0)
                break;
            const char c = (char)byte;
            DSC_TRY(dsc_text_add(&out->text, &c, 1, err));
        }
        if (row == 0) {
            DSC_TRY(add_string(out, string_at(in, i++), err));
            continue;
        }
        if (!dsc_utf8_is_valid(out->text.ptr + start, row)) {
            out->text.bytes = start;
            for (int64_t k = 0; k < row; k++)
                DSC_TRY(dsc_text_add(&out->text, "\xef\xbf\xbd", 3, err));
        }
        DSC_TRY(end_string(out, err));
    }
    return DSC_OK;
}

static tok_string strip_string(const tok_decoder *step, tok_string s)
{
    const tok_string c = step->from;
    for (int64_t i = 0; i < step->start && s.bytes >= c.bytes && memcmp(s.ptr, c.ptr, (size_t)c.bytes) == 0; i++)
        s = (tok_string){ s.ptr + c.bytes, s.bytes - c.bytes };
    for (int64_t i = 0; i < step->stop && s.bytes >= c.bytes &&
                        memcmp(s.ptr + s.bytes - c.bytes, c.ptr, (size_t)c.bytes) == 0; i++)
        s.bytes -= c.bytes;
    return s;
}

static dsc_status decode_metaspace(const tok_decoder *step, tok_string s, bool first, tok_strings *out, dsc_error *err)
{
    const tok_string space = { " ", 1 };
    const tok_string none = { "", 0 };
    const bool drops = first && step->prepend != TOK_PREPEND_NEVER;
    DSC_TRY(tok_replace_all(s, step->from, drops ? none : space, &out->text, err));
    return end_string(out, err);
}

/* A word's last piece ends with the suffix: a blank stands between words. */
static dsc_status decode_suffix(const tok_decoder *step, tok_string s, bool last, tok_strings *out, dsc_error *err)
{
    const tok_string space = { " ", last ? 0 : 1 };
    DSC_TRY(tok_replace_all(s, step->from, space, &out->text, err));
    return end_string(out, err);
}

/* Replacements of blanks before punctuation in an English detokenizer, in this order. */
static dsc_status clean_up(tok_string *s, dsc_text buffer[2], dsc_error *err)
{
    static const char *const pairs[][2] = {
        { " .", "." }, { " ?", "?" }, { " !", "!" }, { " ,", "," }, { " ' ", "'" }, { " n't", "n't" }, { " 'm", "'m" },
        { " do not", " don't" }, { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
    };
    int which = 0;
    for (size_t i = 0; i < DSC_COUNT(pairs); i++) {
        const tok_string from = { pairs[i][0], (int64_t)strlen(pairs[i][0]) };
        if (memmem(s->ptr, (size_t)s->bytes, from.ptr, (size_t)from.bytes) == NULL)
            continue;
        buffer[which].bytes = 0;
        DSC_TRY(tok_replace_all(*s, from, (tok_string){ pairs[i][1], (int64_t)strlen(pairs[i][1]) }, &buffer[which],
                                err));
        *s = (tok_string){ buffer[which].ptr, buffer[which].bytes };
        which = !which;
    }
    return DSC_OK;
}

/* A piece inside a word loses its prefix, all others but the first get a blank. */
static dsc_status decode_wordpiece(dsc_encoder *e, const tok_decoder *step, tok_string s, bool first, tok_strings *out,
                                   dsc_error *err)
{
    const tok_string prefix = step->from;
    const bool inside = s.bytes >= prefix.bytes && memcmp(s.ptr, prefix.ptr, (size_t)prefix.bytes) == 0;
    dsc_text *const whole = &e->repaired;
    whole->bytes = 0;
    if (!first && !inside)
        DSC_TRY(dsc_text_add(whole, " ", 1, err));
    if (!first && inside)
        s = (tok_string){ s.ptr + prefix.bytes, s.bytes - prefix.bytes };
    DSC_TRY(dsc_text_add(whole, s.ptr, s.bytes, err));
    s = (tok_string){ whole->ptr, whole->bytes };
    if (step->cleanup)
        DSC_TRY(clean_up(&s, e->normal, err));
    return add_string(out, s, err);
}

static dsc_status decode_step(dsc_encoder *e, const tok_decoder *step, const tok_strings *in, tok_strings *out,
                              dsc_error *err)
{
    out->text.bytes = out->ends.count = 0;
    if (step->kind == TOK_DECODE_BYTE_LEVEL)
        return decode_byte_level(e, in, out, err);
    if (step->kind == TOK_DECODE_BYTE_FALLBACK)
        return decode_byte_fallback(in, out, err);
    if (step->kind == TOK_DECODE_FUSE)
        return add_string(out, (tok_string){ in->text.ptr, in->text.bytes }, err);
    for (int64_t i = 0; i < string_count(in); i++) {
        const tok_string s = string_at(in, i);
        switch (step->kind) {
        case TOK_DECODE_REPLACE:
            DSC_TRY(tok_replace_all(s, step->from, step->to, &out->text, err));
            DSC_TRY(end_string(out, err));
            break;
        case TOK_DECODE_WORDPIECE: DSC_TRY(decode_wordpiece(e, step, s, i == 0, out, err)); break;
        case TOK_DECODE_BPE: DSC_TRY(decode_suffix(step, s, i + 1 == string_count(in), out, err)); break;
        case TOK_DECODE_STRIP: DSC_TRY(add_string(out, strip_string(step, s), err)); break;
        default: DSC_TRY(decode_metaspace(step, s, i == 0, out, err)); break;
        }
    }
    return DSC_OK;
}

/* A token's name: of one that is normalised what became of it. Special is what a special token's name is. */
static dsc_status name_token(dsc_encoder *e, const dsc_token *token, tok_string *name, bool *special, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    *name = (tok_string){ token->text, token->bytes };
    *special = token->special;
    if (!token->normalized || t->normalizer_count == 0)
        return DSC_OK;
    int64_t lead;
    DSC_TRY(tok_normalize(t, name, false, &lead, e->normal, err));
    const int32_t named = dsc_names_find(&t->vocab.by_text, name->ptr, name->bytes);
    *special = named >= 0 && t->vocab.token[named].special;
    return DSC_OK;
}

/* The tokens' names; without a decoder they are joined by blanks. */
static dsc_status name_tokens(dsc_encoder *e, const int32_t *ids, int64_t count, bool skip_special, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    tok_strings *out = &e->decoded[0];
    out->text.bytes = out->ends.count = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab.size || t->vocab.token[ids[i]].text == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer",
                            "id %d at position %lld is not a token; there are %lld tokens", (int)ids[i], (long long)i,
                            (long long)t->vocab.size);
        tok_string name;
        bool special = false;
        DSC_TRY(name_token(e, &t->vocab.token[ids[i]], &name, &special, err));
        if (skip_special && special)
            continue;
        if (!t->has_decoder && out->ends.count > 0)
            DSC_TRY(dsc_text_add(&out->text, " ", 1, err));
        DSC_TRY(add_string(out, name, err));
    }
    return DSC_OK;
}

dsc_status dsc_decode(dsc_encoder *e, const int32_t *ids, int64_t count, bool skip_special, const char **text,
                      int64_t *bytes, dsc_error *err)
{
    const dsc_tokenizer *t = e->tokenizer;
    int which = 0;
    DSC_TRY(name_tokens(e, ids, count, skip_special, err));
    for (int32_t i = 0; i < t->decoder_count; i++, which = !which)
        DSC_TRY(decode_step(e, &t->decoder[i], &e->decoded[which], &e->decoded[!which], err));
    dsc_text *out = &e->decoded[which].text;
    *bytes = out->bytes;
    DSC_TRY(dsc_text_add(out, "", 1, err));
    *text = out->ptr;
    return DSC_OK;
}
