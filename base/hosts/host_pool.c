/* host_pool.c - the hosts of a job: names, slots, and the include and exclude filters (grammar: hostfile.h).
 *
 * A name is compared by its key: the host part in lower case without a final dot (DNS ignores both), the user part as
 * it is. SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/hosts/hostfile.h"

/* ---- names ---- */

static bool is_digit(char ch) { return ch >= '0' && ch <= '9'; }
static bool is_alnum(char ch) { return is_digit(ch) || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z'); }
static bool is_name_char(char ch) { return is_alnum(ch) || ch == '.' || ch == '-' || ch == '_'; }

static bool refuse(const char **why, size_t *at, const char *reason, size_t offset)
{
    *why = reason;
    *at = offset;
    return false;
}

/* All of text[0..bytes) from the letters of a name, not starting with '-', which would be an option to ssh. */
static bool check_word(const char *text, size_t bytes, size_t bytes_max, size_t base, const char **why, size_t *at)
{
    if (bytes == 0)
        return refuse(why, at, "a name is missing", base);
    if (text[0] == '-')
        return refuse(why, at, "a name cannot start with '-'", base);
    for (size_t i = 0; i < bytes; i++)
        if (!is_name_char(text[i]))
            return refuse(why, at,
                          text[i] == ':'
                              ? "a ':' belongs to IPv6 addresses only; slots are given as slots=N in a hostfile"
                              : "a name has letters, digits, '.', '-' and '_' only",
                          base + i);
    if (bytes > bytes_max)
        return refuse(why, at, "the name is too long", base + bytes_max);
    return true;
}

static bool scan_dns_or_ipv4(const char *text, size_t bytes, size_t base, const char **why, size_t *at)
{
    if (!check_word(text, bytes, 253, base, why, at))
        return false;
    bool numeric = memchr(text, '.', bytes) != NULL;
    size_t label = 0;
    for (size_t i = 0; i < bytes; i++) {
        numeric = numeric && (is_digit(text[i]) || text[i] == '.');
        if (text[i] != '.') {
            if (i - label >= 63)
                return refuse(why, at, "a part between dots has at most 63 letters", base + i);
            if (i == label && text[i] == '-')
                return refuse(why, at, "a part between dots cannot start with '-'", base + i);
            continue;
        }
        if (i == label)
            return refuse(why, at, "a dot without a name before it", base + i);
        label = i + 1;
    }
    char address[16];
    struct in_addr parsed;
    if (numeric) {
        snprintf(address, sizeof address, "%.*s", (int)(bytes < 16 ? bytes : 0), text);
        if (inet_pton(AF_INET, address, &parsed) != 1)
            return refuse(why, at, "not an IPv4 address (four numbers of 0 to 255)", base);
        if (parsed.s_addr == htonl(INADDR_ANY) || ntohl(parsed.s_addr) >> 28 >= 14)
            return refuse(why, at, "an address of everybody or nobody, not of a host", base);
    }
    return true;
}

/* Address with an optional %zone, without brackets, to its shortest form at out. */
static bool scan_ipv6(const char *text, size_t bytes, char *out, size_t out_bytes, size_t base, const char **why,
                      size_t *at)
{
    const char *percent = memchr(text, '%', bytes);
    const size_t address_bytes = percent != NULL ? (size_t)(percent - text) : bytes;
    char address[INET6_ADDRSTRLEN];
    struct in6_addr parsed;
    if (address_bytes >= sizeof address)
        return refuse(why, at, "not an IPv6 address", base);
    memcpy(address, text, address_bytes);
    address[address_bytes] = 0;
    if (strlen(address) != address_bytes || inet_pton(AF_INET6, address, &parsed) != 1)
        return refuse(why, at, "not an IPv6 address", base);
    if (IN6_IS_ADDR_UNSPECIFIED(&parsed) || IN6_IS_ADDR_MULTICAST(&parsed))
        return refuse(why, at, "an address of everybody or nobody, not of a host", base);
    inet_ntop(AF_INET6, &parsed, address, sizeof address);
    const char *zone = "";
    size_t zone_bytes = 0;
    if (percent != NULL) {
        zone = percent;
        zone_bytes = bytes - address_bytes;
        /* 15: the longest name of a network interface */
        if (!check_word(zone + 1, zone_bytes - 1, 15, base + address_bytes + 1, why, at))
            return false;
    }
    snprintf(out, out_bytes, "%s%.*s", address, (int)zone_bytes, zone);
    return true;
}

bool dsc_host_name_scan(const char *text, size_t bytes, char out[DSC_HOST_NAME_BYTES], const char **why, size_t *at)
{
    const char *sign = bytes > 0 ? memchr(text, '@', bytes) : NULL;
    const size_t user_bytes = sign != NULL ? (size_t)(sign - text) + 1 : 0;
    if (sign != NULL && !check_word(text, user_bytes - 1, 64, 0, why, at))
        return false;
    memcpy(out, text, user_bytes);
    const char *host = text + user_bytes;
    const size_t host_bytes = bytes - user_bytes;
    char *to = out + user_bytes;
    const size_t capacity = DSC_HOST_NAME_BYTES - user_bytes;
    if (host_bytes > 0 && host[0] == '[') {
        if (host[host_bytes - 1] != ']')
            return refuse(why, at, "expected ']' after the IPv6 address", bytes);
        return scan_ipv6(host + 1, host_bytes - 2, to, capacity, user_bytes + 1, why, at);
    }
    const char *colon = host_bytes > 0 ? memchr(host, ':', host_bytes) : NULL;
    if (colon != NULL && memchr(colon + 1, ':', host_bytes - (size_t)(colon + 1 - host)) != NULL)
        return scan_ipv6(host, host_bytes, to, capacity, user_bytes, why, at);
    if (!scan_dns_or_ipv4(host, host_bytes, user_bytes, why, at))
        return false;
    memcpy(to, host, host_bytes);
    to[host_bytes] = 0;
    return true;
}

/* ---- the pool ---- */

static void name_key(const char *name, char key[DSC_HOST_NAME_BYTES])
{
    const char *sign = strchr(name, '@');
    const size_t host_at = sign != NULL ? (size_t)(sign - name) + 1 : 0;
    size_t n = 0;
    for (; name[n] != 0 && n < DSC_HOST_NAME_BYTES - 1; n++) {
        const bool upper = n >= host_at && name[n] >= 'A' && name[n] <= 'Z';
        key[n] = upper ? (char)(name[n] - 'A' + 'a') : name[n];
    }
    if (n > host_at && key[n - 1] == '.')
        n--;
    key[n] = 0;
}

/* FNV-1a. Colliding names cost time, bounded by DSC_HOST_COUNT_MAX, never correctness. */
static uint64_t key_hash(const char *key)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *key != 0; key++)
        hash = (hash ^ (unsigned char)*key) * 0x100000001b3u;
    return hash ^ (hash >> 32);
}

