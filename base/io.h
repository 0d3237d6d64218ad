/* io.h - every file operation of the engine goes through one table, so that faults can be injected and logged.
 *
 * dsc_io is a value the engine owns; a zeroed one, or NULL, is the plain system. Paths are passed as given; hostile
 * names are the caller's business (dsc_path_is_plain). All calls return DSC_ERR_IO with the path and the system's
 * reason in *err; opening, listing and making a folder return DSC_ERR_INPUT when the reason lies in the path that was
 * given: it is not there, may not be used, is not a folder. Short reads and writes are resumed inside.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_IO_H
#define DSC_BASE_IO_H

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_io_op {
    DSC_IO_OPEN, DSC_IO_READ, DSC_IO_WRITE, DSC_IO_FSYNC, DSC_IO_RENAME, DSC_IO_UNLINK, DSC_IO_MKDIR, DSC_IO_RESIZE,
    DSC_IO_CLOSE, DSC_IO_LIST, DSC_IO_RESERVE, DSC_IO_OP_COUNT
} dsc_io_op;

typedef enum dsc_io_mode {
    DSC_IO_READ_ONLY,    /* must exist */
    DSC_IO_CREATE,       /* read and write; created or truncated, mode 0644 */
    DSC_IO_CREATE_NEW,   /* fails when it exists */
    DSC_IO_READ_WRITE,   /* must exist */
    DSC_IO_APPEND        /* must exist; writes go to its end whatever their offset, whole among those of others */
} dsc_io_mode;

/* Called before each operation; a status other than DSC_OK makes the operation fail with it (`errno_value` is put in
 * the message when not 0). For logging hooks: return DSC_OK. offset and bytes are 0 where they mean nothing; the path
 * of a rename is the new one. */
typedef struct dsc_io_hook {
    dsc_status (*before)(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value);
    void *user;
} dsc_io_hook;

struct dsc_aio_hook; /* offload/aio.h */
typedef struct dsc_io {
    dsc_io_hook hook;                  /* before = NULL: none */
    const struct dsc_aio_hook *blocks; /* asynchronous reads and writes; borrowed while files are open; or NULL */
} dsc_io;

typedef struct dsc_file {
    int fd;          /* -1: not open */
    char path[1024]; /* for messages */
} dsc_file;
#define DSC_FILE_INIT { -1, "" }

/* Regular files only: a folder, pipe or device is DSC_ERR_INPUT, and never waited for. */
DSC_MUST_USE dsc_status dsc_io_open(const dsc_io *io, const char *path, dsc_io_mode mode, dsc_file *out,
                                    dsc_error *err);
/* A file without a name in `folder`, for its owner only, gone when it is closed or the process ends. *direct: O_DIRECT,
 * where the file system has it; offsets and buffers are whole blocks then. */
DSC_MUST_USE dsc_status dsc_io_open_unnamed(const dsc_io *io, const char *folder, dsc_file *out, bool *direct,
                                            dsc_error *err);
/* A second descriptor of an existing file. *direct: O_DIRECT, where the file system has it. */
DSC_MUST_USE dsc_status dsc_io_open_direct(const dsc_io *io, const char *path, dsc_io_mode mode, dsc_file *out,
                                           bool *direct, dsc_error *err);
/* Takes the space of the first `bytes` bytes from the disk, so that writing them cannot find it full: DSC_ERR_NOFIT
 * when there is not so much. *taken = false: the file system has no such call; who needs the space has to write it. */
DSC_MUST_USE dsc_status dsc_io_reserve(const dsc_io *io, dsc_file *file, int64_t bytes, bool *taken, dsc_error *err);
/* Closes and sets fd = -1; safe on a closed file. The status matters after writing. */
dsc_status dsc_io_close(const dsc_io *io, dsc_file *file, dsc_error *err);
/* Exactly `bytes` or an error: end of file before that is DSC_ERR_INPUT ("truncated"). */
DSC_MUST_USE dsc_status dsc_io_read(const dsc_io *io, dsc_file *file, void *to, int64_t bytes, int64_t offset,
                                    dsc_error *err);
