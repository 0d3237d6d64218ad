/* io_dir.c - folders: make, list, remove, look at. SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/io_internal.h"

#define LIST_COUNT_MAX INT64_C(1000000) /* a folder is hostile input too: bounds the memory that its names take */

dsc_status dsc_io_mkdir(const dsc_io *io, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_MKDIR, path, 0, 0, err));
    if (mkdir(path, 0755) == 0)
        return DSC_OK;
    const int reason = errno;
    if (reason == EEXIST && dsc_io_kind(path) == DSC_PATH_DIR)
        return DSC_OK;
    return dsc_io_fail(err, reason == EEXIST ? DSC_ERR_INPUT : dsc_io_path_status(reason), reason, path,
                       "cannot make the folder");
}

/* A file without a name where the file system knows such, else one with a name that nobody else has. */
dsc_status dsc_io_probe_dir(const dsc_io *io, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_OPEN, path, 0, 0, err));
    char name[64], file[4096];
    snprintf(name, sizeof name, ".dsc-probe-%ld", (long)getpid());
    DSC_TRY(dsc_path_join(file, sizeof file, path, name, err));
    int fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == EISDIR)) {
        fd = open(file, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0)
            (void)unlink(file);
    }
    if (fd < 0)
        return dsc_io_fail(err, dsc_io_path_status(errno), errno, path, "no file can be made in the folder");
    close(fd);
    return DSC_OK;
}

dsc_status dsc_io_rmdir(const dsc_io *io, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_UNLINK, path, 0, 0, err));
    return rmdir(path) == 0 ? DSC_OK : dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot remove the folder");
}

/* *name is the next entry that is no "." or "..", borrowed until the next call; NULL: there are no more. */
static dsc_status next_name(DIR *dir, const char *path, const char **name, dsc_error *err)
{
    const struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(dir);
    } while (entry != NULL && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    *name = entry != NULL ? entry->d_name : NULL;
    return entry != NULL || errno == 0 ? DSC_OK : dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot list the folder");
}

dsc_status dsc_io_make_dirs(const dsc_io *io, const char *dir, dsc_error *err)
{
    char path[4096], above[4096];
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "", err));
    snprintf(above, sizeof above, "%s", path[0] == '/' ? "/" : ".");
    for (char *slash = path + strspn(path, "/"); (slash = strchr(slash, '/')) != NULL; slash += strspn(slash, "/")) {
        *slash = 0;
        if (dsc_io_kind(path) == DSC_PATH_MISSING) {
            DSC_TRY(dsc_io_mkdir(io, path, err));
            DSC_TRY(dsc_io_fsync_dir(io, above, err));
        }
        snprintf(above, sizeof above, "%s", path);
        *slash = '/';
    }
    return dsc_io_mkdir(io, dir, err); /* its error names a file that is not a folder */
}

/* Removes every file that one pass over the folder shows. */
static dsc_status remove_files(const dsc_io *io, DIR *dir, const char *path, bool *removed, dsc_error *err)
{
    *removed = false;
    for (;;) {
        const char *name;
        DSC_TRY(next_name(dir, path, &name, err));
        if (name == NULL)
            return DSC_OK;
        char file[4096];
        DSC_TRY(dsc_path_join(file, sizeof file, path, name, err));
        DSC_TRY(dsc_io_before(io, DSC_IO_UNLINK, file, 0, 0, err));
        if (unlinkat(dirfd(dir), name, 0) != 0 && errno != ENOENT)
            return dsc_io_fail(err, DSC_ERR_IO, errno, file, "cannot remove");
        *removed = true;
    }
}

