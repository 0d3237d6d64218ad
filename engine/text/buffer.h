/* buffer.h - bytes and ids that grow; maps from byte strings and from pairs of ids.
 *
 * The maps are open-addressed tables, at most half full. Their hashes are keyed by a random number of each opening, so
 * that a file cannot be made to collide; nothing depends on the order of the slots.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_BUFFER_H
#define DSC_ENGINE_TEXT_BUFFER_H

#include "base/alloc.h"

/* Bytes that grow. Zeroed but for alloc: empty. */
typedef struct dsc_text {
    dsc_alloc *alloc;
    char *ptr;
    int64_t bytes, capacity;
} dsc_text;
dsc_status dsc_text_reserve(dsc_text *text, int64_t more, dsc_error *err);
dsc_status dsc_text_add(dsc_text *text, const void *from, int64_t bytes, dsc_error *err);
void dsc_text_free(dsc_text *text);

/* Ids that grow. */
typedef struct dsc_ids {
    dsc_alloc *alloc;
    int32_t *ptr;
    int64_t count, capacity;
} dsc_ids;
dsc_status dsc_ids_reserve(dsc_ids *ids, int64_t more, dsc_error *err);
void dsc_ids_free(dsc_ids *ids);
static inline dsc_status dsc_ids_add(dsc_ids *ids, int32_t id, dsc_error *err)
{
    if (ids->count == ids->capacity)
        DSC_TRY(dsc_ids_reserve(ids, 1, err));
    ids->ptr[ids->count++] = id;
    return DSC_OK;
}

/* From byte strings to ids >= 0. The strings are borrowed. */
typedef struct dsc_name_slot {
    const char *name;
    uint32_t bytes, hash;
    int32_t id; /* -1: empty */
} dsc_name_slot;
typedef struct dsc_names {
    dsc_name_slot *slot; /* [mask + 1] */
    uint64_t mask, seed;
} dsc_names;
dsc_status dsc_names_open(dsc_alloc *alloc, int64_t most, dsc_names *out, dsc_error *err);
/* The id that the name had before, -1 when it is new and *id now its own. */
int32_t dsc_names_add(dsc_names *names, const char *name, int64_t bytes, int32_t id);
int32_t dsc_names_find(const dsc_names *names, const char *name, int64_t bytes); /* -1: none */

/* From 64-bit keys to pairs of numbers. */
typedef struct dsc_key_slot {
    uint64_t key; /* DSC_KEY_NONE: empty */
    int32_t a, b;
} dsc_key_slot;
#define DSC_KEY_NONE UINT64_MAX
typedef struct dsc_keys {
    dsc_key_slot *slot; /* [mask + 1] */
    uint64_t mask, seed;
} dsc_keys;
dsc_status dsc_keys_open(dsc_alloc *alloc, int64_t most, dsc_keys *out, dsc_error *err);
dsc_key_slot *dsc_keys_put(dsc_keys *keys, uint64_t key); /* the key's slot, made when it is new (a = b = -1) */

uint64_t dsc_text_hash(const char *text, int64_t bytes, uint64_t seed);

static inline uint64_t dsc_key_mix(uint64_t key, uint64_t seed)
{
    key = (key ^ key >> 32) + seed;
    key *= UINT64_C(0xd6e8feb86659fd93);
    key ^= key >> 32;
    key *= UINT64_C(0xd6e8feb86659fd93);
    return key ^ key >> 32;
}

static inline const dsc_key_slot *dsc_keys_find(const dsc_keys *keys, uint64_t key)
{
    for (uint64_t i = dsc_key_mix(key, keys->seed) & keys->mask;; i = (i + 1) & keys->mask) {
        if (keys->slot[i].key == key)
            return &keys->slot[i];
        if (keys->slot[i].key == DSC_KEY_NONE)
            return NULL;
    }
}

#endif
