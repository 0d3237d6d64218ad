/* hf_config.h - reads the keys of a config.json as Hugging Face writes it. Inside models/ only.
 *
 * A key that is absent has Hugging Face's default; so has null where its classes say that a value may be None, and is
 * refused elsewhere, as they refuse it. A key that would change the mathematics in a way that is not built is refused
 * by name. Every refusal says file, line and column. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_HF_CONFIG_H
#define DSC_MODELS_HF_CONFIG_H

#include "base/formats/json.h"

#define DSC_HF_ASKED_MAX 256

typedef struct dsc_hf_config {
    const dsc_json *json;
    const cJSON *object; /* the object that is read: the root, or one inside it */
    const void *traits;  /* the family's */
    dsc_error *err;
    char where[256];     /* position of the last key that was read */
    char *warnings;      /* warnings for the user, separated by "; " */
    size_t warnings_bytes;
    bool text_part; /* the text model of a multimodal one, whose positions may be called "mrope" */
    const struct dsc_weights *weights;   /* the folder's, for a family that asks for them; NULL: none */
    int64_t picture[2];                  /* height and width that the run asks for; 0: those of the keys */
    const char *asked[DSC_HF_ASKED_MAX]; /* the keys that were read so far, with repetitions */
    int32_t asked_count;
} dsc_hf_config;

/* NULL for a key that is absent or null; `where` is the key's place, or the object's. */
const cJSON *dsc_hf_field(dsc_hf_config *reader, const char *key);
/* A whole number from 1 to max. */
DSC_MUST_USE dsc_status dsc_hf_int(dsc_hf_config *reader, const char *key, int64_t max, int64_t fallback, int64_t *out);
DSC_MUST_USE dsc_status dsc_hf_int_or_null(dsc_hf_config *reader, const char *key, int64_t max, int64_t fallback,
                                           int64_t *out);
/* The same from `min`, which is 0 or -1; null is as no key. */
DSC_MUST_USE dsc_status dsc_hf_int_from(dsc_hf_config *reader, const char *key, int64_t min, int64_t max,
                                        int64_t fallback, int64_t *out);
/* A number from min to max; fallback may be outside. */
typedef struct dsc_hf_range { double min, max; } dsc_hf_range;
DSC_MUST_USE dsc_status dsc_hf_number(dsc_hf_config *reader, const char *key, dsc_hf_range range, double fallback,
                                      double *out);
DSC_MUST_USE dsc_status dsc_hf_number_or_null(dsc_hf_config *reader, const char *key, dsc_hf_range range,
                                              double fallback, double *out);
DSC_MUST_USE dsc_status dsc_hf_bool(dsc_hf_config *reader, const char *key, bool fallback, bool *out);
/* A switch or a word that has this value, also without the key; another one is refused. */
DSC_MUST_USE dsc_status dsc_hf_only(dsc_hf_config *reader, const char *key, bool value);
DSC_MUST_USE dsc_status dsc_hf_only_word(dsc_hf_config *reader, const char *key, const char *word);
/* One of names[count], *index its place; absent: 0. Another one is refused with the list. */
DSC_MUST_USE dsc_status dsc_hf_choice(dsc_hf_config *reader, const char *key, const char *const *names, int32_t count,
                                      int32_t *index);
/* Keys without effect, which are known and not read; keys: up to a NULL. */
void dsc_hf_skip(dsc_hf_config *reader, const char *const *keys);
/* Whether a key was read, at any depth. */
bool dsc_hf_was_asked(const dsc_hf_config *reader, const char *key);
void dsc_hf_warn(char *warnings, size_t bytes, const char *fmt, ...) DSC_PRINTF(3, 4);

#define DSC_HF_REFUSE(reader, status, ...) DSC_FAIL((reader)->err, (status), (reader)->where, __VA_ARGS__)

/* hf_keys.c: refuses keys that change the mathematics of other families, unless this family has read them. */
DSC_MUST_USE dsc_status dsc_hf_refuse_other_mathematics(dsc_hf_config *reader, const char *model_type);
/* Warns of keys of the object that nobody read, and that are not known to be without effect on training. */
void dsc_hf_warn_unread(dsc_hf_config *reader, const char *model_type);

/* A host program's locale may print a comma; JSON wants a point. */
const char *dsc_hf_number_text(double value, char *out, size_t bytes);

#endif
