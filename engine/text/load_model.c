/* load_model.c - the model of a tokenizer.json (BPE's merges, WordPiece's pieces), its vocabulary and the added tokens.
 * Unigram's model is in load_unigram.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/text/load.h"

static const char mark[] = DSC_SPACE_MARK;

/* Grows the table of tokens to the size that the largest id needs, and the maps of names with it. */
dsc_status tok_open_vocab(const tok_loader *l, int64_t names, int64_t largest)
{
    dsc_tokenizer *t = l->t;
    const cJSON *added = tok_get(dsc_json_root(l->json), "added_tokens");
    int64_t id;
    if (added != NULL && (!cJSON_IsArray(added) || cJSON_GetArraySize(added) > TOK_ADDED_MAX))
        return tok_fail(l, added, DSC_ERR_INPUT, "\"added_tokens\" must be an array of at most %d", TOK_ADDED_MAX);
    for (const cJSON *item = added != NULL ? added->child : NULL; item != NULL; item = item->next, names++) {
        if (!cJSON_IsObject(item))
            return tok_fail(l, item, DSC_ERR_INPUT, "an added token must be an object");
        DSC_TRY(tok_get_integer(l, item, "id", DSC_VOCAB_MAX - 1, &id));
        largest = dsc_max_i64(largest, id);
    }
    t->vocab.size = largest + 1;
    DSC_TRY(dsc_alloc_zeroed(t->alloc, DSC_TAG_DATA, t->vocab.size, sizeof *t->vocab.token, &t->vocab.token, l->err));
    return dsc_names_open(t->alloc, names, &t->vocab.by_text, l->err);
}

static dsc_status add_token(const tok_loader *l, const cJSON *item, const char *name, int64_t id)
{
    dsc_token *token = &l->t->vocab.token[id];
    if (token->text != NULL)
        return tok_fail(l, item, DSC_ERR_INPUT, "\"%.60s\" has the id %lld, which \"%.60s\" has too", name,
                        (long long)id, token->text);
    const tok_string text = tok_keep(l, name, (int64_t)strlen(name));
    token->text = text.ptr;
    token->bytes = (int32_t)text.bytes;
    if (dsc_names_add(&l->t->vocab.by_text, text.ptr, text.bytes, (int32_t)id) >= 0)
        return tok_fail(l, item, DSC_ERR_INPUT, "\"%.60s\" has two ids", name);
    return DSC_OK;
}

/* Turns a name's characters into the bytes that they stand for; false: one stands for none. */
static bool raw_bytes(const tok_loader *l, tok_string *name)
{
    char *to = l->t->strings.ptr + l->t->strings.bytes;
    int64_t count = 0;
    int length;
    DSC_ASSERT(l->t->strings.capacity - l->t->strings.bytes > name->bytes);
    for (int64_t i = 0; i < name->bytes; i += length) {
        const int byte = dsc_char_byte(dsc_char_at(name->ptr + i, &length));
        if (byte < 0)
            return false;
        to[count++] = (char)byte;
    }
    l->t->strings.bytes += count;
    *name = (tok_string){ to, count };
    return true;
}

/* A token with a character that stands for no byte can only be an added one. */
static void add_raw(const tok_loader *l, int64_t id)
{
    const dsc_token *token = &l->t->vocab.token[id];
    tok_string raw = { token->text, token->bytes };
    if (l->t->bpe.of_bytes && !raw_bytes(l, &raw))
        return;
    if (raw.bytes > 0)
        (void)dsc_names_add(&l->t->bpe.by_raw, raw.ptr, raw.bytes, (int32_t)id);
}

/* The vocabulary's tokens of one byte or character, and <0xXX>. */
static void find_single(const dsc_vocab *vocab, dsc_bpe *bpe)
{
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        if (bpe->of_bytes)
            bpe->byte_id[i] = dsc_names_find(&bpe->by_raw, &byte, 1);
        else
            bpe->byte_id[i] = dsc_names_find(&vocab->by_text, name, (int64_t)strlen(name));
        if (i < 128)
            bpe->ascii_id[i] = dsc_names_find(&bpe->by_raw, &byte, 1);
    }
}

