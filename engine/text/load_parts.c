/* load_parts.c - normalizer, pre-tokenizer, post-processor and decoder of a tokenizer.json. Each kind that is not here
 * is refused with its name. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/load.h"

/* GPT-2's words, which ByteLevel cuts a text into by itself. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static dsc_status refuse_kind(const tok_loader *l, const cJSON *component, const char *what, const char *type)
{
    return tok_fail(l, component, DSC_ERR_UNSUPPORTED, "the %s \"%.60s\" is not built in this version", what, type);
}

static dsc_status refuse_steps(const tok_loader *l, const cJSON *component)
{
    return tok_fail(l, component, DSC_ERR_UNSUPPORTED, "more than %d steps", TOK_STEPS_MAX);
}

/* A {"String": "..."} or {"Regex": "..."}; *regex says which. */
static dsc_status read_pattern(const tok_loader *l, const cJSON *component, bool *regex, tok_string *out)
{
    const cJSON *pattern = tok_get(component, "pattern");
    if (!cJSON_IsObject(pattern) || pattern->child == NULL || pattern->child->next != NULL)
        return tok_fail(l, pattern != NULL ? pattern : component, DSC_ERR_INPUT,
                        "\"pattern\" must be {\"String\": ...} or {\"Regex\": ...}");
    DSC_TRY(tok_check_keys(l, pattern, "String Regex "));
    *regex = strcmp(pattern->child->string, "Regex") == 0;
    return tok_get_string(l, pattern, pattern->child->string, false, out);
}

static dsc_status read_prepend(const tok_loader *l, const cJSON *component, tok_prepend *out)
{
    static const char *const names[] = { "always", "first", "never" };
    const cJSON *scheme = tok_get(component, "prepend_scheme");
    bool prefix = true;
    DSC_TRY(tok_get_bool(l, component, "add_prefix_space", true, &prefix));
    *out = prefix ? TOK_PREPEND_ALWAYS : TOK_PREPEND_NEVER;
    if (scheme == NULL)
        return DSC_OK;
    for (size_t i = 0; i < DSC_COUNT(names) && cJSON_IsString(scheme); i++)
        if (strcmp(scheme->valuestring, names[i]) == 0) {
            *out = (tok_prepend)i;
            return DSC_OK;
        }
    return tok_fail(l, scheme, DSC_ERR_INPUT, "\"prepend_scheme\" must be always, first or never");
}

static dsc_status open_regex(const tok_loader *l, const cJSON *component, const char *pattern, dsc_regex **out)
{
    char where[256];
    return dsc_regex_open(l->t->alloc, pattern, dsc_json_where(l->json, component, where, sizeof where), out, l->err);
}

/* ---- Normalizer ---- */

static dsc_status add_normalizer(const tok_loader *l, const cJSON *component, tok_normalizer step)
{
    if (l->t->normalizer_count == TOK_STEPS_MAX)
        return refuse_steps(l, component);
    l->t->normalizer[l->t->normalizer_count++] = step;
    return DSC_OK;
}

static dsc_status add_change(const tok_loader *l, const cJSON *component, tok_change_char change)
{
    return add_normalizer(l, component, (tok_normalizer){ .kind = TOK_CHARS, .change = change,
                                                          .lines_become_blanks = change == tok_clean_char ||
                                                                                 change == tok_nmt_char });
}

static dsc_status read_bert(const tok_loader *l, const cJSON *component)
{
    bool clean = true, ideographs = true, accents = true, lower = true;
    DSC_TRY(tok_check_keys(l, component, "type clean_text handle_chinese_chars strip_accents lowercase "));
    DSC_TRY(tok_get_bool(l, component, "clean_text", true, &clean));
    DSC_TRY(tok_get_bool(l, component, "handle_chinese_chars", true, &ideographs));
    DSC_TRY(tok_get_bool(l, component, "lowercase", true, &lower));
    DSC_TRY(tok_get_bool(l, component, "strip_accents", lower, &accents));
    if (clean)
        DSC_TRY(add_change(l, component, tok_clean_char));
    if (ideographs)
        DSC_TRY(add_change(l, component, tok_space_ideograph));
    if (accents) {
        DSC_TRY(add_normalizer(l, component, (tok_normalizer){ .kind = TOK_UNICODE, .form = DSC_NFD }));
        DSC_TRY(add_change(l, component, tok_drop_nonspacing_mark));
    }
    return lower ? add_change(l, component, tok_lower_char) : DSC_OK;
}

