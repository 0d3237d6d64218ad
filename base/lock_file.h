/* lock_file.h - a file that one holder at a time has: processes, ranks of one process, hosts of a shared folder.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_LOCK_FILE_H
#define DSC_BASE_LOCK_FILE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_lock_file {
    int fd; /* -1: not held */
    char path[1024];
} dsc_lock_file;
#define DSC_LOCK_FILE_INIT { -1, "" }

/* Makes the file and waits until no one else holds it. A holder that dies holds it no longer. Its folder is not there
 * or may not be written, or its file system knows no locks: DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_lock_file_take(const char *path, dsc_lock_file *out, dsc_error *err);
/* Removes the file; safe on one that is not held. */
void dsc_lock_file_give(dsc_lock_file *lock);

#ifdef __cplusplus
}
#endif
#endif
