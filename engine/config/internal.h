/* internal.h - the state of one parse, and the steps that share it. Only engine/config/ includes it.
 *
 * Order of the steps (config.c): walk -> overrides -> modes -> conflicts -> states -> fields.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CONFIG_INTERNAL_H
#define DSC_ENGINE_CONFIG_INTERNAL_H

#include "base/formats/json.h"
#include "engine/config/suggest.h"
#include "engine/config/table.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    const dsc_json *source[DSC_KEY_COUNT]; /* JSON value behind given[] */
    const char *flag[DSC_KEY_COUNT];       /* the flag that gave it, or NULL */
    const char *alias[DSC_KEY_COUNT];      /* the old name that gave it, or NULL */
    bool is_auto[DSC_KEY_COUNT];           /* "auto" in the config where the key has no such value */
    bool is_null[DSC_KEY_COUNT];
    double lr_of_file;                        /* before an override by a flag */
    bool foreign_optimizer, foreign_schedule; /* a type that is not built; its params are unknown here */
    int suggestion_count;                     /* looking for one is bounded */
} dsc_config_parse_state;

/* Given with a value, not null and not "auto". */
static inline bool dsc_config_has(const dsc_config_parse_state *s, int id)
{
    return s->given[id] != NULL && !s->is_auto[id];
}

/* ---- values of a parse (value.c) ---- */
int64_t dsc_config_int_or(const dsc_config_parse_state *s, int id, int64_t otherwise);
bool dsc_config_bool_or(const dsc_config_parse_state *s, int id, bool otherwise);
/* Index of a choice in the row's range. */
int dsc_config_choice_or(const dsc_config_parse_state *s, int id, int otherwise);
/* Texts of a string or a list, as many as fit; returns how many there are. */
int dsc_config_copy_texts(const cJSON *item, char out[][DSC_CONFIG_TEXT], int most);

/* ---- places and lines (messages.c) ---- */
/* "file:line:col" or the flag of a row's value; out holds at least 256 bytes. Returns out. */
const char *dsc_config_where(const dsc_config_parse_state *s, int id, char *out);
const char *dsc_config_where_item(const dsc_config_parse_state *s, const cJSON *item, char *out);
dsc_source_pos dsc_config_source_pos(const dsc_config_parse_state *s, int id);
/* "file:line:col" of a place, or the file without one. Returns out. */
const char *dsc_config_source_text(const dsc_config *config, dsc_source_pos place, char out[256]);
/* Fails at a row's value with "path: text". */
dsc_status dsc_config_fail(const dsc_config_parse_state *s, int id, dsc_status status, const char *fmt, ...)
    DSC_PRINTF(4, 5);
/* The same about a section of a config that was read before, which does not fit the run. */
dsc_status dsc_config_refuse(const dsc_config *config, dsc_source_pos place, const char *path, dsc_error *err,
                             const char *fmt, ...) DSC_PRINTF(5, 6);
/* A warning "path (line N): text" about a row's value; an error when the parse is strict. */
dsc_status dsc_config_warn(dsc_config_parse_state *s, int id, const char *fmt, ...) DSC_PRINTF(3, 4);
/* The same without a row: `where` and `path` are the caller's. */
dsc_status dsc_config_warn_at(dsc_config *config, const char *where, int32_t line, const char *path, dsc_error *err,
                              const char *fmt, ...) DSC_PRINTF(6, 7);
/* Settings that would change the run and are not built: a warning when the config is read, an error when it is run. */
dsc_status dsc_config_not_built(dsc_config_parse_state *s, int id, const char *fmt, ...) DSC_PRINTF(3, 4);
dsc_status dsc_config_not_built_at(dsc_config_parse_state *s, const char *where, const char *path, const char *fmt, ...)
    DSC_PRINTF(4, 5);
void dsc_config_note(dsc_config *config, const char *fmt, ...) DSC_PRINTF(2, 3);
/* A note that is printed as a warning: a key is absent, and generations of DeepSpeed have other values for it. The
 * config is right, so --strict accepts it. */
void dsc_config_note_default(dsc_config *config, const char *fmt, ...) DSC_PRINTF(2, 3);

/* ---- steps of a parse, in this order ---- */
dsc_status dsc_config_walk(dsc_config_parse_state *s);
dsc_status dsc_config_fill_modes(dsc_config_parse_state *s);      /* stage and precision: states depend on them */
dsc_status dsc_config_check_conflicts(dsc_config_parse_state *s); /* pairs of keys that exclude each other */
dsc_status dsc_config_states(dsc_config_parse_state *s);
dsc_status dsc_config_fill_fields(dsc_config_parse_state *s);   /* all other fields, these among them: */
dsc_status dsc_config_fill_training(dsc_config_parse_state *s); /* optimizer and scheduler */
dsc_status dsc_config_fill_adafactor(dsc_config_parse_state *s);
dsc_status dsc_config_check_local_sgd(dsc_config_parse_state *s);
dsc_status dsc_config_fill_hook(dsc_config_parse_state *s);
dsc_status dsc_config_fill_spikes(dsc_config_parse_state *s);
dsc_status dsc_config_fill_lora(dsc_config_parse_state *s);
dsc_status dsc_config_fill_images(dsc_config_parse_state *s);
dsc_status dsc_config_fill_offload(dsc_config_parse_state *s);
dsc_status dsc_config_warn_onebit(dsc_config_parse_state *s); /* after the optimizer */
dsc_status dsc_config_fill_elastic(dsc_config_parse_state *s);
dsc_status dsc_config_fill_quota(dsc_config_parse_state *s);
dsc_status dsc_config_fill_groups(dsc_config_parse_state *s); /* after the optimizer */
dsc_status dsc_config_fill_curriculum(dsc_config_parse_state *s);
dsc_status dsc_config_fill_grid(dsc_config_parse_state *s); /* after all others, which it may exclude */

/* ---- resolving ---- */
/* The batch sizes that the "elasticity" section chooses; it is enabled. World size 0: not known. */
dsc_status dsc_config_resolve_elastic(dsc_config *config, int64_t world_size, dsc_error *err);
/* The batch sizes with quotas: the batch and the micro-batch are given. 0 ranks: not known. */
dsc_status dsc_config_resolve_quota(dsc_config *config, int64_t ranks, dsc_error *err);
/* Micro-steps that memory is planned for. */
int64_t dsc_config_micro_steps_most(const dsc_config *config, int32_t ranks);
/* The stages divide the world, which is known or 0. */
dsc_status dsc_config_resolve_grid(const dsc_config *config, int64_t world_size, dsc_error *err);
dsc_status dsc_config_resolve_offload(dsc_config *config, const dsc_config_facts *facts, dsc_error *err);
dsc_status dsc_config_check_optimizer(dsc_config_parse_state *s, const cJSON *type); /* type may be NULL */
dsc_status dsc_config_fill_optimizer(dsc_config_parse_state *s);
/* DSC_OPTIMIZER_NONE: no such type. */
dsc_optimizer_kind dsc_config_optimizer_kind(const char *type);
/* The type is a name of AdamW with 8-bit moments. */
bool dsc_config_names_8bit(const dsc_config_parse_state *s, int id);
dsc_status dsc_config_check_types(dsc_config_parse_state *s); /* optimizer.type and scheduler.type are built */

#ifdef __cplusplus
}
#endif
#endif