static dsc_status read_replace(const tok_loader *l, const cJSON *component)
{
    tok_normalizer step = { .kind = TOK_REPLACE };
    bool regex = false;
    DSC_TRY(tok_check_keys(l, component, "type pattern content "));
    DSC_TRY(read_pattern(l, component, &regex, &step.from));
    DSC_TRY(tok_get_string(l, component, "content", true, &step.to));
    DSC_TRY(add_normalizer(l, component, step));
    /* Opened where it is kept, so that it is closed with the tokenizer whatever happens. */
    return regex ? open_regex(l, component, step.from.ptr, &l->t->normalizer[l->t->normalizer_count - 1].regex)
                 : DSC_OK;
}

static dsc_status read_precompiled(const tok_loader *l, const cJSON *component)
{
    const cJSON *map = tok_get(component, "precompiled_charsmap");
    char where[256];
    DSC_TRY(tok_check_keys(l, component, "type precompiled_charsmap "));
    if (!cJSON_IsString(map))
        return tok_fail(l, component, DSC_ERR_INPUT, "\"precompiled_charsmap\" must be a string");
    DSC_TRY(add_normalizer(l, component, (tok_normalizer){ .kind = TOK_CHARSMAP }));
    return dsc_charsmap_open(l->t->alloc, map->valuestring, dsc_json_where(l->json, map, where, sizeof where),
                             &l->t->normalizer[l->t->normalizer_count - 1].charsmap, l->err);
}

dsc_status tok_read_normalizer(const tok_loader *l, const cJSON *component, const char *type)
{
    static const char *const forms[] = { "NFC", "NFD", "NFKC", "NFKD" };
    tok_normalizer step = { .kind = TOK_UNICODE };
    for (size_t i = 0; i < DSC_COUNT(forms); i++)
        if (strcmp(type, forms[i]) == 0) {
            step.form = (dsc_normal_form)i;
            DSC_TRY(tok_check_keys(l, component, "type "));
            return add_normalizer(l, component, step);
        }
    if (strcmp(type, "BertNormalizer") == 0)
        return read_bert(l, component);
    if (strcmp(type, "Replace") == 0)
        return read_replace(l, component);
    if (strcmp(type, "Lowercase") == 0 || strcmp(type, "StripAccents") == 0) {
        DSC_TRY(tok_check_keys(l, component, "type "));
        return add_change(l, component, type[0] == 'L' ? tok_lower_char : tok_drop_mark);
    }
    if (strcmp(type, "Nmt") == 0) {
        DSC_TRY(tok_check_keys(l, component, "type "));
        return add_change(l, component, tok_nmt_char);
    }
    if (strcmp(type, "Precompiled") == 0)
        return read_precompiled(l, component);
    if (strcmp(type, "Prepend") == 0) {
        step.kind = TOK_PREPEND;
        DSC_TRY(tok_check_keys(l, component, "type prepend "));
        DSC_TRY(tok_get_string(l, component, "prepend", true, &step.to));
        return add_normalizer(l, component, step);
    }
    if (strcmp(type, "Strip") == 0) {
        step.kind = TOK_STRIP;
        DSC_TRY(tok_check_keys(l, component, "type strip_left strip_right "));
        DSC_TRY(tok_get_bool(l, component, "strip_left", true, &step.left));
        DSC_TRY(tok_get_bool(l, component, "strip_right", true, &step.right));
        return add_normalizer(l, component, step);
    }
    return refuse_kind(l, component, "normalizer", type);
}

/* ---- Pre-tokenizer ---- */

