/* crash_fs.h - a log of what a program did to a folder, and every state in which a loss of power may leave that folder.
 *
 * The model is POSIX's, which promises less than any real file system. Changes without fsync may survive in any subset
 * and order: each 512-byte sector of a write, the size of a file, each name that a folder gained, lost or moved.
 * fsync of a file covers its bytes and its size, not its name; fsync of a folder covers the names in it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CRASH_FS_H
#define DSC_TESTS_CRASH_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The calls of a program, after they succeeded; paths as given, outside the folder: ignored. Thread-safe. */
typedef enum cfs_op {
    CFS_CREATE,
    CFS_MKDIR,
    CFS_WRITE,
    CFS_TRUNCATE,
    CFS_FSYNC,
    CFS_RENAME,
    CFS_REMOVE,
    CFS_MARK
} cfs_op;

typedef struct cfs_log cfs_log;

/* Everything in root now is durable. Owned by the caller; aborts without memory. */
cfs_log *cfs_open(const char *root);
void cfs_close(cfs_log *log);
/* offset: of a write, the size of a truncation, the number of a mark; other: the new name of a rename. */
void cfs_note(cfs_log *log, cfs_op op, const char *path, const char *other, int64_t offset, const void *data,
              size_t bytes);
int64_t cfs_count(cfs_log *log);
/* Number of the last mark among the first `count` calls; 0: none. */
int64_t cfs_mark_before(cfs_log *log, int64_t count);

/* Writes the remains of a loss of power after `count` calls to out_dir (made anew). seed chooses among the legal
 * states: 0 is nothing that is not durable, 1 is everything. */
void cfs_crash(cfs_log *log, int64_t count, uint64_t seed, const char *out_dir);

#endif