/* These bytes will be read soon: the system may begin. */
void dsc_io_expect(const dsc_file *file, int64_t bytes, int64_t offset);
DSC_MUST_USE dsc_status dsc_io_write(const dsc_io *io, dsc_file *file, const void *from, int64_t bytes, int64_t offset,
                                     dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_size(const dsc_io *io, dsc_file *file, int64_t *bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_resize(const dsc_io *io, dsc_file *file, int64_t bytes, dsc_error *err); /* ftruncate */
DSC_MUST_USE dsc_status dsc_io_fsync(const dsc_io *io, dsc_file *file, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_fsync_dir(const dsc_io *io, const char *path, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_rename(const dsc_io *io, const char *from, const char *to, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_unlink(const dsc_io *io, const char *path, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_mkdir(const dsc_io *io, const char *path, dsc_error *err); /* existing folder: DSC_OK */
/* The folder and those above it that are not there, each durable in the one above it. */
DSC_MUST_USE dsc_status dsc_io_make_dirs(const dsc_io *io, const char *dir, dsc_error *err);
/* Whether files can be made in a folder; none is left there. */
DSC_MUST_USE dsc_status dsc_io_probe_dir(const dsc_io *io, const char *path, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_rmdir(const dsc_io *io, const char *path, dsc_error *err); /* an empty folder */
/* Removes a folder and the plain files in it (one level; never follows links). Missing: DSC_OK. */
DSC_MUST_USE dsc_status dsc_io_remove_dir(const dsc_io *io, const char *path, dsc_error *err);
/* Names in a folder without . and .., sorted bytewise. Free with dsc_io_list_free. */
DSC_MUST_USE dsc_status dsc_io_list(const dsc_io *io, dsc_alloc *alloc, const char *path, char ***names, int64_t *count,
                                    dsc_error *err);
void dsc_io_list_free(dsc_alloc *alloc, char **names, int64_t count);
typedef enum dsc_path_kind { DSC_PATH_MISSING, DSC_PATH_FILE, DSC_PATH_DIR, DSC_PATH_OTHER } dsc_path_kind;
dsc_path_kind dsc_io_kind(const char *path);
bool dsc_io_is_link(const char *path); /* the path itself is a symbolic link */
/* Before a program writes `out`: DSC_ERR_INPUT if it is one of its inputs, also through a link. inputs[i] may be NULL.
 */
DSC_MUST_USE dsc_status dsc_io_refuse_input(const char *out, const char *const *inputs, int64_t count, dsc_error *err);
DSC_MUST_USE dsc_status dsc_io_free_bytes(const char *path, int64_t *bytes, dsc_error *err); /* statvfs of the folder */
/* Whole file into *out (owned by the caller, dsc_alloc_free, one NUL byte after the end); more than max_bytes is
 * DSC_ERR_INPUT. Only regular files are read: a pipe or a device is refused. */
DSC_MUST_USE dsc_status dsc_io_read_all(const dsc_io *io, dsc_alloc *alloc, const char *path, int64_t max_bytes,
                                        char **out, int64_t *bytes, dsc_error *err);
/* path.tmp, write, fsync, rename, fsync of the folder. */
DSC_MUST_USE dsc_status dsc_io_write_all_atomic(const dsc_io *io, const char *path, const void *from, int64_t bytes,
                                                dsc_error *err);
/* For programs, first thing: a descriptor 0, 1 or 2 that the caller closed would become one of our files, and what is
 * printed would be written into it. */
void dsc_open_standard_files(void);
/* "dir/name" into out; DSC_ERR_INPUT when it does not fit in out_bytes. */
DSC_MUST_USE dsc_status dsc_path_join(char *out, size_t out_bytes, const char *dir, const char *name, dsc_error *err);
/* True for a plain file name: no '/', not empty, ".", "..", no control bytes, at most 255 bytes. */
bool dsc_path_is_plain(const char *name);

#ifdef __cplusplus
}
#endif
#endif
