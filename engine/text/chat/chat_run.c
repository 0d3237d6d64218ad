/* chat_run.c - the state of one parse or render: arena, limits, errors, names, growing bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "engine/text/chat/chat_internal.h"

#define BLOCK_BYTES_MIN 16384
#define BLOCK_BYTES_MAX (4 << 20)
#define ALIGNMENT 16

dsc_status chat_fail(chat_run *r, dsc_status status, const char *fmt, ...)
{
    char where[64], text[480];
    int64_t line = 1, column = 1;
    va_list args;
    DSC_ASSERT(status != DSC_OK && r->at <= r->source_bytes);
    for (int64_t i = 0; i < r->at; i++) {
        const bool line_end = r->source[i] == '\n';
        line += line_end;
        column = line_end ? 1 : column + (((unsigned char)r->source[i] & 0xc0) != 0x80);
    }
    snprintf(where, sizeof where, "chat template:%lld:%lld", (long long)line, (long long)column);
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return DSC_FAIL(r->err, status, where, "%s", text);
}

/* ---- Arena ---- */

static dsc_status add_block(chat_run *r, int64_t bytes)
{
    int64_t block_bytes = r->memory_bytes < BLOCK_BYTES_MIN ? BLOCK_BYTES_MIN
                          : r->memory_bytes < BLOCK_BYTES_MAX ? r->memory_bytes : BLOCK_BYTES_MAX;
    block_bytes = dsc_max_i64(block_bytes, bytes + ALIGNMENT);
    if (block_bytes > r->memory_limit - r->memory_bytes)
        block_bytes = bytes + ALIGNMENT;
    if (block_bytes > r->memory_limit - r->memory_bytes)
        return chat_fail(r, DSC_ERR_INPUT, "the template needs more than %lld bytes of memory, which is the limit",
                         (long long)r->memory_limit);
    chat_block *block = NULL;
    DSC_TRY(dsc_alloc_zeroed(r->alloc, DSC_TAG_DATA, 1, block_bytes, &block, r->err));
    block->next = r->block;
    r->block = block;
    r->free = (char *)block + ALIGNMENT;
    r->free_end = (char *)block + block_bytes;
    r->memory_bytes += block_bytes;
    return DSC_OK;
}

dsc_status chat_new(chat_run *r, int64_t count, int64_t bytes_each, void *out_ptr)
{
    int64_t bytes = 0;
    DSC_ASSERT(count >= 0 && bytes_each > 0);
    if (!dsc_mul_i64(count, bytes_each, &bytes) || bytes > r->memory_limit)
        return chat_fail(r, DSC_ERR_INPUT, "the template needs more than %lld bytes of memory, which is the limit",
                         (long long)r->memory_limit);
    bytes = dsc_align_up(bytes, ALIGNMENT);
    if (r->free_end - r->free < bytes)
        DSC_TRY(add_block(r, bytes));
    memcpy(out_ptr, &r->free, sizeof(void *));
    r->free += bytes;
    DSC_ASSERT(r->free <= r->free_end);
    return DSC_OK;
}

dsc_status chat_new_text(chat_run *r, int64_t bytes, char **out)
{
    return chat_new(r, bytes, 1, out);
}

void chat_run_free(chat_run *r)
{
    while (r->block != NULL) {
        chat_block *next = r->block->next;
        dsc_alloc_free(r->alloc, r->block);
        r->block = next;
    }
    r->free = r->free_end = NULL;
}

/* ---- Limits ---- */

dsc_status chat_spend(chat_run *r, int64_t steps)
{
    DSC_ASSERT(steps >= 0);
    r->steps -= steps;
    if (r->steps >= 0)
        return DSC_OK;
    r->steps = 0;
    return chat_fail(r, DSC_ERR_INPUT, "the template takes more steps than the limit of %lld; it may loop too often",
                     (long long)r->options->limits.steps);
}

dsc_status chat_enter(chat_run *r)
{
    DSC_ASSERT(r->depth >= 0);
    if (r->depth >= r->depth_limit)
        return chat_fail(r, DSC_ERR_INPUT, "expressions, values or macro calls are nested more than %lld deep",
                         (long long)r->depth_limit);
    r->depth++;
    return chat_spend(r, 1);
}

/* ---- Growing bytes ---- */

static dsc_status grow(chat_run *r, chat_bytes *b, int64_t more)
{
    int64_t capacity = b->capacity < 64 ? 64 : b->capacity;
    while (capacity - b->bytes < more)
        capacity *= 2;
    /* The newest object of the arena grows in place. */
    if (b->ptr != NULL && b->ptr + dsc_align_up(b->capacity, ALIGNMENT) == r->free &&
        capacity - b->capacity <= r->free_end - r->free) {
        r->free = b->ptr + dsc_align_up(capacity, ALIGNMENT);
        b->capacity = capacity;
        DSC_ASSERT(r->free <= r->free_end);
        return DSC_OK;
    }
    char *ptr = NULL;
    DSC_TRY(chat_new_text(r, capacity, &ptr));
    if (b->bytes > 0)
        memcpy(ptr, b->ptr, (size_t)b->bytes);
    b->ptr = ptr;
    b->capacity = capacity;
    return DSC_OK;
}

dsc_status chat_add(chat_run *r, chat_bytes *b, const char *text, int64_t bytes)
{
    DSC_ASSERT(bytes >= 0);
    if (bytes > r->memory_limit)
        return chat_fail(r, DSC_ERR_INPUT, "a text of %lld bytes is above the limit of memory", (long long)bytes);
    if (b->capacity - b->bytes < bytes)
        DSC_TRY(grow(r, b, bytes));
    if (bytes > 0)
        memcpy(b->ptr + b->bytes, text, (size_t)bytes);
    b->bytes += bytes;
    return DSC_OK;
}

dsc_status chat_add_text(chat_run *r, chat_bytes *b, const char *text)
{
    return chat_add(r, b, text, (int64_t)strlen(text));
}

/* ---- Names ---- */

static uint32_t bucket_of(const char *text, int64_t bytes)
{
    uint32_t hash = 2166136261u;
    for (int64_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash % CHAT_NAME_BUCKETS;
}

const chat_name *chat_find_name(const chat_run *r, const char *text, int64_t bytes)
{
    for (const chat_name *name = r->bucket[bucket_of(text, bytes)]; name != NULL; name = name->next)
        if (name->bytes == bytes && memcmp(name->text, text, (size_t)bytes) == 0)
            return name;
    return NULL;
}

const chat_name *chat_intern(chat_run *r, const char *text, int64_t bytes)
{
    const chat_name *known = chat_find_name(r, text, bytes);
    if (known != NULL)
        return known;
    chat_name *name = NULL;
    char *copy = NULL; /* with a NUL, for messages */
    if (chat_new(r, 1, sizeof *name, &name) != DSC_OK || chat_new_text(r, bytes + 1, &copy) != DSC_OK)
        return NULL;
    memcpy(copy, text, (size_t)bytes);
    chat_name **bucket = &r->bucket[bucket_of(text, bytes)];
    *name = (chat_name){ copy, bytes, r->name_count++, *bucket };
    *bucket = name;
    return name;
}
