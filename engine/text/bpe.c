/* bpe.c - merges a word.
 *
 * A short word, as nearly all are, is looked up among those met before; else its best pair is sought by looking at all.
 * A long one has its pairs in a heap, so that a megabyte of one letter takes a second, not a day. Both merge
 * the pair of the lowest rank first, of equal ones the leftmost, as the tokenizers package does.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/bpe.h"

#include <string.h>

#include "engine/text/unicode.h"

#define CACHE_SLOTS 16384 /* 1.5 MB: what a core's second-level cache holds */
#define CACHE_BYTES 32
#define CACHE_IDS 14
#define SHORT_SYMBOLS 48

typedef struct cached_word {
    uint8_t bytes, count; /* bytes 0: empty */
    char text[CACHE_BYTES];
    int32_t id[CACHE_IDS];
} cached_word;

typedef struct symbol {
    int32_t id;
    int32_t previous, next; /* -1: none; next -2: merged away */
} symbol;

typedef struct candidate {
    int32_t rank, at, id;
} candidate;

struct dsc_bpe_work {
    dsc_alloc *alloc;
    cached_word *cache;
    dsc_ids symbols; /* symbols of the current word, before merging */
    symbol *chain;
    candidate *heap;
    int64_t capacity; /* symbols that chain and heap hold */
};

uint32_t dsc_byte_char(uint8_t byte)
{
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    if (printable)
        return byte;
    /* 0x00-0x20, 0x7f-0xa0 and 0xad follow each other from U+0100 on. */
    return byte <= 0x20 ? 0x100u + byte : byte == 0xad ? 0x143u : 0x121u + (uint32_t)(byte - 0x7f);
}

int dsc_char_byte(uint32_t code)
{
    if (code < 0x100)
        return dsc_byte_char((uint8_t)code) == code ? (int)code : -1;
    if (code <= 0x120)
        return (int)(code - 0x100);
    if (code <= 0x142)
        return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}

dsc_status dsc_bpe_work_open(const dsc_bpe *bpe, dsc_bpe_work **out, dsc_error *err)
{
    dsc_bpe_work *work = NULL;
    DSC_TRY(dsc_alloc_zeroed(bpe->alloc, DSC_TAG_DATA, 1, sizeof *work, &work, err));
    work->alloc = work->symbols.alloc = bpe->alloc;
    const dsc_status status = dsc_alloc_zeroed(bpe->alloc, DSC_TAG_DATA, CACHE_SLOTS, sizeof *work->cache, &work->cache,
                                               err);
    if (status != DSC_OK)
        dsc_bpe_work_close(&work);
    *out = work;
    return status;
}

void dsc_bpe_work_close(dsc_bpe_work **work_ptr)
{
    dsc_bpe_work *work = *work_ptr;
    if (work == NULL)
        return;
    dsc_ids_free(&work->symbols);
    dsc_alloc_free(work->alloc, work->heap);
    dsc_alloc_free(work->alloc, work->chain);
    dsc_alloc_free(work->alloc, work->cache);
    dsc_alloc_free(work->alloc, work);
    *work_ptr = NULL;
}

/* ---- A word's symbols before merging ---- */

static int32_t id_of_char(const dsc_bpe *bpe, const char *at, int bytes)
{
    return bytes == 1 ? bpe->ascii_id[(unsigned char)*at] : dsc_names_find(&bpe->by_raw, at, bytes);
}

/* A word's last character with the suffix: its id, and in `name` what stands in the vocabulary. */
static int32_t id_of_last(const dsc_bpe *bpe, const char *at, int bytes, char name[4 + DSC_BPE_SUFFIX_MAX])
{
    memcpy(name, at, (size_t)bytes);
    memcpy(name + bytes, bpe->suffix, (size_t)bpe->suffix_bytes);
    return dsc_names_find(&bpe->by_raw, name, bytes + bpe->suffix_bytes);
}

/* The bytes of a character outside the vocabulary, if each byte is a token. */
static dsc_status add_bytes(const dsc_bpe *bpe, const char *at, int bytes, dsc_ids *out, bool *added, dsc_error *err)
{
    *added = bpe->byte_fallback;
    for (int i = 0; i < bytes && *added; i++)
        *added = bpe->byte_id[(unsigned char)at[i]] >= 0;
    for (int i = 0; i < bytes && *added; i++)
        DSC_TRY(dsc_ids_add(out, bpe->byte_id[(unsigned char)at[i]], err));
    return DSC_OK;
}

