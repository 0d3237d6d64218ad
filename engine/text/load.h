/* load.h - how the parts of a tokenizer.json are read. Only engine/text/load*.c include it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_LOAD_H
#define DSC_ENGINE_TEXT_LOAD_H

#include "base/formats/json.h"
#include "engine/text/tokenizer_internal.h"

typedef struct tok_loader {
    dsc_tokenizer *t;
    const dsc_json *json;
    dsc_error *err;
} tok_loader;

/* Fails at the place of `item`. */
dsc_status tok_fail(const tok_loader *l, const cJSON *item, dsc_status status, const char *fmt, ...) DSC_PRINTF(4, 5);
/* Checks that each key of the object is a word of `keys` (each word ends with a blank); refuses other keys. */
dsc_status tok_check_keys(const tok_loader *l, const cJSON *object, const char *keys);
/* A key's value; NULL when it is absent or null. */
const cJSON *tok_get(const cJSON *object, const char *key);
dsc_status tok_get_bool(const tok_loader *l, const cJSON *object, const char *key, bool fallback, bool *out);
dsc_status tok_get_integer(const tok_loader *l, const cJSON *object, const char *key, int64_t most, int64_t *out);
/* Copied into the tokenizer's strings. It may not be empty, unless may_be_empty. */
dsc_status tok_get_string(const tok_loader *l, const cJSON *object, const char *key, bool may_be_empty,
                          tok_string *out);
tok_string tok_keep(const tok_loader *l, const char *text, int64_t bytes);
/* Calls read for a component, or for each of a Sequence's, in order; null: none. `list` is the Sequence's key. */
typedef dsc_status (*tok_read)(const tok_loader *l, const cJSON *component, const char *type);
dsc_status tok_each(const tok_loader *l, const cJSON *component, const char *list, int depth, tok_read read);

dsc_status tok_load_model(const tok_loader *l, const cJSON *model);
dsc_status tok_load_unigram(const tok_loader *l, const cJSON *model);
/* Opens the tables of tokens for a model's vocabulary and the file's added tokens. */
dsc_status tok_open_vocab(const tok_loader *l, int64_t names, int64_t largest);
dsc_status tok_load_added(const tok_loader *l, const cJSON *added);
/* A component's reader for tok_each. */
dsc_status tok_read_normalizer(const tok_loader *l, const cJSON *component, const char *type);
dsc_status tok_read_splitter(const tok_loader *l, const cJSON *component, const char *type);
dsc_status tok_read_processor(const tok_loader *l, const cJSON *component, const char *type);
/* pair.c: the forms of texts that a post-processor has; one that is not understood is left out. */
void tok_read_template_form(dsc_tokenizer *t, const cJSON *component, bool pair);
void tok_set_bert_form(dsc_tokenizer *t, int32_t cls, int32_t sep, bool roberta);
dsc_status tok_read_decoder(const tok_loader *l, const cJSON *component, const char *type);

#endif