static dsc_status read_behavior(const tok_loader *l, const cJSON *component, tok_behavior *out)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const cJSON *item = tok_get(component, "behavior");
    for (size_t i = 0; i < DSC_COUNT(names) && cJSON_IsString(item); i++)
        if (strcmp(item->valuestring, names[i]) == 0) {
            *out = (tok_behavior)i;
            return DSC_OK;
        }
    return tok_fail(l, item != NULL ? item : component, DSC_ERR_INPUT,
                    "\"behavior\" must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static dsc_status read_split(const tok_loader *l, const cJSON *component, tok_splitter *out)
{
    bool regex = false;
    DSC_TRY(tok_check_keys(l, component, "type pattern behavior invert "));
    DSC_TRY(read_pattern(l, component, &regex, &out->literal));
    DSC_TRY(read_behavior(l, component, &out->behavior));
    DSC_TRY(tok_get_bool(l, component, "invert", false, &out->invert));
    return regex ? open_regex(l, component, out->literal.ptr, &out->regex) : DSC_OK;
}

static dsc_status read_byte_level(const tok_loader *l, const cJSON *component, tok_splitter *out)
{
    bool prefix = true, regex = true, trim = true; /* offsets, which nobody asks for here */
    out->kind = TOK_BYTE_LEVEL;
    out->behavior = TOK_ISOLATED;
    DSC_TRY(tok_check_keys(l, component, "type add_prefix_space trim_offsets use_regex "));
    DSC_TRY(tok_get_bool(l, component, "add_prefix_space", true, &prefix));
    DSC_TRY(tok_get_bool(l, component, "trim_offsets", true, &trim));
    DSC_TRY(tok_get_bool(l, component, "use_regex", true, &regex));
    out->prepend = prefix ? TOK_PREPEND_ALWAYS : TOK_PREPEND_NEVER;
    return regex ? open_regex(l, component, byte_level_pattern, &out->regex) : DSC_OK;
}

static dsc_status read_metaspace(const tok_loader *l, const cJSON *component, tok_splitter *out)
{
    out->kind = TOK_METASPACE;
    out->behavior = TOK_MERGED_WITH_NEXT;
    DSC_TRY(tok_check_keys(l, component, "type replacement add_prefix_space prepend_scheme split str_rep "));
    DSC_TRY(tok_get_string(l, component, "replacement", false, &out->literal));
    DSC_TRY(tok_get_bool(l, component, "split", true, &out->split));
    return read_prepend(l, component, &out->prepend);
}

static dsc_status read_digits(const tok_loader *l, const cJSON *component, tok_splitter *out)
{
    bool individual = false;
    DSC_TRY(tok_check_keys(l, component, "type individual_digits "));
    DSC_TRY(tok_get_bool(l, component, "individual_digits", false, &individual));
    out->behavior = individual ? TOK_ISOLATED : TOK_CONTIGUOUS;
    return open_regex(l, component, "\\p{N}", &out->regex);
}

/* \w+|[^\w\s]+ of a library whose \w has joiners, which that of patterns has not. */
static int word_class(uint32_t code)
{
    return dsc_char_is_word(code) ? 1 : dsc_char_is_space(code) ? 0 : 2;
}

static dsc_status read_punctuation(const tok_loader *l, const cJSON *component, tok_splitter *out)
{
    DSC_TRY(tok_check_keys(l, component, "type behavior "));
    out->behavior = TOK_ISOLATED;
    out->is_match = dsc_char_is_punctuation;
    return tok_get(component, "behavior") != NULL ? read_behavior(l, component, &out->behavior) : DSC_OK;
}

/* Words between white space, and then each punctuation for itself. */
static dsc_status read_bert_splitter(const tok_loader *l, const cJSON *component, tok_splitter *out)
{
    *out = (tok_splitter){ .behavior = TOK_REMOVED, .is_match = dsc_char_is_space };
    if (l->t->splitter_count == TOK_STEPS_MAX)
        return refuse_steps(l, component);
    l->t->splitter[l->t->splitter_count++] =
        (tok_splitter){ .behavior = TOK_ISOLATED, .is_match = dsc_char_is_punctuation };
    return tok_check_keys(l, component, "type ");
}

dsc_status tok_read_splitter(const tok_loader *l, const cJSON *component, const char *type)
{
    if (l->t->splitter_count == TOK_STEPS_MAX)
        return refuse_steps(l, component);
    /* Counted first, so that its pattern is closed with the tokenizer whatever happens. */
    tok_splitter *out = &l->t->splitter[l->t->splitter_count++];
    if (strcmp(type, "Split") == 0)
        return read_split(l, component, out);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(l, component, out);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(l, component, out);
    if (strcmp(type, "Digits") == 0)
        return read_digits(l, component, out);
    if (strcmp(type, "Punctuation") == 0)
        return read_punctuation(l, component, out);
    if (strcmp(type, "BertPreTokenizer") == 0)
        return read_bert_splitter(l, component, out);
    if (strcmp(type, "Whitespace") == 0) {
        DSC_TRY(tok_check_keys(l, component, "type "));
        out->behavior = TOK_REMOVED;
        out->invert = true;
        out->class_of = word_class;
        return DSC_OK;
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        out->behavior = TOK_REMOVED;
        out->is_match = dsc_char_is_space;
        return tok_check_keys(l, component, "type ");
    }
    return refuse_kind(l, component, "pre-tokenizer", type);
}

/* ---- Post-processor ---- */

static dsc_status put_around(const tok_loader *l, const cJSON *item, bool before, const int32_t *ids, int32_t count)
{
    int32_t *const list = before ? l->t->before : l->t->after;
    int32_t *const used = before ? &l->t->before_count : &l->t->after_count;
    if (*used + count > TOK_AROUND_MAX)
        return tok_fail(l, item, DSC_ERR_UNSUPPORTED, "more than %d tokens around a text", TOK_AROUND_MAX);
    /* A later processor works outside of an earlier one. */
    if (before)
        memmove(list + count, list, (size_t)*used * sizeof *list);
    memcpy(before ? list : list + *used, ids, (size_t)count * sizeof *list);
    *used += count;
    return DSC_OK;
}

static dsc_status read_id(const tok_loader *l, const cJSON *item, int32_t *out)
{
    int64_t id = 0;
    DSC_TRY(tok_get_integer(l, item, "id", DSC_VOCAB_MAX - 1, &id));
    if (dsc_tokenizer_token(l->t, (int32_t)id) == NULL)
        return tok_fail(l, item, DSC_ERR_INPUT, "id %lld is not a token", (long long)id);
    *out = (int32_t)id;
    return DSC_OK;
}

/* The ids of a template's special token, appended to those of its side. */
static dsc_status add_special(const tok_loader *l, const cJSON *component, const cJSON *piece, int32_t *ids,
                              int32_t *count)
{
    const cJSON *name = tok_get(piece, "id"), *table = tok_get(component, "special_tokens");
    const cJSON *entry = cJSON_IsString(name) && cJSON_IsObject(table) ? tok_get(table, name->valuestring) : NULL;
    const cJSON *list = cJSON_IsObject(entry) ? tok_get(entry, "ids") : NULL;
    if (!cJSON_IsArray(list))
        return tok_fail(l, piece, DSC_ERR_INPUT, "a special token of the template is not in \"special_tokens\"");
    for (const cJSON *item = list->child; item != NULL; item = item->next) {
        if (*count == TOK_AROUND_MAX)
            return tok_fail(l, item, DSC_ERR_UNSUPPORTED, "more than %d tokens around a text", TOK_AROUND_MAX);
        DSC_TRY(read_id(l, item, &ids[(*count)++]));
    }
    return DSC_OK;
}

static dsc_status read_template(const tok_loader *l, const cJSON *component)
{
    int32_t ids[2][TOK_AROUND_MAX], count[2] = { 0 };
    int side = 0; /* 1: behind the text */
    const cJSON *single = tok_get(component, "single");
    DSC_TRY(tok_check_keys(l, component, "type single pair special_tokens "));
    if (!cJSON_IsArray(single))
        return tok_fail(l, component, DSC_ERR_INPUT, "\"single\" must be an array");
    for (const cJSON *piece = single->child; piece != NULL; piece = piece->next) {
        const cJSON *special = cJSON_IsObject(piece) ? tok_get(piece, "SpecialToken") : NULL;
        const cJSON *sequence = cJSON_IsObject(piece) ? tok_get(piece, "Sequence") : NULL;
        const cJSON *name = cJSON_IsObject(sequence) ? tok_get(sequence, "id") : NULL;
        if (cJSON_IsObject(special))
            DSC_TRY(add_special(l, component, special, ids[side], &count[side]));
        else if (cJSON_IsString(name) && strcmp(name->valuestring, "A") == 0 && side == 0)
            side = 1;
        else
            return tok_fail(l, piece, DSC_ERR_UNSUPPORTED, "a template of one text must have it once, as Sequence A");
    }
    if (side == 0)
        return tok_fail(l, single, DSC_ERR_UNSUPPORTED, "a template without its text");
    tok_read_template_form(l->t, component, false);
    tok_read_template_form(l->t, component, true);
    DSC_TRY(put_around(l, component, true, ids[0], count[0]));
    return put_around(l, component, false, ids[1], count[1]);
}

/* ["</s>", 2] */
static dsc_status read_pair(const tok_loader *l, const cJSON *component, const char *key, int32_t *id)
{
    const cJSON *pair = tok_get(component, key);
    if (!cJSON_IsArray(pair) || pair->child == NULL || !cJSON_IsNumber(pair->child->next))
        return tok_fail(l, component, DSC_ERR_INPUT, "\"%s\" must be an array of a token and its id", key);
    return read_id(l, pair->child->next, id);
}

dsc_status tok_read_processor(const tok_loader *l, const cJSON *component, const char *type)
{
    int32_t id, sep;
    if (strcmp(type, "ByteLevel") == 0) /* about offsets only */
        return tok_check_keys(l, component, "type add_prefix_space trim_offsets use_regex ");
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(l, component);
    if (strcmp(type, "RobertaProcessing") != 0 && strcmp(type, "BertProcessing") != 0)
        return refuse_kind(l, component, "post-processor", type);
    DSC_TRY(tok_check_keys(l, component, "type sep cls trim_offsets add_prefix_space "));
    DSC_TRY(read_pair(l, component, "cls", &id));
    DSC_TRY(put_around(l, component, true, &id, 1));
    DSC_TRY(read_pair(l, component, "sep", &sep));
    tok_set_bert_form(l->t, id, sep, strcmp(type, "RobertaProcessing") == 0);
    return put_around(l, component, false, &sep, 1);
}

/* ---- Decoder ---- */

static dsc_status read_strip(const tok_loader *l, const cJSON *component, tok_decoder *out)
{
    DSC_TRY(tok_check_keys(l, component, "type content start stop "));
    DSC_TRY(tok_get_string(l, component, "content", false, &out->from));
    DSC_TRY(tok_get_integer(l, component, "start", INT32_MAX, &out->start));
    return tok_get_integer(l, component, "stop", INT32_MAX, &out->stop);
}

static dsc_status read_decoder_replace(const tok_loader *l, const cJSON *component, tok_decoder *out)
{
    bool regex = false;
    DSC_TRY(tok_check_keys(l, component, "type pattern content "));
    DSC_TRY(read_pattern(l, component, &regex, &out->from));
    if (regex)
        return tok_fail(l, component, DSC_ERR_UNSUPPORTED, "a Replace of the pattern %.100s is not built",
                        out->from.ptr);
    return tok_get_string(l, component, "content", true, &out->to);
}

dsc_status tok_read_decoder(const tok_loader *l, const cJSON *component, const char *type)
{
    static const char *const names[] = { "ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace",
                                          "WordPiece", "BPEDecoder" };
    if (l->t->decoder_count == TOK_STEPS_MAX)
        return refuse_steps(l, component);
    tok_decoder *out = &l->t->decoder[l->t->decoder_count++];
    size_t kind = 0;
    while (kind < DSC_COUNT(names) && strcmp(type, names[kind]) != 0)
        kind++;
    out->kind = (tok_decoder_kind)kind;
    switch (out->kind) {
    case TOK_DECODE_BYTE_LEVEL: return tok_check_keys(l, component, "type add_prefix_space trim_offsets use_regex ");
    case TOK_DECODE_BYTE_FALLBACK:
    case TOK_DECODE_FUSE: return tok_check_keys(l, component, "type ");
    case TOK_DECODE_REPLACE: return read_decoder_replace(l, component, out);
    case TOK_DECODE_STRIP: return read_strip(l, component, out);
    case TOK_DECODE_WORDPIECE:
        DSC_TRY(tok_check_keys(l, component, "type prefix cleanup "));
        DSC_TRY(tok_get_string(l, component, "prefix", true, &out->from));
        return tok_get_bool(l, component, "cleanup", true, &out->cleanup);
    case TOK_DECODE_BPE:
        DSC_TRY(tok_check_keys(l, component, "type suffix "));
        return tok_get_string(l, component, "suffix", false, &out->from);
    case TOK_DECODE_METASPACE:
        DSC_TRY(tok_check_keys(l, component, "type replacement add_prefix_space prepend_scheme split str_rep "));
        DSC_TRY(tok_get_string(l, component, "replacement", false, &out->from));
        return read_prepend(l, component, &out->prepend);
    default: return refuse_kind(l, component, "decoder", type);
    }
}
