/* load.c - opens a tokenizer.json: the parts in the order in which they need each other.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/load.h"

#include <string.h>

#include "base/io.h"

/* The largest published files are 35 MB with 1.8 million values. */
#define FILE_BYTES_MAX (INT64_C(64) << 20)
#define VALUES_MAX 4000000

dsc_status tok_each(const tok_loader *l, const cJSON *component, const char *list, int depth, tok_read read)
{
    if (component == NULL)
        return DSC_OK;
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(component, "type");
    if (!cJSON_IsString(type))
        return tok_fail(l, component, DSC_ERR_INPUT, "a component must be null or an object with a \"type\"");
    if (strcmp(type->valuestring, "Sequence") != 0)
        return read(l, component, type->valuestring);
    const cJSON *parts = cJSON_GetObjectItemCaseSensitive(component, list);
    if (!cJSON_IsArray(parts) || depth > 4)
        return tok_fail(l, component, DSC_ERR_INPUT, "a Sequence needs \"%s\", and no more than four in each other",
                        list);
    for (const cJSON *part = parts->child; part != NULL; part = part->next)
        DSC_TRY(tok_each(l, part, list, depth + 1, read));
    return DSC_OK;
}

static dsc_status refuse_length(const tok_loader *l, const cJSON *root, const char *key)
{
    const cJSON *item = tok_get(root, key);
    return item == NULL ? DSC_OK
                        : tok_fail(l, item, DSC_ERR_UNSUPPORTED, "\"%s\" is not built: texts are encoded whole; set it "
                                   "to null", key);
}

/* Cut rule of a text (dsc_tokenizer_cut): every stage that reads more than a piece of a line must permit the cut. */
static bool may_cut(const dsc_tokenizer *t)
{
    bool cut = false; /* a splitter has cut at line ends: what follows sees the same pieces */
    for (int32_t i = 0; i < t->added_count; i++)
        if (t->added[i].single_word || t->added[i].strip_left || strchr(t->added[i].text.ptr, '\n') != NULL)
            return false;
    bool blanks = false; /* there are no line ends left: they are blanks */
    for (int32_t i = 0; i < t->normalizer_count; i++) {
        const tok_normalizer *n = &t->normalizer[i];
        if ((n->kind == TOK_REPLACE && (n->regex != NULL || blanks || strcmp(n->from.ptr, " ") != 0)) ||
            n->kind == TOK_STRIP || n->kind == TOK_CHARSMAP)
            return false;
        blanks |= n->kind == TOK_CHARS && n->lines_become_blanks;
    }
    for (int32_t i = 1; i < t->splitter_count; i++) /* puts something before each piece that it gets */
        if (t->splitter[i].kind != TOK_SPLIT && t->splitter[i].prepend != TOK_PREPEND_NEVER)
            return false;
    for (int32_t i = 0; i < t->splitter_count && !cut; i++) {
        const tok_splitter *s = &t->splitter[i];
        const bool drops = s->is_match != NULL && s->behavior == TOK_REMOVED && s->is_match('\n') && s->is_match(' ');
        const bool cuts = drops || (s->regex != NULL && s->behavior == TOK_ISOLATED && !blanks &&
                                    dsc_regex_cuts_at_lines(s->regex));
        const bool ignores = s->is_match != NULL ? !s->is_match('\n') && !s->is_match(' ')
                                                 : s->kind == TOK_SPLIT && s->regex != NULL && !blanks &&
                                                       dsc_regex_ignores_lines(s->regex);
        cut = cuts;
        if (!cuts && s->kind == TOK_BYTE_LEVEL && t->of_byte_chars) /* later steps see no line ends */
            return false;
        if (!cuts && !ignores && (s->kind == TOK_SPLIT || (s->kind == TOK_METASPACE && i > 0)))
            return false;
    }
    return cut || (t->model == TOK_BPE && !blanks && t->bpe.cuts_at_lines);
}

