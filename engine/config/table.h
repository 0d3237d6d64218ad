/* table.h - the key table as data, and the steps of parsing that share it.
 *
 * Internal to engine/config_*.c; tools/dsc reads the table for `explain`. Order of the steps (config.c):
 * walk -> overrides -> states -> fill. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CONFIG_TABLE_H
#define DSC_ENGINE_CONFIG_TABLE_H

#include <cjson/cJSON.h>

#include "base/formats/json.h"
#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_key_type {
    DSC_KEY_SECTION,
    DSC_KEY_INT,
    DSC_KEY_FLOAT,
    DSC_KEY_BOOL,
    DSC_KEY_TEXT,
    DSC_KEY_CHOICE,
    DSC_KEY_RATE,
    DSC_KEY_NUMBERS,
    DSC_KEY_TEXTS,
    DSC_KEY_LIST,
    DSC_KEY_ANY
} dsc_key_type;

typedef enum dsc_key_state {
    DSC_KEY_HONOURED,
    DSC_KEY_PART,
    DSC_KEY_RENAMED,
    DSC_KEY_MAPPED,
    DSC_KEY_IGNORED,
    DSC_KEY_REFUSED,
    DSC_KEY_WRONG
} dsc_key_state;

/* The columns are described in config_keys.def. */
typedef struct dsc_config_key {
    const char *path, *default_json, *range, *what, *here;
    dsc_key_type type;
    dsc_key_state state;
    char tier;
    int32_t offset; /* in dsc_config, -1: no field of the same form */
    int32_t bytes;  /* of a text field */
} dsc_config_key;

/* DSC_ID_X for K rows; R rows take a number without a name. */
#define DSC_KEY_CAT_(a, b) a##b
#define DSC_KEY_CAT(a, b) DSC_KEY_CAT_(a, b)
typedef enum dsc_key_id {
#define K(id, ...) DSC_ID_##id,
#define R(...) DSC_KEY_CAT(DSC_ID_ROW_, __LINE__),
#include "engine/config/config_keys.def"
#undef K
#undef R
    DSC_KEY_COUNT
} dsc_key_id;

extern const dsc_config_key dsc_config_keys[DSC_KEY_COUNT];

const char *dsc_key_type_text(dsc_key_type type);    /* "integer" */
const char *dsc_key_state_text(dsc_key_state state); /* "honoured" */
/* Row of "a.b.c", -1: none. */
int dsc_config_key_find(const char *path);
/* Row of `name` inside the section `parent` ("" is the top level), -1: none. */
int dsc_config_key_find_in(const char *parent, const char *name);
/* Last segment of a row's path. */
const char *dsc_config_key_leaf(int id);
bool dsc_config_key_is_in(int id, const char *parent); /* a direct member of that section */

/* ---- words (suggest.c) ---- */
/* Changes (insertions, deletions, replacements, swaps of neighbours) between two words, at most limit + 1. */
int dsc_string_distance(const char *a, const char *b, int limit);
/* Same but for case or letters that look alike, or one change apart. */
bool dsc_string_is_near_miss(const char *a, const char *b);
/* [A-Za-z_][A-Za-z0-9_-]*, at most 128. Real files hold keys with hyphens, of the scripts around DeepSpeed. */
bool dsc_string_is_identifier(const char *name);

/* ---- values (value.c) ---- */
/* Numbers and booleans as DeepSpeed's schema takes them: also from strings. *from_text says so. */
bool dsc_value_bool(const cJSON *item, bool *out, bool *from_text);
bool dsc_value_int(const cJSON *item, int64_t *out, bool *from_text);
bool dsc_value_float(const cJSON *item, double *out, bool *from_text);
bool dsc_value_is_auto(const cJSON *item);
/* The value in at most 60 bytes of JSON-like text for messages. Returns out. */
const char *dsc_value_text(const cJSON *item, char *out, size_t out_bytes);
/* Type and range of a row. On failure `expected` says what would be right. */
bool dsc_value_fits(const dsc_config_key *key, const cJSON *item, bool *from_text, char *expected,
                    size_t expected_bytes);
/* Index of a choice in key->range, -1: none. */
int dsc_value_choice(const dsc_config_key *key, const char *text);
/* The value equals the row's default. */
bool dsc_value_is_default(const dsc_config_key *key, const cJSON *item);
/* Writes a value that fits into the row's field; the default when item is NULL. */
void dsc_value_store(const dsc_config_key *key, const cJSON *item, dsc_config *config);

/* ---- one parse ---- */
typedef struct dsc_config_parse_state {
    dsc_alloc *alloc;
    dsc_config *config;
    dsc_error *err;
    dsc_json *json;                        /* the file */
    dsc_json **override_json;              /* one per override */
    const cJSON *given[DSC_KEY_COUNT];     /* NULL: not given or null */
    const dsc_json *source[DSC_KEY_COUNT]; /* where given[] is from */
    const char *flag[DSC_KEY_COUNT];       /* the flag that gave it, or NULL */
    const char *alias[DSC_KEY_COUNT];      /* the old name that gave it, or NULL */
    bool is_auto[DSC_KEY_COUNT];           /* given as "auto" where that is no value */
    bool is_null[DSC_KEY_COUNT];
    double lr_of_file;                     /* before an override by a flag */
    bool foreign_optimizer, foreign_schedule; /* of a type that is not built: nothing here knows its params */
    int suggestion_count;                  /* looking for one is bounded */
} dsc_config_parse_state;

