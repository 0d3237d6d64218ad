/* fuzz_folder.h - a folder of which one file holds each input in turn, in memory, for targets that read folders. It is
 * made once: most of an execution would go into it. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_FUZZ_FOLDER_H
#define TESTS_FUZZ_FUZZ_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/io.h"

typedef struct fuzz_folder {
    char dir[32], input[64]; /* input: the path of that file, a link to the memory */
    int fd;
} fuzz_folder;

/* `name`: of the input. */
static inline void fuzz_folder_open(fuzz_folder *f, const char *name)
{
    char target[64];
    *f = (fuzz_folder){ .dir = "/tmp/dsc_fuzz_XXXXXX", .fd = memfd_create("fuzz", MFD_CLOEXEC) };
    snprintf(target, sizeof target, "/proc/self/fd/%d", f->fd);
    DSC_ASSERT(f->fd >= 0 && mkdtemp(f->dir) != NULL);
    DSC_ASSERT(dsc_path_join(f->input, sizeof f->input, f->dir, name, NULL) == DSC_OK);
    DSC_ASSERT(symlink(target, f->input) == 0);
}

static inline void fuzz_folder_set(const fuzz_folder *f, const void *data, size_t bytes)
{
    DSC_ASSERT(ftruncate(f->fd, 0) == 0);
    DSC_ASSERT(pwrite(f->fd, data, bytes, 0) == (ssize_t)bytes);
}

/* Another file, the same for every input. */
static inline void fuzz_folder_write(const fuzz_folder *f, const char *name, const void *data, size_t bytes)
{
    char path[256];
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(dsc_path_join(path, sizeof path, f->dir, name, NULL) == DSC_OK);
    DSC_ASSERT(dsc_io_open(NULL, path, DSC_IO_CREATE, &file, NULL) == DSC_OK);
    DSC_ASSERT(dsc_io_write(NULL, &file, data, (int64_t)bytes, 0, NULL) == DSC_OK);
    DSC_ASSERT(dsc_io_close(NULL, &file, NULL) == DSC_OK);
}

static inline void fuzz_folder_close(fuzz_folder *f)
{
    unlink(f->input);
    (void)!dsc_io_remove_dir(NULL, f->dir, NULL); /* the process ends */
    close(f->fd);
}

#endif
