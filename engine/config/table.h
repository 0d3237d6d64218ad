/* table.h - the key table as data: engine/config/ parses with it, and tools/dsc prints it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CONFIG_TABLE_H
#define DSC_ENGINE_CONFIG_TABLE_H

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
    int32_t bytes;  /* size of a text field */
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

/* Whether the optimizer or schedule takes a key of optimizer.params or scheduler.params. */
bool dsc_optimizer_has_param(dsc_optimizer_kind kind, int id);
bool dsc_schedule_has_param(dsc_schedule_kind kind, int id);

#ifdef __cplusplus
}
#endif
#endif
