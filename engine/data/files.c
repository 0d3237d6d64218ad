/* files.c - see files.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/files.h"

#include <glob.h>
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

dsc_status dsc_data_files_add(dsc_data_files *files, const char *name, int32_t entry, dsc_error *err)
{
    glob_t found = { 0 };
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
