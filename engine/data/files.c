/* files.c - see files.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/files.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"

static dsc_status add_one(dsc_data_files *files, const char *path, int32_t entry, dsc_error *err)
{
    if (files->count == files->room) {
        dsc_data_files more = { .alloc = files->alloc, .count = files->count, .room = 2 * files->room + 64 };
        DSC_TRY(dsc_alloc_zeroed(files->alloc, DSC_TAG_CONTROL, more.room, sizeof *more.path, &more.path, err));
        const dsc_status status =
            dsc_alloc_zeroed(files->alloc, DSC_TAG_CONTROL, more.room, sizeof *more.entry, &more.entry, err);
        if (status != DSC_OK) {
            dsc_alloc_free(files->alloc, more.path);
            return status;
        }
        if (files->count > 0) {
            memcpy(more.path, files->path, (size_t)files->count * sizeof *more.path);
            memcpy(more.entry, files->entry, (size_t)files->count * sizeof *more.entry);
        }
        dsc_alloc_free(files->alloc, files->path);
        dsc_alloc_free(files->alloc, files->entry);
        *files = more;
    }
    const int64_t bytes = (int64_t)strlen(path) + 1;
    DSC_TRY(dsc_alloc_zeroed(files->alloc, DSC_TAG_CONTROL, bytes, 1, &files->path[files->count], err));
    memcpy(files->path[files->count], path, (size_t)bytes);
    files->entry[files->count++] = entry;
    return DSC_OK;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* PREFIX.idx with PREFIX.bin among the sorted names: both are one token file. */
static bool is_index_of_another(const glob_t *found, const char *path)
{
    char data[4096];
    const size_t bytes = strlen(path);
    if (bytes < 4 || bytes >= sizeof data || strcmp(path + bytes - 4, ".idx") != 0)
        return false;
    memcpy(data, path, bytes - 4);
    memcpy(data + bytes - 4, ".bin", 5);
    const char *key = data;
    return bsearch(&key, found->gl_pathv, found->gl_pathc, sizeof *found->gl_pathv, by_bytes) != NULL;
}

/* A range {A..B} of numbers in a name, as in shard-{000000..000146}.tar. */
typedef struct name_range {
    const char *begin, *end; /* the text with its braces */
    int64_t first, last;
    int digits; /* of A: numbers have at least so many */
} name_range;

static bool find_range(const char *name, name_range *out)
{
    for (const char *at = strchr(name, '{'); at != NULL; at = strchr(at + 1, '{')) {
        const size_t digits = strspn(at + 1, "0123456789"), more = strspn(at + 1 + digits, ".");
        const char *second = at + 1 + digits + more;
        const size_t last = strspn(second, "0123456789");
        if (digits < 1 || digits > 9 || more != 2 || last < 1 || last > 9 || second[last] != '}')
            continue;
        *out =
            (name_range) { at, second + last + 1, strtoll(at + 1, NULL, 10), strtoll(second, NULL, 10), (int)digits };
        return true;
    }
    return false;
}

static dsc_status add_range(dsc_data_files *files, const char *name, const name_range *range, int32_t entry,
                            dsc_error *err)
{
    char each[4096];
    if (range->first > range->last || range->last - range->first >= DSC_DATA_RANGE_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "the range has %lld numbers; expected 1 to %d, the smaller one first",
                        (long long)(range->last - range->first + 1), DSC_DATA_RANGE_MAX);
    for (int64_t i = range->first; i <= range->last; i++) {
        const int bytes = snprintf(each, sizeof each, "%.*s%0*lld%s", (int)(range->begin - name), name, range->digits,
                                   (long long)i, range->end);
        if (bytes < 0 || bytes >= (int)sizeof each)
            return DSC_FAIL(err, DSC_ERR_INPUT, name, "a name of 4096 bytes or more");
        DSC_TRY(dsc_data_files_add(files, each, entry, err));
        if (files->count > DSC_DATA_RANGE_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, name, "more than %d files", DSC_DATA_RANGE_MAX);
    }
    return DSC_OK;
}

dsc_status dsc_data_files_add(dsc_data_files *files, const char *name, int32_t entry, dsc_error *err)
{
    glob_t found = { 0 };
    name_range range;
    if (find_range(name, &range) && dsc_io_kind(name) == DSC_PATH_MISSING)
        return add_range(files, name, &range, entry, err);
    if (strpbrk(name, "*?[") == NULL || dsc_io_kind(name) != DSC_PATH_MISSING)
        return add_one(files, name, entry, err);
    const int failed = glob(name, GLOB_NOSORT, NULL, &found);
    if (failed != 0)
        return DSC_FAIL(err, failed == GLOB_NOSPACE ? DSC_ERR_NOMEM : DSC_ERR_INPUT, name, "%s",
                        failed == GLOB_NOMATCH   ? "no file fits this pattern"
                        : failed == GLOB_NOSPACE ? "no memory for the files of this pattern"
                                                 : "a folder of this pattern cannot be read");
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_bytes); /* the same order in every locale */
    dsc_status status = DSC_OK;
    for (size_t i = 0; i < found.gl_pathc && status == DSC_OK; i++)
        if (!is_index_of_another(&found, found.gl_pathv[i]))
            status = add_one(files, found.gl_pathv[i], entry, err);
    globfree(&found);
    return status;
}

void dsc_data_files_free(dsc_data_files *files)
{
    for (int64_t i = 0; i < files->count; i++)
        dsc_alloc_free(files->alloc, files->path[i]);
    dsc_alloc_free(files->alloc, files->path);
    dsc_alloc_free(files->alloc, files->entry);
    *files = (dsc_data_files) { .alloc = files->alloc };
}
