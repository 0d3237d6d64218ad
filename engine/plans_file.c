/* plans_file.c - the user's file of algorithms of matrix products and kernels of attentions, one kind of GPU a file.
 *
 * The text is that of a checkpoint: a line for card and library, then one for each product or attention. A run takes
 * the lines that its own library names too, measures the other products, and adds their lines. So a file fills up over
 * runs, and runs with the same file have the same bits. In a folder each kind of GPU and library has its own file.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/internal.h"

#define FILE_BYTES_MAX (INT64_C(4) << 20) /* about ten thousand products */

static size_t line_bytes(const char *line) { return strcspn(line, "\n"); }

static const char *next_line(const char *line)
{
    line += line_bytes(line);
    return *line != 0 ? line + 1 : line;
}

/* Bytes of a line up to its choice, which names the product or attention; 0: it is no such line. */
static size_t subject_bytes(const char *line)
{
    const size_t whole = line_bytes(line);
    for (size_t at = whole; at > 0; at--)
        if (strncmp(line + at, ": ", 2) == 0 || strncmp(line + at, " by ", 4) == 0)
            return at;
    return 0;
}

static bool same_line(const char *a, const char *b)
{
    return line_bytes(a) == line_bytes(b) && memcmp(a, b, line_bytes(a)) == 0;
}

/* The line of `text` about the same product or attention; NULL: none. */
static const char *line_about(const char *text, const char *line)
{
    const size_t bytes = subject_bytes(line);
    DSC_ASSERT(text != NULL);
    for (const char *at = text; *at != 0; at = next_line(at))
        if (subject_bytes(at) == bytes && memcmp(at, line, bytes) == 0)
            return at;
    return NULL;
}

/* The file of a folder is named by the line for card and library, of which letters, digits and dots remain. */
dsc_status dsc_engine_name_plans_file(dsc_engine *engine, char path[DSC_PLANS_PATH_BYTES], dsc_error *err)
{
    const char *named = engine->config.own.gemm_plans_file;
    size_t used = strlen(named);
    char text[DSC_PLANS_PATH_BYTES - DSC_CONFIG_TEXT - sizeof ".plans"] = "";
    int64_t bytes = 0;
    DSC_ASSERT(used < DSC_CONFIG_TEXT);
    memcpy(path, named, used + 1);
    if (used == 0 || named[used - 1] != '/')
        return DSC_OK;
    DSC_TRY(dsc_gemm_plans_get(engine->device, text, sizeof text, &bytes, err));
    for (const char *at = text; at < text + line_bytes(text); at++) {
        const bool is_letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z');
        const bool kept = is_letter || strchr("0123456789.", *at) != NULL;
        if (kept || path[used - 1] != '-')
            path[used++] = kept ? *at : '-';
    }
    memcpy(path + used, ".plans", sizeof ".plans");
    return dsc_io_make_dirs(&engine->io, named, err);
}

static dsc_status read_file(const dsc_engine *engine, const char *path, char **text, dsc_error *err)
{
    int64_t bytes = 0;
    *text = NULL;
    if (path[0] == 0 || dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(&engine->io, engine->alloc, path, FILE_BYTES_MAX, text, &bytes, err));
    if (memchr(*text, 0, (size_t)bytes) == NULL)
        return DSC_OK;
    dsc_alloc_free(engine->alloc, *text);
    *text = NULL;
    return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.gemm_plans_file",
                    "%.200s is not a file of algorithms; name one that a "
                    "run wrote, or one that does not exist yet",
                    path);
}

dsc_status dsc_engine_take_plans_file(dsc_engine *engine, const char *path, bool *found, dsc_error *err)
{
    char *text = NULL;
    int64_t others = 0;
    DSC_TRY(read_file(engine, path, &text, err));
    *found = text != NULL;
    if (text == NULL)
        return DSC_OK;
    const dsc_status status = dsc_gemm_plans_set(engine->device, text, &others, err);
    dsc_alloc_free(engine->alloc, text);
    return status;
}

/* Whether a line of the run's is not in the file. */
static bool lacks_any(const char *file, const char *now)
{
    for (const char *at = next_line(now); *at != 0; at = next_line(at)) {
        const char *other = line_about(file, at);
        if (other == NULL || !same_line(other, at))
            return true;
    }
    return false;
}

/* The run's lines, then those of the file about other products. */
static dsc_status write_both(const dsc_engine *engine, const char *path, const char *file, const char *now,
                             dsc_error *err)
{
    char *text = NULL;
    const size_t most = strlen(file) + strlen(now) + 2;
    size_t used = strlen(now);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, (int64_t)most, 1, &text, err));
    memcpy(text, now, used);
    for (const char *at = *file != 0 ? next_line(file) : file; *at != 0; at = next_line(at)) {
        if (subject_bytes(at) == 0 || line_about(now, at) != NULL)
            continue;
        memcpy(text + used, at, line_bytes(at));
        used += line_bytes(at);
        text[used++] = '\n';
        DSC_ASSERT(used < most);
    }
    const dsc_status status = dsc_io_write_all_atomic(&engine->io, path, text, (int64_t)used, err);
    dsc_alloc_free(engine->alloc, text);
    return status;
}

void dsc_engine_write_plans_file(const dsc_engine *engine, const char *path)
{
    const char *now = engine->gemm_plans;
    char *file = NULL;
    dsc_error err = DSC_ERROR_INIT;
    if (path[0] == 0)
        return;
    DSC_ASSERT(now != NULL);
    dsc_status status = read_file(engine, path, &file, &err);
    if (status == DSC_OK && file != NULL && *file != 0 && !same_line(file, now))
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "matrix products: %.200s is for \"%.*s\" and stays as it is; "
                       "this GPU and library need a file of their own (dsc.gemm_plans_file)", path,
                       (int)(line_bytes(file) < 160 ? line_bytes(file) : 160), file);
    else if (status == DSC_OK && lacks_any(file != NULL ? file : "", now))
        status = write_both(engine, path, file != NULL ? file : "", now, &err);
    if (status != DSC_OK)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "matrix products: their algorithms are not in %.200s: %.300s",
                       path, err.message);
    dsc_alloc_free(engine->alloc, file);
}
