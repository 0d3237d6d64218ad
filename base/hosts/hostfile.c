/* hostfile.c - the parsers of hostfiles and -H lists (grammar: hostfile.h).
 *
 * Every error names line and column of the first byte that is wrong and what stands there instead of what was expected.
 * Invariant: nothing of the text reaches a message unescaped, and no byte is looked at twice, so a line of a megabyte
 * costs a megabyte. SPDX-License-Identifier: Apache-2.0 */
#include "base/hosts/hostfile.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/io.h"

/* Enough of a token to recognise it in a message; other bytes than printable ASCII become '?'. */
typedef struct clip {
    char text[48];
} clip;

static clip clip_of(const char *text, size_t bytes)
{
    clip c;
    const size_t capacity = sizeof c.text - 4;
    size_t used = 0;
    for (; used < bytes && used < capacity; used++)
        c.text[used] = (text[used] >= 0x20 && text[used] < 0x7f) ? text[used] : '?';
    snprintf(c.text + used, 4, "%s", bytes > capacity ? "..." : "");
    return c;
}

typedef struct cursor {
    const char *name; /* name of the file or the flag */
    const char *line; /* the current line, without its end */
    size_t bytes;
    size_t at;
    int64_t line_number; /* 0: the text of a flag, which has columns only */
} cursor;

/* The place of byte `at` of the current line. A long file name loses its front, never the numbers. */
static const char *place(const cursor *c, size_t at, char out[256])
{
    char numbers[48];
    if (c->line_number > 0)
        snprintf(numbers, sizeof numbers, ":%lld:%zu", (long long)c->line_number, at + 1);
    else
        snprintf(numbers, sizeof numbers, ":%zu", at + 1);
    const size_t capacity = 255 - strlen(numbers);
    const size_t have = strlen(c->name);
    snprintf(out, 256, "%s%s", c->name + (have > capacity ? have - capacity : 0), numbers);
    return out;
}

#define FAIL_AT(c, offset, ...) DSC_FAIL(err, DSC_ERR_INPUT, place((c), (offset), (char[256]){ 0 }), __VA_ARGS__)

static bool is_blank(char ch) { return ch == ' ' || ch == '\t'; }
static bool is_digit(char ch) { return ch >= '0' && ch <= '9'; }

static void skip_blanks(cursor *c)
{
    while (c->at < c->bytes && is_blank(c->line[c->at]))
        c->at++;
}

static bool at_end(const cursor *c) { return c->at == c->bytes || c->line[c->at] == '#'; }

static size_t word_bytes(const cursor *c)
{
    size_t end = c->at;
    while (end < c->bytes && !is_blank(c->line[end]))
        end++;
    return end - c->at;
}

static bool word_starts(const cursor *c, const char *prefix)
{
    const size_t n = strlen(prefix);
    return c->bytes - c->at >= n && memcmp(c->line + c->at, prefix, n) == 0;
}

/* Digits at the cursor; saturates, so any length is safe. False: there is no digit. */
static bool scan_number(cursor *c, int64_t *out)
{
    const size_t start = c->at;
    int64_t value = 0;
    while (c->at < c->bytes && is_digit(c->line[c->at])) {
        value = dsc_min_i64(value * 10 + (c->line[c->at] - '0'), INT32_MAX);
        c->at++;
    }
    *out = value;
    return c->at > start;
}

static dsc_status fail_host_name(const cursor *c, size_t start, size_t bytes, const char *why, size_t at,
                                 dsc_error *err)
{
    return FAIL_AT(c, start + at, "\"%s\" is not a host: %s", clip_of(c->line + start, bytes).text, why);
}

/* "slots=4" at the cursor, with the errors that people make. */
static dsc_status parse_slots(cursor *c, int64_t *slots, dsc_error *err)
{
    const size_t start = c->at;
    const size_t bytes = word_bytes(c);
    const clip word = clip_of(c->line + start, bytes);
    if (!word_starts(c, "slots=")) {
        if (word_starts(c, "slots") && (bytes == 5 || c->line[start + 5] == '='))
            return FAIL_AT(c, start, "expected slots=N without blanks around the '=', for example \"slots=4\"");
        if (bytes >= 6 && strncasecmp(c->line + start, "slots=", 6) == 0)
            return FAIL_AT(c, start, "\"%s\": expected slots= in lower case", word.text);
        return FAIL_AT(c, start, "\"%s\": expected slots=N after the host, for example \"worker-0 slots=4\"",
                       word.text);
    }
    c->at += 6;
    if (!scan_number(c, slots) || (c->at < c->bytes && !is_blank(c->line[c->at]) && c->line[c->at] != '#'))
        return FAIL_AT(c, c->at, "\"%s\": expected a whole number of slots, 1 to %d", word.text, DSC_HOST_SLOTS_MAX);
    if (*slots == 0)
        return FAIL_AT(c, start, "slots=0 gives the host no rank; expected 1 to %d, or remove the line",
                       DSC_HOST_SLOTS_MAX);
    if (*slots > DSC_HOST_SLOTS_MAX)
        return FAIL_AT(c, start, "\"%s\": a host has 1 to %d slots", word.text, DSC_HOST_SLOTS_MAX);
    return DSC_OK;
}