int64_t dsc_host_pool_find(const dsc_host_pool *pool, const char *name)
{
    char key[DSC_HOST_NAME_BYTES], other[DSC_HOST_NAME_BYTES];
    if (pool->index_count == 0)
        return -1;
    name_key(name, key);
    const uint64_t mask = (uint64_t)pool->index_count - 1;
    for (uint64_t i = key_hash(key) & mask; pool->index[i] != 0; i = (i + 1) & mask) {
        const int64_t at = (int64_t)pool->index[i] - 1;
        name_key(pool->host[at].name, other);
        if (strcmp(key, other) == 0)
            return at;
    }
    return -1;
}

static void index_put(dsc_host_pool *pool, int64_t at)
{
    char key[DSC_HOST_NAME_BYTES];
    name_key(pool->host[at].name, key);
    const uint64_t mask = (uint64_t)pool->index_count - 1;
    uint64_t i = key_hash(key) & mask;
    while (pool->index[i] != 0)
        i = (i + 1) & mask;
    pool->index[i] = (uint32_t)at + 1;
}

static void index_rebuild(dsc_host_pool *pool)
{
    memset(pool->index, 0, (size_t)pool->index_count * sizeof *pool->index);
    for (int64_t i = 0; i < pool->count; i++)
        index_put(pool, i);
}

