/* io_internal.h - declarations that base/io*.c share. Only these files include it. SPDX-License-Identifier: Apache-2.0
 * */
#ifndef DSC_BASE_IO_INTERNAL_H
#define DSC_BASE_IO_INTERNAL_H

#include "base/io.h"

/* "path: what: system's reason" */
dsc_status dsc_io_fail(dsc_error *err, dsc_status status, int errno_value, const char *path, const char *what);
/* DSC_ERR_INPUT for a fault of the given path (missing, not allowed, of another kind), DSC_ERR_IO for a fault of the
 * machine. */
dsc_status dsc_io_path_status(int errno_value);
/* Asks the hook. */
dsc_status dsc_io_before(const dsc_io *io, dsc_io_op op, const char *path, int64_t offset, int64_t bytes,
                         dsc_error *err);
/* As dsc_io_read, but the end of the file is not an error: *got is the number of bytes read. */
dsc_status dsc_io_read_some(const dsc_io *io, dsc_file *file, void *to, int64_t bytes, int64_t offset, int64_t *got,
                            dsc_error *err);

#endif
