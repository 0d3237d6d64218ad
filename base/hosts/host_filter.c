/* host_filter.c - include and exclude filters over a pool (grammar: hostfile.h).
 *
 * As in DeepSpeed, slot sets of a host that is named twice are joined, and a bare name after slots of the same host
 * adds nothing. Extensions: ranges (0-3), bracketed IPv6, and user@host, although '@' also separates nodes. If the
 * text up to an '@' names no host of the pool, the part after it is tried as the rest of the name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/hosts/hostfile.h"

enum { WORDS = DSC_HOST_SLOTS_MAX / 64 };

typedef struct filter {
    dsc_host_pool *pool;
    const char *flag;
    const char *text;
    size_t bytes;
    size_t at;
    uint64_t (*chosen)[WORDS]; /* per host of the pool */
    bool exclude;
} filter;

static const char *place(const filter *f, size_t at, char out[64])
{
    snprintf(out, 64, "%.40s:%zu", f->flag, at + 1);
    return out;
}

#define FAIL_AT(f, offset, ...) DSC_FAIL(err, DSC_ERR_INPUT, place((f), (offset), (char[64]){ 0 }), __VA_ARGS__)

/* Offset of the first byte from `from` on that is one of `stops` and not inside brackets. */
static size_t find_stop(const filter *f, size_t from, const char *stops)
{
    bool bracket = false;
    for (size_t i = from; i < f->bytes; i++) {
        if (f->text[i] == '[' || f->text[i] == ']')
            bracket = f->text[i] == '[';
        else if (!bracket && strchr(stops, f->text[i]) != NULL)
            return i;
    }
    return f->bytes;
}

/* The host of the node at f->at, whose name ends before a ':' or '@'. On success the cursor is behind it. */
static dsc_status scan_host(filter *f, int64_t *host, dsc_error *err)
{
    char name[DSC_HOST_NAME_BYTES];
    const char *why = NULL;
    size_t bad = 0;
    const size_t start = f->at;
    size_t end = find_stop(f, start, ":@");
    if (!dsc_host_name_scan(f->text + start, end - start, name, &why, &bad))
        return FAIL_AT(f, start + bad, "%s", end == start ? "a host name is missing" : why);
    *host = dsc_host_pool_find(f->pool, name);
    if (*host < 0 && end < f->bytes && f->text[end] == '@') {
        char both[DSC_HOST_NAME_BYTES];
        const size_t both_end = find_stop(f, end + 1, ":@");
        if (dsc_host_name_scan(f->text + start, both_end - start, both, &why, &bad) &&
            dsc_host_pool_find(f->pool, both) >= 0) {
            *host = dsc_host_pool_find(f->pool, both);
            end = both_end;
        }
    }
    if (*host < 0)
        return FAIL_AT(f, start, "no host \"%.100s\" in the pool; the first is \"%.100s\"", name,
                       f->pool->host[0].name);
    f->at = end;
    return DSC_OK;
}

static bool scan_number(filter *f, int64_t *out)
{
    const size_t start = f->at;
    int64_t value = 0;
    while (f->at < f->bytes && f->text[f->at] >= '0' && f->text[f->at] <= '9') {
        value = dsc_min_i64(value * 10 + (f->text[f->at] - '0'), INT32_MAX);
        f->at++;
    }
    *out = value;
    return f->at > start;
}

static void skip_blanks(filter *f)
{
    while (f->at < f->bytes && (f->text[f->at] == ' ' || f->text[f->at] == '\t'))
        f->at++;
}

/* One SLOT of the list behind ':', with the blanks around it. */
static dsc_status scan_slots(filter *f, int64_t host, dsc_error *err)
{
    int64_t first = 0, last = 0;
    skip_blanks(f);
    const size_t start = f->at;
    if (!scan_number(f, &first))
        return FAIL_AT(f, f->at, "expected a slot number or a range such as 0-3");
    last = first;
    if (f->at < f->bytes && f->text[f->at] == '-') {
        f->at++;
        if (!scan_number(f, &last) || last < first)
            return FAIL_AT(f, f->at, "expected the last slot of the range, not below the first");
    }
    skip_blanks(f);
    if (f->at < f->bytes && f->text[f->at] != ',' && f->text[f->at] != '@')
        return FAIL_AT(f, f->at, "expected ',' and a slot, '@' and a host, or the end");
    const dsc_host *h = &f->pool->host[host];
    for (int64_t slot = first; slot <= last; slot++) {
        if (slot >= DSC_HOST_SLOTS_MAX || !dsc_host_has_slot(h, (int32_t)slot))
            return FAIL_AT(f, start, "host \"%.100s\" has %d slots and no slot %lld", h->name, h->slot_count,
                           (long long)slot);
        f->chosen[host][slot / 64] |= (uint64_t)1 << (slot % 64);
    }
    return DSC_OK;
}

static dsc_status scan_node(filter *f, dsc_error *err)
{
    int64_t host = -1;
    DSC_TRY(scan_host(f, &host, err));
    if (f->at < f->bytes && f->text[f->at] == ':') {
        do {
            f->at++;
            DSC_TRY(scan_slots(f, host, err));
        } while (f->at < f->bytes && f->text[f->at] == ',');
        return DSC_OK;
    }
    uint64_t any = 0;
    for (int w = 0; w < WORDS; w++)
        any |= f->chosen[host][w];
    if (any == 0 || f->exclude)
        memcpy(f->chosen[host], f->pool->host[host].slot_bits, sizeof f->chosen[host]);
    return DSC_OK;
}

/* Writes the chosen slots (or the others) into the pool. False: nothing would be left, and nothing is changed. */
static bool apply(filter *f)
{
    dsc_host_pool *pool = f->pool;
    uint64_t any = 0;
    for (int64_t i = 0; i < pool->count; i++)
        for (int w = 0; w < WORDS; w++) {
            if (f->exclude)
                f->chosen[i][w] = pool->host[i].slot_bits[w] & ~f->chosen[i][w];
            any |= f->chosen[i][w];
        }
    if (any == 0)
        return false;
    for (int64_t i = 0; i < pool->count; i++) {
        dsc_host *host = &pool->host[i];
        memcpy(host->slot_bits, f->chosen[i], sizeof host->slot_bits);
        dsc_host_count_slots(host);
    }
    dsc_host_pool_drop_empty(pool);
    return true;
}

dsc_status dsc_host_pool_filter(dsc_host_pool *pool, const char *flag, const char *text, bool exclude, dsc_error *err)
{
    DSC_ASSERT(pool->count > 0);
    filter f = { pool, flag, text, strlen(text), 0, NULL, exclude };
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(pool->alloc, DSC_TAG_CONTROL, pool->count, (int64_t)sizeof *f.chosen, &f.chosen, err));
    for (;;) {
        DSC_TRY_OUT(scan_node(&f, err));
        if (f.at == f.bytes)
            break;
        f.at++; /* the '@' */
    }
    if (!apply(&f))
        status = DSC_FAIL(err, DSC_ERR_INPUT, flag, "\"%.100s\" leaves no slot to run on", text);
out:
    dsc_alloc_free(pool->alloc, f.chosen);
    return status;
}