static dsc_status add_symbols(const dsc_bpe *bpe, const char *word, int64_t bytes, dsc_ids *out, dsc_error *err)
{
    int64_t unknown = 0; /* pending: they come out before the next known character */
    int length;
    out->count = 0;
    DSC_TRY(dsc_ids_reserve(out, bytes + DSC_BPE_SUFFIX_MAX, err));
    for (int64_t at = 0; at < bytes; at += length) {
        char last[4 + DSC_BPE_SUFFIX_MAX];
        const char *name = word + at;
        int32_t id;
        length = 1;
        if (!bpe->of_bytes)
            (void)dsc_char_at(word + at, &length);
        const bool ends = bpe->suffix != NULL && at + length == bytes;
        if (ends)
            id = id_of_last(bpe, name, length, last);
        else
            id = bpe->of_bytes ? bpe->byte_id[(unsigned char)*name] : id_of_char(bpe, name, length);
        if (id < 0) {
            bool added = false;
            if (!bpe->of_bytes)
                DSC_TRY(add_bytes(bpe, ends ? last : name, length + (ends ? bpe->suffix_bytes : 0), out, &added, err));
            unknown += !added && bpe->unk >= 0;
            if (!added && unknown > 1) { /* the one before comes out, or is one with this one */
                unknown = 1;
                if (!bpe->fuse_unk)
                    DSC_TRY(dsc_ids_add(out, bpe->unk, err));
            }
            continue;
        }
        if (unknown > 0)
            DSC_TRY(dsc_ids_add(out, bpe->unk, err));
        unknown = 0;
        DSC_TRY(dsc_ids_add(out, id, err));
    }
    return unknown > 0 ? dsc_ids_add(out, bpe->unk, err) : DSC_OK;
}

