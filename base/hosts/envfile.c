/* envfile.c - see envfile.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/hosts/envfile.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

static bool is_blank(char ch) { return ch == ' ' || ch == '\t'; }

size_t dsc_env_name_bytes(const char *text)
{
    size_t n = 0;
    while ((text[n] >= 'A' && text[n] <= 'Z') || (text[n] >= 'a' && text[n] <= 'z') || text[n] == '_' ||
           (n > 0 && text[n] >= '0' && text[n] <= '9'))
        n++;
    return n;
}

typedef struct line_at {
    const char *name; /* of the file */
    const char *text; /* without its end */
    size_t bytes;
    int64_t number;
} line_at;

/* A long file name loses its front, never the numbers. */
static const char *place(const line_at *line, size_t at, char out[256])
{
    char numbers[48];
    snprintf(numbers, sizeof numbers, ":%lld:%zu", (long long)line->number, at + 1);
    const size_t capacity = 255 - strlen(numbers), have = strlen(line->name);
    snprintf(out, 256, "%s%s", line->name + (have > capacity ? have - capacity : 0), numbers);
    return out;
}

#define FAIL_AT(line, at, ...) DSC_FAIL(err, DSC_ERR_INPUT, place((line), (at), (char[256]){ 0 }), __VA_ARGS__)

static dsc_status check_bytes(const line_at *line, dsc_error *err)
{
    for (size_t i = 0; i < line->bytes; i++) {
        const unsigned char ch = (unsigned char)line->text[i];
        if ((ch < 0x20 && ch != '\t') || ch == 0x7f)
            return FAIL_AT(line, i, "a control byte (0x%02x); expected one line NAME=VALUE for each variable", ch);
    }
    return DSC_OK;
}

/* The entry without the blanks around name and value, into out, which has room for the line. */
static dsc_status read_entry(const line_at *line, char *out, size_t *name_bytes, dsc_error *err)
{
    size_t from = 0, end = line->bytes;
    while (from < end && is_blank(line->text[from]))
        from++;
    while (end > from && is_blank(line->text[end - 1]))
        end--;
    const char *text = line->text + from;
    const char *equals = memchr(text, '=', end - from);
    char name[64];
    if (equals == NULL)
        return FAIL_AT(line, from, "expected NAME=VALUE, but there is no '='; comments begin with '#'");
    size_t bytes = (size_t)(equals - text);
    while (bytes > 0 && is_blank(text[bytes - 1]))
        bytes--;
    snprintf(name, sizeof name, "%.*s", (int)dsc_min_i64((int64_t)bytes, 60), text);
    if (strncmp(name, "export ", 7) == 0)
        return FAIL_AT(line, from, "\"%s\": write NAME=VALUE without \"export\"; no shell reads this file", name);
    if (bytes == 0 || dsc_env_name_bytes(text) != bytes)
        return FAIL_AT(line, from, "\"%s\" is not a variable's name; expected letters, digits and '_'", name);
    const char *value = equals + 1;
    while (value < text + (end - from) && is_blank(*value))
        value++;
    const size_t value_bytes = (size_t)(text + (end - from) - value);
    memcpy(out, text, bytes);
    out[bytes] = '=';
    memcpy(out + bytes + 1, value, value_bytes);
    out[bytes + 1 + value_bytes] = 0;
    *name_bytes = bytes;
    return DSC_OK;
}

static bool has_entry(const line_at *line)
{
    size_t at = 0;
    while (at < line->bytes && is_blank(line->text[at]))
        at++;
    return at < line->bytes && line->text[at] != '#';
}

static dsc_status parse_lines(line_at *line, const char *end, char *entry, dsc_envfile_fn fn, void *user,
                              dsc_error *err)
{
    while (line->text < end) {
        const char *newline = memchr(line->text, '\n', (size_t)(end - line->text));
        const char *next = newline != NULL ? newline + 1 : end;
        size_t name_bytes = 0;
        char where[256];
        line->bytes = (size_t)((newline != NULL ? newline : end) - line->text);
        if (line->bytes > 0 && line->text[line->bytes - 1] == '\r')
            line->bytes--;
        line->number++;
        DSC_TRY(check_bytes(line, err));
        if (has_entry(line)) {
            DSC_TRY(read_entry(line, entry, &name_bytes, err));
            if (fn != NULL)
                DSC_TRY(fn(user, entry, name_bytes, place(line, 0, where), err));
        }
        line->text = next;
    }
    return DSC_OK;
}

