/* buffer.c - see buffer.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/buffer.h"

#include <string.h>
#include <sys/random.h>

#include "base/hash.h"

static dsc_status grow(dsc_alloc *alloc, void **ptr, int64_t used, int64_t *capacity, int64_t need, int64_t bytes_each,
                       dsc_error *err)
{
    void *larger = NULL;
    const int64_t want = dsc_max_i64(dsc_max_i64(need, 256), *capacity * 2);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, want, bytes_each, &larger, err));
    if (used > 0)
        memcpy(larger, *ptr, (size_t)(used * bytes_each));
    dsc_alloc_free(alloc, *ptr);
    *ptr = larger;
    *capacity = want;
    return DSC_OK;
}

dsc_status dsc_text_reserve(dsc_text *text, int64_t more, dsc_error *err)
{
    if (text->capacity - text->bytes >= more)
        return DSC_OK;
    void *ptr = text->ptr;
    DSC_TRY(grow(text->alloc, &ptr, text->bytes, &text->capacity, text->bytes + more, 1, err));
    text->ptr = ptr;
    return DSC_OK;
}

dsc_status dsc_text_add(dsc_text *text, const void *from, int64_t bytes, dsc_error *err)
{
    DSC_TRY(dsc_text_reserve(text, bytes, err));
    if (bytes > 0)
        memcpy(text->ptr + text->bytes, from, (size_t)bytes);
    text->bytes += bytes;
    return DSC_OK;
}

void dsc_text_free(dsc_text *text)
{
    dsc_alloc_free(text->alloc, text->ptr);
    *text = (dsc_text){ .alloc = text->alloc };
}

dsc_status dsc_ids_reserve(dsc_ids *ids, int64_t more, dsc_error *err)
{
    if (ids->capacity - ids->count >= more)
        return DSC_OK;
    void *ptr = ids->ptr;
    DSC_TRY(grow(ids->alloc, &ptr, ids->count, &ids->capacity, ids->count + more, (int64_t)sizeof *ids->ptr, err));
    ids->ptr = ptr;
    return DSC_OK;
}

void dsc_ids_free(dsc_ids *ids)
{
    dsc_alloc_free(ids->alloc, ids->ptr);
    *ids = (dsc_ids){ .alloc = ids->alloc };
}

uint64_t dsc_text_hash(const char *text, int64_t bytes, uint64_t seed)
{
    return dsc_xxh3_128(text, (size_t)bytes, seed).low;
}

/* Without the system's randomness (an old kernel, a filter) the address has to do. */
static uint64_t random_seed(const void *somewhere)
{
    uint64_t seed = (uint64_t)(uintptr_t)somewhere;
    return getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed ? seed : (uint64_t)(uintptr_t)somewhere;
}

/* A power of two of at least twice the entries. */
static int64_t table_size(int64_t most)
{
    int64_t size = 16;
    while (size < 2 * most)
        size *= 2;
    return size;
}

dsc_status dsc_names_open(dsc_alloc *alloc, int64_t most, dsc_names *out, dsc_error *err)
{
    const int64_t size = table_size(most);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, size, sizeof *out->slot, &out->slot, err));
    out->mask = (uint64_t)size - 1;
    out->seed = random_seed(out->slot);
    for (int64_t i = 0; i < size; i++)
        out->slot[i].id = -1;
    return DSC_OK;
}

static dsc_name_slot *name_slot(const dsc_names *names, const char *name, int64_t bytes, uint64_t hash)
{
    for (uint64_t i = hash & names->mask;; i = (i + 1) & names->mask) {
        dsc_name_slot *slot = &names->slot[i];
        if (slot->id < 0 || (slot->hash == (uint32_t)hash && slot->bytes == bytes &&
                             memcmp(slot->name, name, (size_t)bytes) == 0))
            return slot;
    }
}

int32_t dsc_names_add(dsc_names *names, const char *name, int64_t bytes, int32_t id)
{
    DSC_ASSERT(id >= 0);
    const uint64_t hash = dsc_text_hash(name, bytes, names->seed);
    dsc_name_slot *slot = name_slot(names, name, bytes, hash);
    if (slot->id >= 0)
        return slot->id;
    *slot = (dsc_name_slot){ .name = name, .bytes = (uint32_t)bytes, .hash = (uint32_t)hash, .id = id };
    return -1;
}

int32_t dsc_names_find(const dsc_names *names, const char *name, int64_t bytes)
{
    return name_slot(names, name, bytes, dsc_text_hash(name, bytes, names->seed))->id;
}

dsc_status dsc_keys_open(dsc_alloc *alloc, int64_t most, dsc_keys *out, dsc_error *err)
{
    const int64_t size = table_size(most);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, size, sizeof *out->slot, &out->slot, err));
    out->mask = (uint64_t)size - 1;
    out->seed = random_seed(out->slot);
    for (int64_t i = 0; i < size; i++)
        out->slot[i] = (dsc_key_slot){ .key = DSC_KEY_NONE, .a = -1, .b = -1 };
    return DSC_OK;
}

dsc_key_slot *dsc_keys_put(dsc_keys *keys, uint64_t key)
{
    DSC_ASSERT(key != DSC_KEY_NONE);
    uint64_t i = dsc_key_mix(key, keys->seed) & keys->mask;
    while (keys->slot[i].key != key && keys->slot[i].key != DSC_KEY_NONE)
        i = (i + 1) & keys->mask;
    keys->slot[i].key = key;
    return &keys->slot[i];
}