static inline const dsc_key_slot *find_merge(const dsc_bpe *bpe, int32_t left, int32_t right)
{
    return dsc_keys_find(&bpe->merges, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* ---- Few symbols ---- */

static int64_t merge_few(const dsc_bpe *bpe, int32_t *id, int64_t count)
{
    int32_t rank[SHORT_SYMBOLS], to[SHORT_SYMBOLS]; /* rank and result of the pair at i */
    for (int64_t i = 0; i + 1 < count; i++) {
        const dsc_key_slot *merge = find_merge(bpe, id[i], id[i + 1]);
        rank[i] = merge != NULL ? merge->a : INT32_MAX;
        to[i] = merge != NULL ? merge->b : -1;
    }
    while (count > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < count; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == INT32_MAX)
            break;
        id[best] = to[best];
        count--;
        for (int64_t i = best + 1; i < count; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
            to[i - 1] = to[i];
        }
        for (int64_t i = dsc_max_i64(best - 1, 0); i <= best && i + 1 < count; i++) {
            const dsc_key_slot *merge = find_merge(bpe, id[i], id[i + 1]);
            rank[i] = merge != NULL ? merge->a : INT32_MAX;
            to[i] = merge != NULL ? merge->b : -1;
        }
    }
    return count;
}

/* ---- Many ---- */

static bool before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(candidate *heap, int64_t *count, candidate c)
{
    int64_t i = (*count)++;
    for (; i > 0 && before(c, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static candidate heap_pop(candidate *heap, int64_t *count)
{
    const candidate top = heap[0], last = heap[--*count];
    int64_t i = 0;
    for (int64_t child = 1; child < *count; child = 2 * i + 1) {
        if (child + 1 < *count && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static dsc_status reserve_chain(dsc_bpe_work *work, int64_t symbols, dsc_error *err)
{
    if (symbols <= work->capacity)
        return DSC_OK;
    dsc_alloc_free(work->alloc, work->heap);
    dsc_alloc_free(work->alloc, work->chain);
    work->heap = NULL;
    work->chain = NULL;
    work->capacity = 0;
    DSC_TRY(dsc_alloc_zeroed(work->alloc, DSC_TAG_DATA, symbols, sizeof *work->chain, &work->chain, err));
    /* A pair for each neighbour at the start, and at most two new ones for each merge. */
    DSC_TRY(dsc_alloc_zeroed(work->alloc, DSC_TAG_DATA, 3 * symbols, sizeof *work->heap, &work->heap, err));
    work->capacity = symbols;
    return DSC_OK;
}

static void push_pair(const dsc_bpe *bpe, dsc_bpe_work *work, int64_t *heap_count, int32_t at)
{
    const int32_t next = work->chain[at].next;
    if (next < 0)
        return;
    const dsc_key_slot *merge = find_merge(bpe, work->chain[at].id, work->chain[next].id);
    if (merge != NULL)
        heap_push(work->heap, heap_count, (candidate){ .rank = merge->a, .at = at, .id = merge->b });
}

static dsc_status merge_many(const dsc_bpe *bpe, dsc_bpe_work *work, dsc_error *err)
{
    const int64_t count = work->symbols.count;
    int32_t *const id = work->symbols.ptr;
    int64_t heap_count = 0;
    if (count > INT32_MAX / 4)
        return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "one word of %lld characters; at most %d are encoded",
                        (long long)count, INT32_MAX / 4);
    DSC_TRY(reserve_chain(work, count, err));
    symbol *const chain = work->chain;
    for (int64_t i = 0; i < count; i++)
        chain[i] = (symbol){ .id = id[i], .previous = (int32_t)i - 1, .next = i + 1 < count ? (int32_t)i + 1 : -1 };
    for (int64_t i = 0; i < count; i++)
        push_pair(bpe, work, &heap_count, (int32_t)i);
    while (heap_count > 0) {
        const candidate best = heap_pop(work->heap, &heap_count);
        const int32_t next = chain[best.at].next;
        if (next < 0)
            continue;
        const dsc_key_slot *merge = find_merge(bpe, chain[best.at].id, chain[next].id);
        if (merge == NULL || merge->b != best.id)
            continue; /* one of the two has changed since */
        chain[best.at].id = best.id;
        chain[best.at].next = chain[next].next;
        if (chain[next].next >= 0)
            chain[chain[next].next].previous = best.at;
        chain[next].next = -2;
        if (chain[best.at].previous >= 0)
            push_pair(bpe, work, &heap_count, chain[best.at].previous);
        push_pair(bpe, work, &heap_count, best.at);
    }
    int64_t left = 0;
    for (int32_t i = 0; i >= 0; i = chain[i].next)
        id[left++] = chain[i].id;
    work->symbols.count = left;
    return DSC_OK;
}

/* ---- A word ---- */

static dsc_status encode_word(const dsc_bpe *bpe, dsc_bpe_work *work, const char *word, int64_t bytes, dsc_ids *out,
                              dsc_error *err)
{
    DSC_TRY(add_symbols(bpe, word, bytes, &work->symbols, err));
    if (work->symbols.count <= SHORT_SYMBOLS)
        work->symbols.count = merge_few(bpe, work->symbols.ptr, work->symbols.count);
    else
        DSC_TRY(merge_many(bpe, work, err));
    if (work->symbols.count == 0) /* unknown characters without a token for them */
        return DSC_OK;
    DSC_TRY(dsc_ids_reserve(out, work->symbols.count, err));
    memcpy(out->ptr + out->count, work->symbols.ptr, (size_t)work->symbols.count * sizeof *out->ptr);
    out->count += work->symbols.count;
    return DSC_OK;
}

/* A word that merges as one, through the cache. */
static dsc_status encode_cached(const dsc_bpe *bpe, dsc_bpe_work *work, const char *word, int64_t bytes, dsc_ids *out,
                                dsc_error *err)
{
    if (bytes > CACHE_BYTES)
        return encode_word(bpe, work, word, bytes, out, err);
    cached_word *cached = &work->cache[dsc_text_hash(word, bytes, 0) & (CACHE_SLOTS - 1)];
    if (cached->bytes == bytes && memcmp(cached->text, word, (size_t)bytes) == 0) {
        DSC_TRY(dsc_ids_reserve(out, CACHE_IDS, err));
        memcpy(out->ptr + out->count, cached->id, sizeof cached->id);
        out->count += cached->count;
        return DSC_OK;
    }
    const int64_t first = out->count;
    DSC_TRY(encode_word(bpe, work, word, bytes, out, err));
    if (out->count == first || out->count - first > CACHE_IDS)
        return DSC_OK;
    cached->bytes = (uint8_t)bytes;
    cached->count = (uint8_t)(out->count - first);
    memcpy(cached->text, word, (size_t)bytes);
    memcpy(cached->id, out->ptr + first, (size_t)cached->count * sizeof *cached->id);
    return DSC_OK;
}

/* Bytes up to the next run of marks that does not begin the text; all when there is none. */
static int64_t bytes_before_mark(const char *text, int64_t bytes)
{
    const int64_t mark = (int64_t)strlen(DSC_SPACE_MARK);
    bool in_run = true; /* a run at the start belongs to what follows it */
    for (int64_t at = 0; at + mark <= bytes; at++) {
        if ((unsigned char)text[at] == (unsigned char)DSC_SPACE_MARK[0] &&
            memcmp(text + at, DSC_SPACE_MARK, (size_t)mark) == 0) {
            if (!in_run)
                return at;
            at += mark - 1;
        } else {
            in_run = false;
        }
    }
    return bytes;
}

dsc_status dsc_bpe_encode(const dsc_bpe *bpe, dsc_bpe_work *work, const char *word, int64_t bytes, dsc_ids *out,
                          dsc_error *err)
{
    DSC_ASSERT(bytes > 0);
    if (bpe->ignore_merges) {
        const int32_t id = dsc_names_find(&bpe->by_raw, word, bytes);
        if (id >= 0)
            return dsc_ids_add(out, id, err);
    }
    if (!bpe->cuts_before_mark)
        return encode_cached(bpe, work, word, bytes, out, err);
    while (bytes > 0) {
        const int64_t part = bytes_before_mark(word, bytes);
        DSC_TRY(encode_cached(bpe, work, word, part, out, err));
        word += part;
        bytes -= part;
    }
    return DSC_OK;
}