static dsc_status pool_grow(dsc_host_pool *pool, dsc_error *err)
{
    const int64_t capacity = dsc_max_i64(16, pool->capacity * 2); /* a power of two: the index is masked */
    dsc_host *host = NULL;
    uint32_t *index = NULL;
    DSC_TRY(dsc_alloc_zeroed(pool->alloc, DSC_TAG_CONTROL, capacity, (int64_t)sizeof *host, &host, err));
    const dsc_status status =
        dsc_alloc_zeroed(pool->alloc, DSC_TAG_CONTROL, capacity * 2, (int64_t)sizeof *index, &index, err);
    if (status != DSC_OK) {
        dsc_alloc_free(pool->alloc, host);
        return status;
    }
    if (pool->count > 0)
        memcpy(host, pool->host, (size_t)pool->count * sizeof *host);
    dsc_alloc_free(pool->alloc, pool->host);
    dsc_alloc_free(pool->alloc, pool->index);
    pool->host = host;
    pool->capacity = capacity;
    pool->index = index;
    pool->index_count = capacity * 2;
    index_rebuild(pool);
    return DSC_OK;
}

dsc_status dsc_host_pool_add(dsc_host_pool *pool, const dsc_host *host, dsc_error *err)
{
    DSC_ASSERT(pool->count < DSC_HOST_COUNT_MAX);
    DSC_ASSERT(dsc_host_pool_find(pool, host->name) < 0);
    if (pool->count == pool->capacity)
        DSC_TRY(pool_grow(pool, err));
    pool->host[pool->count] = *host;
    index_put(pool, pool->count);
    pool->count++;
    return DSC_OK;
}

dsc_status dsc_host_pool_single(dsc_alloc *alloc, const char *name, int32_t slot_count, dsc_host_pool *out,
                                dsc_error *err)
{
    DSC_ASSERT(out->host == NULL);
    dsc_host host;
    snprintf(host.name, sizeof host.name, "%s", name);
    dsc_host_set_slots(&host, slot_count);
    out->alloc = alloc;
    return dsc_host_pool_add(out, &host, err);
}

void dsc_host_pool_close(dsc_host_pool *pool)
{
    if (pool->alloc != NULL) {
        dsc_alloc_free(pool->alloc, pool->host);
        dsc_alloc_free(pool->alloc, pool->index);
    }
    *pool = (dsc_host_pool)DSC_HOST_POOL_INIT;
}

int64_t dsc_host_pool_slots(const dsc_host_pool *pool)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < pool->count; i++)
        sum += pool->host[i].slot_count;
    return sum;
}

/* ---- slots ---- */

void dsc_host_count_slots(dsc_host *host)
{
    host->slot_count = 0;
    for (size_t w = 0; w < DSC_COUNT(host->slot_bits); w++)
        host->slot_count += __builtin_popcountll(host->slot_bits[w]);
}

void dsc_host_set_slots(dsc_host *host, int32_t slot_count)
{
    DSC_ASSERT(slot_count >= 0);
    DSC_ASSERT(slot_count <= DSC_HOST_SLOTS_MAX);
    memset(host->slot_bits, 0, sizeof host->slot_bits);
    for (int32_t slot = 0; slot < slot_count; slot++)
        host->slot_bits[slot / 64] |= (uint64_t)1 << (slot % 64);
    host->slot_count = slot_count;
}

void dsc_host_pool_drop_empty(dsc_host_pool *pool)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < pool->count; i++)
        if (pool->host[i].slot_count > 0)
            pool->host[kept++] = pool->host[i];
    pool->count = kept;
    index_rebuild(pool);
}

void dsc_host_pool_keep(dsc_host_pool *pool, int64_t host_count, int64_t rank_count)
{
    DSC_ASSERT(host_count >= 1);
    DSC_ASSERT(rank_count >= 1);
    int64_t left = rank_count;
    for (int64_t i = 0; i < pool->count; i++) {
        dsc_host *host = &pool->host[i];
        for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++)
            if (dsc_host_has_slot(host, slot) && (i >= host_count || left-- <= 0))
                host->slot_bits[slot / 64] &= ~((uint64_t)1 << (slot % 64));
        dsc_host_count_slots(host);
    }
    dsc_host_pool_drop_empty(pool);
}