dsc_status dsc_envfile_parse(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes, dsc_envfile_fn fn,
                             void *user, dsc_error *err)
{
    char *entry = NULL;
    line_at line = { name, text, 0, 0 };
    DSC_ASSERT(bytes >= 0);
    if (bytes > DSC_ENVFILE_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "%lld bytes; a file of variables has at most %d", (long long)bytes,
                        DSC_ENVFILE_BYTES_MAX);
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        line.number = 1;
        return FAIL_AT(&line, 0, "a byte order mark; save the file as plain UTF-8 without one");
    }
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, bytes + 1, 1, &entry, err));
    const dsc_status status = parse_lines(&line, text + bytes, entry, fn, user, err);
    dsc_alloc_free(alloc, entry);
    return status;
}

/* ---- what a file may set ----------------------------------------------------------------------------------------- */

static bool is_among(const char *name, size_t bytes, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == bytes && memcmp(name, list[i], bytes) == 0)
            return true;
    return false;
}

bool dsc_env_is_launchers(const char *name, size_t bytes)
{
    static const char *const set_by_launcher[] = { "RANK",
                                                   "LOCAL_RANK",
                                                   "WORLD_SIZE",
                                                   "LOCAL_SIZE",
                                                   "LOCAL_WORLD_SIZE",
                                                   "CROSS_RANK",
                                                   "CROSS_SIZE",
                                                   "MASTER_ADDR",
                                                   "MASTER_PORT",
                                                   "DSC_JOB_TOKEN",
                                                   "DSC_LAUNCHER_PID",
                                                   "DSC_LAUNCH_TTY",
                                                   "DSC_RESTART_COUNT",
                                                   "DSC_FLIGHT",
                                                   "DSC_WORLD_CHANNEL",
                                                   "DSC_WORLD_SIZES",
                                                   "DSC_CHAOS_DISK_MS" };
    return is_among(name, bytes, set_by_launcher, DSC_COUNT(set_by_launcher));
}

typedef struct reading {
    dsc_envfile_fn fn;
    void *user;
    bool own; /* nobody but this user and root can have written it */
} reading;

static bool is_own(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && (info.st_uid == geteuid() || info.st_uid == 0) &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static dsc_status allow(void *user, const char *entry, size_t bytes, const char *where, dsc_error *err)
{
    static const char *const runs[] = { "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "GCONV_PATH", "PERL5OPT",
                                        "PYTHONSTARTUP", "PYTHONHOME", "DSC_PLUGIN_DIR" };
    static const char *const finds[] = { "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PERL5LIB" };
    const reading *r = user;
    const bool searched = is_among(entry, bytes, finds, DSC_COUNT(finds));
    const int name_bytes = (int)dsc_min_i64((int64_t)bytes, 60);
    if (dsc_env_is_launchers(entry, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "dsc-launch sets %.*s for each rank; remove the line",
                        name_bytes, entry);
    if ((strncmp(entry, "LD_", 3) == 0 && !searched) || is_among(entry, bytes, runs, DSC_COUNT(runs)))
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "a file may not set %.*s, which loads code; if you mean it, write --export %.*s=VALUE",
                        name_bytes, entry, name_bytes, entry);
    if (searched && !r->own)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "%.*s says where code is, and others may write this file; chmod go-w it, or write --export "
                        "%.*s=VALUE",
                        name_bytes, entry, name_bytes, entry);
    return r->fn != NULL ? r->fn(r->user, entry, bytes, where, err) : DSC_OK;
}

dsc_status dsc_envfile_read(dsc_alloc *alloc, const char *path, dsc_envfile_fn fn, void *user, dsc_error *err)
{
    reading r = { fn, user, is_own(path) };
    char *text = NULL;
    int64_t bytes = 0;
    dsc_error reason = DSC_ERROR_INIT;
    dsc_status status = dsc_io_read_all(NULL, alloc, path, DSC_ENVFILE_BYTES_MAX, &text, &bytes, &reason);
    if (status != DSC_OK)
        return DSC_FAIL(err, status == DSC_ERR_NOMEM ? status : DSC_ERR_INPUT, reason.where, "%s", reason.message);
    status = dsc_envfile_parse(alloc, path, text, bytes, allow, &r, err);
    dsc_alloc_free(alloc, text);
    return status;
}