/* Accepts after the slots: Open MPI's max_slots=M, then a comment. DeepSpeed ignores everything here, even settings
 * that have no effect. */
static dsc_status parse_rest(cursor *c, int64_t slots, dsc_error *err)
{
    skip_blanks(c);
    if (!at_end(c) && (word_starts(c, "max_slots=") || word_starts(c, "max-slots="))) {
        const size_t start = c->at;
        const size_t bytes = word_bytes(c);
        int64_t most = 0;
        c->at += 10;
        if (!scan_number(c, &most) || (c->at < c->bytes && !is_blank(c->line[c->at]) && c->line[c->at] != '#'))
            return FAIL_AT(c, c->at, "\"%s\": expected a whole number", clip_of(c->line + start, bytes).text);
        if (most < slots)
            return FAIL_AT(c, start, "max_slots=%lld is below slots=%lld", (long long)most, (long long)slots);
        skip_blanks(c);
    }
    if (!at_end(c))
        return FAIL_AT(c, c->at, "\"%s\": nothing but max_slots=N or a # comment may follow the slots",
                       clip_of(c->line + c->at, word_bytes(c)).text);
    return DSC_OK;
}

/* Bytes that a reader would not see as they are read: refused wherever they stand. Elsewhere than in a comment, control
 * bytes and non-ASCII are refused by the name and slot scanners. */
static dsc_status check_bytes(const cursor *c, dsc_error *err)
{
    if (memchr(c->line, 0, c->bytes) != NULL)
        return FAIL_AT(c, (size_t)((const char *)memchr(c->line, 0, c->bytes) - c->line),
                       "a NUL byte; this is not a text file");
    const char *cr = memchr(c->line, '\r', c->bytes);
    if (cr != NULL)
        return FAIL_AT(c, (size_t)(cr - c->line), "a carriage return inside a line; expected LF or CRLF line ends");
    return DSC_OK;
}

static dsc_status add_host(cursor *c, dsc_host_pool *pool, const dsc_host *host, size_t at, dsc_error *err)
{
    if (dsc_host_pool_find(pool, host->name) >= 0)
        return FAIL_AT(c, at, "host \"%s\" is named twice; give all its slots in one place",
                       clip_of(host->name, strlen(host->name)).text);
    if (pool->count == DSC_HOST_COUNT_MAX)
        return FAIL_AT(c, at, "more than %d hosts", DSC_HOST_COUNT_MAX);
    return dsc_host_pool_add(pool, host, err);
}

static dsc_status parse_line(cursor *c, dsc_host_pool *pool, dsc_error *err)
{
    DSC_TRY(check_bytes(c, err));
    skip_blanks(c);
    if (at_end(c))
        return DSC_OK;
    const size_t start = c->at;
    const size_t bytes = word_bytes(c);
    dsc_host host;
    const char *why = NULL;
    size_t at = 0;
    if (!dsc_host_name_scan(c->line + start, bytes, host.name, &why, &at))
        return fail_host_name(c, start, bytes, why, at, err);
    c->at += bytes;
    skip_blanks(c);
    if (at_end(c))
        return FAIL_AT(c, c->at, "host \"%s\" has no slots; expected slots=N after it, for example \"slots=4\"",
                       clip_of(host.name, strlen(host.name)).text);
    int64_t slots = 0;
    DSC_TRY(parse_slots(c, &slots, err));
    DSC_TRY(parse_rest(c, slots, err));
    dsc_host_set_slots(&host, (int32_t)slots);
    return add_host(c, pool, &host, start, err);
}

