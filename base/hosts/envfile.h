/* envfile.h - a file of environment variables, as DeepSpeed's .deepspeed_env: one NAME=VALUE a line.
 *
 *   line := blank | '#' anything | NAME '=' VALUE
 *
 * Blanks around the line, the name and the value are dropped; what is left of the value is taken as it is, quotes
 * included. Lines may end in CRLF. The text is hostile: control characters (except tabs), invalid names, and files
 * that are too long are refused with their position. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_HOSTS_ENVFILE_H
#define DSC_BASE_HOSTS_ENVFILE_H

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_ENVFILE_BYTES_MAX = 1024 * 1024 };

/* Called for each variable in order; another status than DSC_OK ends the parse with it. `entry` is "NAME=VALUE",
 * name_bytes the length of NAME; borrowed. `where` is "FILE:LINE". */
typedef dsc_status (*dsc_envfile_fn)(void *user, const char *entry, size_t name_bytes, const char *where,
                                     dsc_error *err);

/* `name` starts the `where` of every error. fn may be NULL: the file is only checked. */
DSC_MUST_USE dsc_status dsc_envfile_parse(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                                          dsc_envfile_fn fn, void *user, dsc_error *err);
/* Reads and parses the file, and refuses names that a file may not set, because input must not run code. Refused are
 * names that dsc-launch sets for ranks, and names that make programs load or run other code (LD_PRELOAD, BASH_ENV,
 * ...). Search paths of code (PATH, LD_LIBRARY_PATH, PYTHONPATH) are refused if a user other than this one and root
 * owns the file or may write to it. A file that does not exist or cannot be read is DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_envfile_read(dsc_alloc *alloc, const char *path, dsc_envfile_fn fn, void *user,
                                         dsc_error *err);

/* Length of the NAME that text begins with: a letter or '_', then letters, digits, '_'. 0: none. */
size_t dsc_env_name_bytes(const char *text);
/* True for names that every rank gets from dsc-launch, which nobody else may set. */
bool dsc_env_is_launchers(const char *name, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