/* ---- Merges ---- */

/* Both halves of one: "a b", or ["a", "b"]. */
static dsc_status merge_halves(const tok_loader *l, const cJSON *item, tok_string half[2])
{
    if (cJSON_IsString(item)) {
        const char *text = item->valuestring, *blank = strchr(text, ' ');
        if (blank == NULL || strchr(blank + 1, ' ') != NULL)
            return tok_fail(l, item, DSC_ERR_INPUT, "a merge must be two tokens with one blank between them");
        half[0] = (tok_string){ text, blank - text };
        half[1] = (tok_string){ blank + 1, (int64_t)strlen(blank + 1) };
        return DSC_OK;
    }
    const cJSON *left = cJSON_IsArray(item) ? item->child : NULL, *right = left != NULL ? left->next : NULL;
    if (!cJSON_IsString(left) || !cJSON_IsString(right) || right->next != NULL)
        return tok_fail(l, item, DSC_ERR_INPUT, "a merge must be a string or an array of two");
    half[0] = (tok_string){ left->valuestring, (int64_t)strlen(left->valuestring) };
    half[1] = (tok_string){ right->valuestring, (int64_t)strlen(right->valuestring) };
    return DSC_OK;
}

static dsc_status find_half(const tok_loader *l, const cJSON *item, tok_string name, int32_t *id)
{
    *id = dsc_names_find(&l->t->vocab.by_text, name.ptr, name.bytes);
    return *id >= 0 ? DSC_OK
                    : tok_fail(l, item, DSC_ERR_INPUT, "the merge's token \"%.*s\" is not in the vocabulary",
                               (int)dsc_min_i64(name.bytes, 60), name.ptr);
}

/* Whether merges stay within the parts that dsc_bpe_encode and dsc_tokenizer_cut make. */
static void watch_cuts(dsc_bpe *bpe, const tok_string half[2], tok_string joined)
{
    for (int h = 0; h < 2 && bpe->byte_fallback; h++)
        if (half[h].bytes == 6 && memcmp(half[h].ptr, "<0x", 3) == 0)
            bpe->cuts_before_mark = bpe->cuts_at_lines = false;
    const char *line = memchr(joined.ptr, '\n', (size_t)joined.bytes);
    if (line != NULL && line != joined.ptr + joined.bytes - 1)
        bpe->cuts_at_lines = false;
    bool inside = false; /* after a character other than a mark */
    for (int64_t i = 0; i < joined.bytes; i++) {
        const bool at_mark = joined.bytes - i >= 3 && memcmp(joined.ptr + i, mark, 3) == 0;
        if (at_mark && inside)
            bpe->cuts_before_mark = false;
        inside |= !at_mark;
        i += at_mark ? 2 : 0;
    }
}

static dsc_status load_merges(const tok_loader *l, const cJSON *merges)
{
    dsc_bpe *bpe = &l->t->bpe;
    dsc_text joined = { .alloc = bpe->alloc };
    int32_t rank = 0;
    dsc_status status;
    if (!cJSON_IsArray(merges))
        return tok_fail(l, merges, DSC_ERR_INPUT, "\"merges\" must be an array");
    DSC_TRY(dsc_keys_open(bpe->alloc, cJSON_GetArraySize(merges), &bpe->merges, l->err));
    for (const cJSON *item = merges->child; item != NULL; item = item->next) {
        tok_string half[2] = { { NULL, 0 }, { NULL, 0 } };
        int32_t id[2], to;
        if (cJSON_IsString(item) && strncmp(item->valuestring, "#version", 8) == 0)
            continue;
        DSC_TRY_OUT(merge_halves(l, item, half));
        DSC_TRY_OUT(find_half(l, item, half[0], &id[0]));
        DSC_TRY_OUT(find_half(l, item, half[1], &id[1]));
        joined.bytes = 0;
        DSC_TRY_OUT(dsc_text_add(&joined, half[0].ptr, half[0].bytes, l->err));
        DSC_TRY_OUT(dsc_text_add(&joined, half[1].ptr, half[1].bytes, l->err));
        DSC_TRY_OUT(find_half(l, item, (tok_string){ joined.ptr, joined.bytes }, &to));
        watch_cuts(bpe, half, (tok_string){ joined.ptr, joined.bytes });
        dsc_key_slot *slot = dsc_keys_put(&bpe->merges, (uint64_t)(uint32_t)id[0] << 32 | (uint32_t)id[1]);
        slot->a = rank++; /* of two the last, as in the tokenizers package */
        slot->b = to;
    }
out:
    dsc_text_free(&joined);
    return status;
}