/* Given with a value, not null and not "auto". */
static inline bool dsc_config_has(const dsc_config_parse_state *s, int id)
{
    return s->given[id] != NULL && !s->is_auto[id];
}

/* ---- places and lines (messages.c) ---- */
/* "file:line:col" or the flag of a row's value; out holds at least 256 bytes. Returns out. */
const char *dsc_config_where(const dsc_config_parse_state *s, int id, char *out);
const char *dsc_config_where_item(const dsc_config_parse_state *s, const cJSON *item, char *out);
dsc_source_pos dsc_config_source_pos(const dsc_config_parse_state *s, int id);
/* Fails at a row's value with "path: text". */
dsc_status dsc_config_fail(const dsc_config_parse_state *s, int id, dsc_status status, const char *fmt, ...)
    DSC_PRINTF(4, 5);
/* A warning "path (line N): text" about a row's value; an error when the parse is strict. */
dsc_status dsc_config_warn(dsc_config_parse_state *s, int id, const char *fmt, ...) DSC_PRINTF(3, 4);
/* The same without a row: `where` and `path` are the caller's. */
dsc_status dsc_config_warn_at(dsc_config *config, const char *where, int32_t line, const char *path, dsc_error *err,
                              const char *fmt, ...) DSC_PRINTF(6, 7);
/* What would change the run and is not built: a warning for who reads the config, an error for who runs it. */
dsc_status dsc_config_not_built(dsc_config_parse_state *s, int id, const char *fmt, ...) DSC_PRINTF(3, 4);
dsc_status dsc_config_not_built_at(dsc_config_parse_state *s, const char *where, const char *path, const char *fmt, ...)
    DSC_PRINTF(4, 5);
void dsc_config_note(dsc_config *config, const char *fmt, ...) DSC_PRINTF(2, 3);

/* ---- steps of a parse, in this order ---- */
dsc_status dsc_config_walk(dsc_config_parse_state *s);
dsc_status dsc_config_fill_modes(dsc_config_parse_state *s); /* stage and precision: states depend on them */
dsc_status dsc_config_states(dsc_config_parse_state *s);
dsc_status dsc_config_fill_fields(dsc_config_parse_state *s); /* all other fields, these among them: */
dsc_status dsc_config_fill_training(dsc_config_parse_state *s); /* optimizer and scheduler */
dsc_status dsc_config_fill_adafactor(dsc_config_parse_state *s);
dsc_status dsc_config_fill_offload(dsc_config_parse_state *s);
dsc_status dsc_config_check_onebit(dsc_config_parse_state *s); /* after the others */
dsc_status dsc_config_fill_elastic(dsc_config_parse_state *s);
dsc_status dsc_config_fill_groups(dsc_config_parse_state *s); /* after the optimizer */
dsc_status dsc_config_fill_curriculum(dsc_config_parse_state *s);
int64_t dsc_config_int_or(const dsc_config_parse_state *s, int id, int64_t otherwise);
bool dsc_config_bool_or(const dsc_config_parse_state *s, int id, bool otherwise);
/* Texts of a string or a list, as many as fit; returns how many there are. */
int dsc_config_copy_texts(const cJSON *item, char out[][DSC_CONFIG_TEXT], int most);

/* ---- resolving ---- */
/* The place of a value in the file, or the file, with the key that is there. */
const char *dsc_config_source_text(const dsc_config *config, dsc_source_pos place, char out[256]);
/* The batch sizes that the "elasticity" section chooses; it is enabled. World size 0: not known. */
dsc_status dsc_config_resolve_elastic(dsc_config *config, int64_t world_size, dsc_error *err);
dsc_status dsc_config_resolve_offload(dsc_config *config, const dsc_config_facts *facts, dsc_error *err);
/* Whether a schedule's constructor takes a key of scheduler.params. */
bool dsc_schedule_has_param(dsc_schedule_kind kind, int id);
dsc_status dsc_config_check_optimizer(dsc_config_parse_state *s, const cJSON *type); /* type may be NULL */
dsc_status dsc_config_fill_optimizer(dsc_config_parse_state *s);
/* Whether an optimizer takes a key of optimizer.params. */
bool dsc_optimizer_has_param(dsc_optimizer_kind kind, int id);
/* The word of the list that `word` was probably meant to be, else `otherwise`. */
const char *dsc_config_nearest_string(const char *word, const char *const *words, size_t count, const char *otherwise);
dsc_status dsc_config_check_types(dsc_config_parse_state *s);   /* optimizer.type and scheduler.type are built */

#ifdef __cplusplus
}
#endif
#endif