dsc_status dsc_hostfile_parse(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes, dsc_host_pool *out,
                              dsc_error *err)
{
    DSC_ASSERT(out->host == NULL);
    DSC_ASSERT(bytes >= 0);
    out->alloc = alloc;
    cursor c = { name, text, 0, 0, 0 };
    if (bytes > DSC_HOSTFILE_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "%lld bytes; a hostfile has at most %d", (long long)bytes,
                        DSC_HOSTFILE_BYTES_MAX);
    const char *end = text + bytes;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        c.line_number = 1;
        return FAIL_AT(&c, 0, "a byte order mark; save the file as plain UTF-8 without one");
    }
    while (c.line < end) {
        const char *newline = memchr(c.line, '\n', (size_t)(end - c.line));
        const char *next = newline != NULL ? newline + 1 : end;
        c.bytes = (size_t)((newline != NULL ? newline : end) - c.line);
        if (c.bytes > 0 && c.line[c.bytes - 1] == '\r')
            c.bytes--;
        c.at = 0;
        c.line_number++;
        DSC_TRY(parse_line(&c, out, err));
        c.line = next;
    }
    if (out->count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "names no host; expected lines such as \"worker-0 slots=4\"");
    return DSC_OK;
}

dsc_status dsc_hostfile_read(dsc_alloc *alloc, const char *path, dsc_host_pool *out, dsc_error *err)
{
    char *text = NULL;
    int64_t bytes = 0;
    dsc_error reason = DSC_ERROR_INIT;
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "no such hostfile; expected a file with lines such as \"worker-0 slots=4\"");
    dsc_status status = dsc_io_read_all(NULL, alloc, path, DSC_HOSTFILE_BYTES_MAX, &text, &bytes, &reason);
    if (status != DSC_OK)
        return DSC_FAIL(err, status == DSC_ERR_NOMEM ? status : DSC_ERR_INPUT, reason.where, "%s", reason.message);
    status = dsc_hostfile_parse(alloc, path, text, bytes, out, err);
    dsc_alloc_free(alloc, text);
    return status;
}

bool dsc_hostlist_looks_like_one(const char *text)
{
    if (strchr(text, '/') != NULL)
        return false;
    for (const char *part = text;; part++) {
        const char *end = part + strcspn(part, ",");
        const char *digits = end;
        while (digits > part && is_digit(digits[-1]))
            digits--;
        if (digits == end || digits - part < 2 || digits[-1] != ':')
            return false;
        if (*end == 0)
            return true;
        part = end;
    }
}

/* HOST of a list: up to the ':' that is not inside brackets. */
static size_t list_host_bytes(const cursor *c)
{
    size_t end = c->at;
    bool bracket = false;
    for (; end < c->bytes; end++) {
        const char ch = c->line[end];
        if (ch == '[' || ch == ']')
            bracket = ch == '[';
        else if (ch == ',' || (ch == ':' && !bracket))
            break;
    }
    return end - c->at;
}

dsc_status dsc_hostlist_parse(dsc_alloc *alloc, const char *flag, const char *text, dsc_host_pool *out, dsc_error *err)
{
    DSC_ASSERT(out->host == NULL);
    out->alloc = alloc;
    cursor c = { flag, text, strlen(text), 0, 0 };
    for (;;) {
        const size_t start = c.at;
        const size_t bytes = list_host_bytes(&c);
        dsc_host host;
        const char *why = NULL;
        size_t at = 0;
        if (!dsc_host_name_scan(c.line + start, bytes, host.name, &why, &at))
            return fail_host_name(&c, start, bytes, why, at, err);
        c.at += bytes;
        int64_t slots = 0;
        if (c.at == c.bytes || c.line[c.at] != ':')
            return FAIL_AT(&c, c.at, "expected :N after \"%s\", for example \"%s:4\"",
                           clip_of(host.name, strlen(host.name)).text, clip_of(host.name, strlen(host.name)).text);
        c.at++;
        if (!scan_number(&c, &slots) || (c.at < c.bytes && c.line[c.at] != ','))
            return FAIL_AT(&c, c.at, "expected a whole number of slots, 1 to %d, then ',' or the end",
                           DSC_HOST_SLOTS_MAX);
        if (slots < 1 || slots > DSC_HOST_SLOTS_MAX)
            return FAIL_AT(&c, start + bytes + 1, "a host has 1 to %d slots", DSC_HOST_SLOTS_MAX);
        dsc_host_set_slots(&host, (int32_t)slots);
        DSC_TRY(add_host(&c, out, &host, start, err));
        if (c.at == c.bytes)
            return DSC_OK;
        c.at++;
    }
}