static dsc_status load_parts(const tok_loader *l, const cJSON *root)
{
    dsc_tokenizer *t = l->t;
    if (!cJSON_IsObject(root) || !cJSON_IsObject(tok_get(root, "model")))
        return tok_fail(l, root, DSC_ERR_INPUT, "not a tokenizer.json: it has no \"model\"");
    DSC_TRY(tok_check_keys(l, root, "version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                                    "decoder model "));
    const cJSON *version = tok_get(root, "version");
    if (version != NULL && (!cJSON_IsString(version) || strcmp(version->valuestring, "1.0") != 0))
        return tok_fail(l, version, DSC_ERR_UNSUPPORTED, "a \"version\" of the format that is not built; \"1.0\" is");
    DSC_TRY(refuse_length(l, root, "truncation"));
    DSC_TRY(refuse_length(l, root, "padding"));
    DSC_TRY(tok_each(l, tok_get(root, "normalizer"), "normalizers", 0, tok_read_normalizer));
    DSC_TRY(tok_each(l, tok_get(root, "pre_tokenizer"), "pretokenizers", 0, tok_read_splitter));
    for (int32_t i = 0; i < t->splitter_count; i++) {
        t->bpe.of_bytes |= t->splitter[i].kind == TOK_BYTE_LEVEL;
        if (i > 0 && t->splitter[i - 1].kind == TOK_BYTE_LEVEL)
            t->of_byte_chars = true;
        if (t->of_byte_chars && t->splitter[i].kind != TOK_SPLIT)
            return tok_fail(l, tok_get(root, "pre_tokenizer"), DSC_ERR_UNSUPPORTED,
                            "ByteLevel followed by a pre-tokenizer that changes words is not built in this version");
    }
    DSC_TRY(tok_load_model(l, tok_get(root, "model")));
    DSC_TRY(tok_load_added(l, tok_get(root, "added_tokens")));
    DSC_TRY(tok_each(l, tok_get(root, "post_processor"), "processors", 0, tok_read_processor));
    t->has_decoder = tok_get(root, "decoder") != NULL;
    DSC_TRY(tok_each(l, tok_get(root, "decoder"), "decoders", 0, tok_read_decoder));
    DSC_TRY(tok_added_open(t, false, &t->as_written, l->err));
    DSC_TRY(tok_added_open(t, true, &t->normalized, l->err));
    t->may_cut = may_cut(t);
    return DSC_OK;
}

dsc_status tok_load(dsc_tokenizer *t, const char *name, const char *text, int64_t bytes, dsc_error *err)
{
    const dsc_json_limits limits = { FILE_BYTES_MAX, 32, VALUES_MAX };
    dsc_json *json = NULL;
    t->bpe.alloc = t->strings.alloc = t->alloc;
    /* Each string of the file once with its NUL, tokens also as raw bytes: no more than twice the file. */
    DSC_TRY(dsc_text_reserve(&t->strings, 2 * bytes + 4096, err));
    DSC_TRY(dsc_json_open(t->alloc, name, text, bytes, DSC_JSON_DATA, &limits, &json, err));
    const tok_loader l = { t, json, err };
    const dsc_status status = load_parts(&l, dsc_json_root(json));
    dsc_json_close(&json);
    return status;
}

static dsc_status open_file(dsc_tokenizer *t, const char *path, dsc_error *err)
{
    char file[1024];
    char *text = NULL;
    int64_t bytes = 0;
    if (dsc_io_kind(path) == DSC_PATH_DIR) {
        DSC_TRY(dsc_path_join(file, sizeof file, path, "tokenizer.json", err));
        if (dsc_io_kind(file) == DSC_PATH_MISSING)
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "this folder has no tokenizer.json; transformers writes one: "
                            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
        path = file;
    }
    DSC_TRY(dsc_io_read_all(NULL, t->alloc, path, FILE_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = tok_load(t, path, text, bytes, err);
    dsc_alloc_free(t->alloc, text);
    return status;
}

dsc_status dsc_tokenizer_open(dsc_tokenizer **out, const char *path, dsc_error *err)
{
    dsc_alloc *alloc = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_open(&alloc, err));
    dsc_tokenizer *t = NULL;
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, sizeof *t, &t, err);
    if (status != DSC_OK) {
        dsc_alloc_close(&alloc);
        return status;
    }
    t->alloc = alloc;
    status = open_file(t, path, err);
    if (status != DSC_OK)
        dsc_tokenizer_close(&t);
    *out = t;
    return status;
}

void dsc_tokenizer_close(dsc_tokenizer **tokenizer)
{
    dsc_tokenizer *t = *tokenizer;
    if (t == NULL)
        return;
    dsc_alloc *alloc = t->alloc;
    for (int32_t i = 0; i < t->splitter_count; i++)
        dsc_regex_close(&t->splitter[i].regex);
    for (int32_t i = 0; i < t->normalizer_count; i++)
        dsc_regex_close(&t->normalizer[i].regex);
    for (int32_t i = 0; i < t->normalizer_count; i++)
        dsc_charsmap_close(&t->normalizer[i].charsmap);
    dsc_tree_free(alloc, &t->as_written);
    dsc_tree_free(alloc, &t->normalized);
    dsc_tree_free(alloc, &t->wordpiece.pieces);
    dsc_tree_free(alloc, &t->unigram.pieces);
    dsc_alloc_free(alloc, t->unigram.score);
    dsc_alloc_free(alloc, t->added);
    dsc_alloc_free(alloc, t->vocab.token);
    dsc_alloc_free(alloc, t->vocab.by_text.slot);
    dsc_alloc_free(alloc, t->bpe.by_raw.slot);
    dsc_alloc_free(alloc, t->bpe.merges.slot);
    dsc_text_free(&t->strings);
    dsc_alloc_free(alloc, t);
    dsc_alloc_close(&alloc);
    *tokenizer = NULL;
}
