/* checkpoint.c - names of checkpoints, finding one, and how ranks agree on a verdict.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/unsafe_format.h"
#include "engine/checkpoint/internal.h"

/* ---- agreement ---- */

typedef struct verdict {
    dsc_status status;
    char where[sizeof ((dsc_error *)0)->where], message[sizeof ((dsc_error *)0)->message];
} verdict;

dsc_status dsc_ckpt_agree(const dsc_ckpt_ctx *c, dsc_status mine, const dsc_error *my_error, dsc_error *err)
{
    const int32_t size = dsc_comm_size(c->comm);
    verdict own = { .status = mine };
    verdict *all = (verdict *)(void *)((char *)c->buffer.ptr + c->buffer.bytes / 2);
    DSC_ASSERT((int64_t)sizeof *all * size <= c->buffer.bytes / 2);
    DSC_ASSERT(mine == DSC_OK || my_error != NULL);
    if (mine != DSC_OK) {
        memcpy(own.where, my_error->where, sizeof own.where);
        memcpy(own.message, my_error->message, sizeof own.message);
    }
    DSC_TRY(dsc_comm_all_gather(c->comm, DSC_CHANNEL_CONTROL, all, &own, (int64_t)sizeof own, DSC_U8, NULL, err));
    for (int32_t r = 0; r < size; r++) {
        if (all[r].status == DSC_OK)
            continue;
        DSC_FAIL(err, all[r].status, all[r].where, "%s", all[r].message);
        if (err != NULL)
            err->rank = r;
        return all[r].status;
    }
    return DSC_OK;
}

/* ---- finding ---- */

/* "step-" and digits only: the name can neither leave its folder nor be a hidden or temporary one. */
bool dsc_ckpt_is_step_name(const char *name)
{
    return strncmp(name, "step-", 5) == 0 && name[5] != 0 && strlen(name) <= 5 + 18 &&
           strspn(name + 5, "0123456789") == strlen(name + 5);
}

dsc_status dsc_ckpt_file_path(char path[DSC_CKPT_PATH_BYTES], const char *dir, const char *name, dsc_error *err)
{
    DSC_TRY(dsc_path_join(path, DSC_CKPT_PATH_BYTES, dir, name, err));
    if (dsc_io_is_link(path))
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "is a symbolic link; what belongs to a checkpoint lies in its folder");
    return DSC_OK;
}

/* -1 when it is none. */
int64_t dsc_ckpt_step_of(const char *dir)
{
    char name[64];
    size_t end = strlen(dir);
    while (end > 0 && dir[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/')
        start--;
    if (end - start >= sizeof name)
        return -1;
    snprintf(name, sizeof name, "%.*s", (int)(end - start), dir + start);
    return dsc_ckpt_is_step_name(name) ? strtoll(name + 5, NULL, 10) : -1;
}

dsc_status dsc_ckpt_read_latest(const dsc_io *io, dsc_alloc *alloc, const char *path, char name[64], dsc_error *err)
{
    char *text = NULL;
    int64_t bytes;
    DSC_TRY(dsc_io_read_all(io, alloc, path, 63, &text, &bytes, err));
    DSC_ASSERT(bytes < 64);
    snprintf(name, 64, "%s", text);
    dsc_alloc_free(alloc, text);
    /* One line: what follows it, or a NUL byte inside it, was not written by us. */
    const size_t line = strcspn(name, "\r\n");
    const bool whole = (int64_t)(line + strspn(name + line, "\r\n")) == bytes;
    name[line] = 0;
    if (!dsc_ckpt_is_step_name(name))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"%s\" is not of the form step-N", name);
    if (!whole)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "more than the one line \"%s\"", name);
    return DSC_OK;
}

/* Contents of a folder without a checkpoint, as far as these show what to do. */
static dsc_status refuse_other(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_TRY(dsc_foreign_refuse(io, alloc, dir, err));
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "config.json", err));
    return DSC_FAIL(err, DSC_ERR_INPUT, dir, "no checkpoint here: neither a step-N folder's manifest nor a file "
                    "\"latest\"%s", dsc_io_kind(path) == DSC_PATH_FILE ? "; a model folder is named with --model" : "");
}

/* The checkpoint that DIR/best names. */
static dsc_status find_best(const dsc_io *io, dsc_alloc *alloc, const char *path, char *out, size_t out_bytes,
                            dsc_error *err)
{
    char dir[DSC_CKPT_PATH_BYTES], found[DSC_CKPT_PATH_BYTES];
    dsc_ckpt_best best;
    const size_t bytes = strlen(path);
    DSC_ASSERT(bytes >= strlen("best"));
    const int length = snprintf(dir, sizeof dir, "%.*s", (int)(bytes - strlen("best")), path);
    if (length < 0 || (size_t)length >= sizeof dir)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
    DSC_TRY(dsc_ckpt_read_best(io, alloc, dir[0] != 0 ? dir : ".", &best, err));
    DSC_ASSERT(best.step >= 0); /* the file was there */
    DSC_TRY(dsc_ckpt_file_path(found, dir[0] != 0 ? dir : ".", best.name, err));
    if (dsc_io_kind(found) != DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, found, "named by \"best\" but not there");
    if ((size_t)snprintf(out, out_bytes, "%s", found) >= out_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
    return DSC_OK;
}

static bool is_best_file(const char *path)
{
    const size_t bytes = strlen(path);
    return bytes >= 4 && strcmp(path + bytes - 4, "best") == 0 && (bytes == 4 || path[bytes - 5] == '/') &&
           dsc_io_kind(path) == DSC_PATH_FILE;
}

dsc_status dsc_ckpt_find(const dsc_io *io, dsc_alloc *alloc, const char *dir, char *out, size_t out_bytes,
                         dsc_error *err)
{
    DSC_ASSERT(out_bytes > 0);
    char name[64], path[DSC_CKPT_PATH_BYTES];
    if (dsc_io_kind(dir) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "no such checkpoint folder");
    if (is_best_file(dir))
        return find_best(io, alloc, dir, out, out_bytes, err);
    if (dsc_io_kind(dir) == DSC_PATH_FILE)
        DSC_TRY(dsc_foreign_refuse_file(dir, err));
    DSC_TRY(dsc_path_join(path, sizeof path, dir, DSC_CKPT_MANIFEST_FILE, err));
    if (dsc_io_kind(path) != DSC_PATH_MISSING) {
        if ((size_t)snprintf(out, out_bytes, "%s", dir) >= out_bytes)
            return DSC_FAIL(err, DSC_ERR_INPUT, dir, "the path is too long");
        return DSC_OK;
    }
    DSC_TRY(dsc_ckpt_file_path(path, dir, "latest", err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return refuse_other(io, alloc, dir, err);
    dsc_status status = dsc_ckpt_read_latest(io, alloc, path, name, err);
    if (status != DSC_OK && dsc_foreign_refuse(io, alloc, dir, err) != DSC_OK)
        return DSC_ERR_UNSUPPORTED;
    DSC_TRY(status);
    DSC_TRY(dsc_ckpt_file_path(path, dir, name, err));
    if (dsc_io_kind(path) != DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "named by \"latest\" but not there");
    if ((size_t)snprintf(out, out_bytes, "%s", path) >= out_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
    return DSC_OK;
}