dsc_status dsc_io_remove_dir(const dsc_io *io, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_LIST, path, 0, 0, err));
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return DSC_OK;
    if (fd < 0)
        return dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot open the folder");
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        const int reason = errno;
        close(fd);
        return dsc_io_fail(err, DSC_ERR_IO, reason, path, "cannot list the folder");
    }
    /* Some file systems skip entries while others are being removed: go on until a pass finds nothing. */
    dsc_status status = DSC_OK;
    bool removed = false;
    do {
        rewinddir(dir);
        status = remove_files(io, dir, path, &removed, err);
    } while (status == DSC_OK && removed);
    closedir(dir);
    DSC_TRY(status);
    return dsc_io_rmdir(io, path, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void dsc_io_list_free(dsc_alloc *alloc, char **names, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dsc_alloc_free(alloc, names[i]);
    dsc_alloc_free(alloc, names);
}

/* Appends a copy of the name; the array doubles. */
static dsc_status add_name(dsc_alloc *alloc, const char *name, char ***names, int64_t *count, int64_t *capacity,
                           dsc_error *err)
{
    if (*count == *capacity) {
        const int64_t wider_capacity = *capacity == 0 ? 64 : *capacity * 2;
        char **wider = NULL;
        DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, wider_capacity, sizeof *wider, &wider, err));
        if (*count > 0)
            memcpy(wider, *names, (size_t)*count * sizeof *wider);
        dsc_alloc_free(alloc, *names);
        *names = wider;
        *capacity = wider_capacity;
    }
    DSC_TRY(dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, name, &(*names)[*count], err));
    (*count)++;
    return DSC_OK;
}

static dsc_status read_names(dsc_alloc *alloc, DIR *dir, const char *path, char ***names, int64_t *count,
                             dsc_error *err)
{
    int64_t capacity = 0;
    for (;;) {
        const char *name;
        DSC_TRY(next_name(dir, path, &name, err));
        if (name == NULL)
            return DSC_OK;
        if (*count == LIST_COUNT_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "more than %lld names in the folder", (long long)LIST_COUNT_MAX);
        DSC_TRY(add_name(alloc, name, names, count, &capacity, err));
    }
}

dsc_status dsc_io_list(const dsc_io *io, dsc_alloc *alloc, const char *path, char ***names, int64_t *count,
                       dsc_error *err)
{
    *names = NULL;
    *count = 0;
    DSC_TRY(dsc_io_before(io, DSC_IO_LIST, path, 0, 0, err));
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dsc_io_fail(err, dsc_io_path_status(errno), errno, path, "cannot open the folder");
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        const int reason = errno;
        close(fd);
        return dsc_io_fail(err, DSC_ERR_IO, reason, path, "cannot list the folder");
    }
    char **found = NULL;
    int64_t found_count = 0;
    const dsc_status status = read_names(alloc, dir, path, &found, &found_count, err);
    closedir(dir);
    if (status != DSC_OK) {
        dsc_io_list_free(alloc, found, found_count);
        return status;
    }
    if (found_count > 1)
        qsort(found, (size_t)found_count, sizeof *found, compare_names);
    *names = found;
    *count = found_count;
    return DSC_OK;
}

dsc_path_kind dsc_io_kind(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            return DSC_PATH_OTHER;
        /* A link to nothing is something: opening it for creation would go through it. */
        return lstat(path, &st) == 0 ? DSC_PATH_OTHER : DSC_PATH_MISSING;
    }
    return S_ISREG(st.st_mode) ? DSC_PATH_FILE : S_ISDIR(st.st_mode) ? DSC_PATH_DIR : DSC_PATH_OTHER;
}

bool dsc_io_is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

dsc_status dsc_io_refuse_input(const char *out, const char *const *inputs, int64_t count, dsc_error *err)
{
    struct stat written, read;
    if (stat(out, &written) != 0)
        return DSC_OK;
    for (int64_t i = 0; i < count; i++)
        if (inputs[i] != NULL && stat(inputs[i], &read) == 0 && read.st_dev == written.st_dev &&
            read.st_ino == written.st_ino)
            return DSC_FAIL(err, DSC_ERR_INPUT, out,
                            "the output is the input %.200s, which would be lost; give another "
                            "name for the output",
                            inputs[i]);
    return DSC_OK;
}

dsc_status dsc_io_free_bytes(const char *path, int64_t *bytes, dsc_error *err)
{
    *bytes = 0;
    struct statvfs fs;
    int failed = 0;
    do {
        failed = statvfs(path, &fs);
    } while (failed != 0 && errno == EINTR);
    if (failed != 0)
        return dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot ask for the free space");
    int64_t product = 0;
    *bytes = fs.f_bavail < (fsblkcnt_t)INT64_MAX && dsc_mul_i64((int64_t)fs.f_bavail, (int64_t)fs.f_frsize, &product)
                 ? product
                 : INT64_MAX;
    return DSC_OK;
}