/* ---- The model ---- */

static dsc_status refuse_affix(const tok_loader *l, const cJSON *model, const char *key)
{
    const cJSON *item = tok_get(model, key);
    return item == NULL || (cJSON_IsString(item) && item->valuestring[0] == 0)
               ? DSC_OK
               : tok_fail(l, item, DSC_ERR_UNSUPPORTED, "\"%s\" is not built in this version", key);
}

static dsc_status load_flags(const tok_loader *l, const cJSON *model)
{
    dsc_bpe *bpe = &l->t->bpe;
    const cJSON *dropout = tok_get(model, "dropout");
    DSC_TRY(tok_check_keys(l, model, "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                                     "byte_fallback ignore_merges vocab merges "));
    if (dropout != NULL && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return tok_fail(l, dropout, DSC_ERR_UNSUPPORTED, "dropout of merges is not built; set it to null");
    DSC_TRY(refuse_affix(l, model, "continuing_subword_prefix"));
    DSC_TRY(tok_get_bool(l, model, "fuse_unk", false, &bpe->fuse_unk));
    DSC_TRY(tok_get_bool(l, model, "byte_fallback", false, &bpe->byte_fallback));
    DSC_TRY(tok_get_bool(l, model, "ignore_merges", false, &bpe->ignore_merges));
    if (bpe->byte_fallback && bpe->of_bytes)
        return tok_fail(l, model, DSC_ERR_UNSUPPORTED, "byte_fallback beside ByteLevel is not built");
    return DSC_OK;
}

static dsc_status load_vocab(const tok_loader *l, const cJSON *model)
{
    const cJSON *vocab = tok_get(model, "vocab");
    int64_t largest = -1, names = 0, id;
    if (!cJSON_IsObject(vocab) || vocab->child == NULL)
        return tok_fail(l, vocab != NULL ? vocab : model, DSC_ERR_INPUT, "\"vocab\" must be an object with tokens");
    for (const cJSON *item = vocab->child; item != NULL; item = item->next, names++) {
        if (cJSON_IsObject(item)) /* tok_get_integer would read a member */
            return tok_fail(l, item, DSC_ERR_INPUT, "\"%.60s\" of the vocabulary has an object for its id",
                            item->string);
        DSC_TRY(tok_get_integer(l, item, item->string, DSC_VOCAB_MAX - 1, &id));
        largest = dsc_max_i64(largest, id);
    }
    DSC_TRY(tok_open_vocab(l, names, largest));
    for (const cJSON *item = vocab->child; item != NULL; item = item->next)
        DSC_TRY(add_token(l, item, item->string, (int64_t)item->valuedouble));
    return DSC_OK;
}

static dsc_status find_unknown(const tok_loader *l, const cJSON *unk, int32_t *out)
{
    if (!cJSON_IsString(unk))
        return tok_fail(l, unk, DSC_ERR_INPUT, "\"unk_token\" must be a string");
    *out = dsc_tokenizer_find(l->t, unk->valuestring);
    return *out >= 0 ? DSC_OK : tok_fail(l, unk, DSC_ERR_INPUT, "\"unk_token\" is not in the vocabulary");
}

/* A suffix is made of characters as the vocabulary's names are: for ByteLevel they stand for bytes. */
static dsc_status load_suffix(const tok_loader *l, const cJSON *model)
{
    dsc_bpe *bpe = &l->t->bpe;
    const cJSON *item = tok_get(model, "end_of_word_suffix");
    tok_string suffix;
    if (item == NULL || (cJSON_IsString(item) && item->valuestring[0] == 0))
        return DSC_OK;
    DSC_TRY(tok_get_string(l, model, "end_of_word_suffix", false, &suffix));
    if (suffix.bytes > DSC_BPE_SUFFIX_MAX)
        return tok_fail(l, item, DSC_ERR_UNSUPPORTED, "\"end_of_word_suffix\" has more than %d bytes",
                        DSC_BPE_SUFFIX_MAX);
    if (bpe->of_bytes && !raw_bytes(l, &suffix))
        return tok_fail(l, item, DSC_ERR_UNSUPPORTED, "\"end_of_word_suffix\" has a character that stands for no byte");
    bpe->suffix = suffix.ptr;
    bpe->suffix_bytes = (int32_t)suffix.bytes;
    bpe->cuts_before_mark = bpe->cuts_at_lines = false;
    return DSC_OK;
}

static dsc_status load_bpe(const tok_loader *l, const cJSON *model)
{
    dsc_bpe *bpe = &l->t->bpe;
    const cJSON *vocab = tok_get(model, "vocab"), *unk = tok_get(model, "unk_token");
    DSC_TRY(load_flags(l, model));
    DSC_TRY(load_vocab(l, model));
    DSC_TRY(dsc_names_open(l->t->alloc, cJSON_GetArraySize(vocab), &bpe->by_raw, l->err));
    for (const cJSON *item = vocab->child; item != NULL; item = item->next)
        add_raw(l, (int64_t)item->valuedouble);
    find_single(&l->t->vocab, bpe);
    bpe->unk = -1;
    if (unk != NULL)
        DSC_TRY(find_unknown(l, unk, &bpe->unk));
    /* A part's first symbol has to be known, so that unknown ones do not fuse over the cut. */
    bpe->cuts_before_mark = !bpe->of_bytes && !bpe->ignore_merges &&
                            dsc_names_find(&bpe->by_raw, mark, (int64_t)strlen(mark)) >= 0;
    bpe->cuts_at_lines = !bpe->of_bytes && !bpe->ignore_merges &&
                         (bpe->ascii_id['\n'] >= 0 || (bpe->byte_fallback && bpe->byte_id['\n'] >= 0));
    DSC_TRY(load_suffix(l, model));
    return load_merges(l, tok_get(model, "merges"));
}

static dsc_status load_wordpiece(const tok_loader *l, const cJSON *model)
{
    dsc_wordpiece *wordpiece = &l->t->wordpiece;
    const cJSON *vocab = tok_get(model, "vocab");
    tok_string prefix = { NULL, 0 };
    int64_t bytes = 0, longest = 0;
    DSC_TRY(tok_check_keys(l, model, "type unk_token continuing_subword_prefix max_input_chars_per_word vocab "));
    if (l->t->bpe.of_bytes)
        return tok_fail(l, model, DSC_ERR_UNSUPPORTED, "WordPiece behind ByteLevel is not built");
    DSC_TRY(load_vocab(l, model));
    DSC_TRY(find_unknown(l, tok_get(model, "unk_token"), &wordpiece->unk));
    DSC_TRY(tok_get_string(l, model, "continuing_subword_prefix", true, &prefix));
    DSC_TRY(tok_get_integer(l, model, "max_input_chars_per_word", INT32_MAX, &wordpiece->chars_max));
    for (const cJSON *item = vocab->child; item != NULL; item = item->next) {
        bytes += (int64_t)strlen(item->string);
        longest = dsc_max_i64(longest, (int64_t)strlen(item->string));
    }
    if (dsc_min_i64(longest, 4 * wordpiece->chars_max) > DSC_WORDPIECE_BYTES_MAX)
        return tok_fail(l, tok_get(model, "max_input_chars_per_word"), DSC_ERR_UNSUPPORTED,
                        "words of %lld characters and a token of %lld bytes; one of them must be within %d bytes",
                        (long long)wordpiece->chars_max, (long long)longest, DSC_WORDPIECE_BYTES_MAX);
    DSC_TRY(dsc_tree_open(l->t->alloc, bytes, &wordpiece->pieces, l->err));
    for (const cJSON *item = vocab->child; item != NULL; item = item->next)
        dsc_tree_add(&wordpiece->pieces, item->string, (int64_t)strlen(item->string), (int32_t)item->valuedouble);
    wordpiece->inside = dsc_tree_walk(&wordpiece->pieces, prefix.ptr, prefix.bytes);
    return DSC_OK;
}

dsc_status tok_load_model(const tok_loader *l, const cJSON *model)
{
    const cJSON *type = tok_get(model, "type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "nameless";
    if (type == NULL) /* as old files have it */
        name = tok_get(model, "max_input_chars_per_word") != NULL ? "WordPiece"
               : cJSON_IsArray(tok_get(model, "vocab"))            ? "Unigram"
                                                                   : "BPE";
    l->t->model = strcmp(name, "WordPiece") == 0 ? TOK_WORDPIECE : strcmp(name, "Unigram") == 0 ? TOK_UNIGRAM : TOK_BPE;
    if (l->t->model == TOK_WORDPIECE)
        return load_wordpiece(l, model);
    if (l->t->model == TOK_UNIGRAM)
        return tok_load_unigram(l, model);
    if (strcmp(name, "BPE") != 0)
        return tok_fail(l, type, DSC_ERR_UNSUPPORTED,
                        "a %.60s model is not built in this version; BPE, WordPiece and Unigram are", name);
    return load_bpe(l, model);
}

/* ---- Added tokens ---- */

/* *next: the id that the tokenizers package assigns to the next token outside the vocabulary. Later tokens get
 * consecutive ids; another "id" in the file is refused. */
static dsc_status load_one(const tok_loader *l, const cJSON *item, int64_t *next, tok_added *out)
{
    int64_t id = 0;
    DSC_TRY(tok_check_keys(l, item, "id content single_word lstrip rstrip normalized special "));
    DSC_TRY(tok_get_integer(l, item, "id", DSC_VOCAB_MAX - 1, &id));
    DSC_TRY(tok_get_string(l, item, "content", false, &out->text));
    DSC_TRY(tok_get_bool(l, item, "single_word", false, &out->single_word));
    DSC_TRY(tok_get_bool(l, item, "lstrip", false, &out->strip_left));
    DSC_TRY(tok_get_bool(l, item, "rstrip", false, &out->strip_right));
    DSC_TRY(tok_get_bool(l, item, "special", false, &out->special));
    DSC_TRY(tok_get_bool(l, item, "normalized", !out->special, &out->normalized));
    out->id = (int32_t)id;
    const int32_t known = dsc_tokenizer_find(l->t, out->text.ptr);
    if (known >= 0 && known != id)
        return tok_fail(l, item, DSC_ERR_INPUT, "the added token \"%.60s\" has the id %lld here and %d before",
                        out->text.ptr, (long long)id, (int)known);
    if (known < 0 && id != *next)
        return tok_fail(l, item, DSC_ERR_INPUT,
                        "the added token \"%.60s\" has the id %lld here; the tokenizers package, which numbers added "
                        "tokens in a row, gives it %lld", out->text.ptr, (long long)id, (long long)*next);
    if (known < 0)
        DSC_TRY(add_token(l, item, out->text.ptr, id));
    *next = dsc_max_i64(*next, id + 1);
    l->t->vocab.token[id].special |= out->special;
    l->t->vocab.token[id].normalized |= out->normalized;
    return DSC_OK;
}

dsc_status tok_load_added(const tok_loader *l, const cJSON *added)
{
    if (added == NULL)
        return DSC_OK;
    const int64_t count = cJSON_GetArraySize(added);
    int64_t next = cJSON_GetArraySize(tok_get(tok_get(dsc_json_root(l->json), "model"), "vocab"));
    DSC_TRY(dsc_alloc_zeroed(l->t->alloc, DSC_TAG_DATA, count, sizeof *l->t->added, &l->t->added, l->err));
    for (const cJSON *item = added->child; item != NULL; item = item->next) {
        DSC_TRY(load_one(l, item, &next, &l->t->added[l->t->added_count]));
        l->t->added_count++;
    }
    return DSC_OK;
}
