/* io_internal.h - what the files of base/io*.c share. Only they include it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_IO_INTERNAL_H
#define DSC_BASE_IO_INTERNAL_H

#include "base/io.h"

/* "path: what: system's reason" */
dsc_status dsc_io_fail(dsc_error *err, dsc_status status, int errno_value, const char *path, const char *what);
/* DSC_ERR_INPUT for a reason that lies in the path as it was given (it is not there, not allowed, not what it should
 * be), DSC_ERR_IO for one that lies in the machine. */
dsc_status dsc_io_path_status(int errno_value);
/* Asks the hook. */
dsc_status dsc_io_before(const dsc_io *io, dsc_io_op op, const char *path, int64_t offset, int64_t bytes,
                         dsc_error *err);
/* Like dsc_io_read, but the end of the file is no error: *got says how many bytes came. */
dsc_status dsc_io_read_some(const dsc_io *io, dsc_file *file, void *to, int64_t bytes, int64_t offset, int64_t *got,
                            dsc_error *err);

#endif
