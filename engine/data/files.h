/* files.h - the data files that a config names, with its patterns replaced by the files that fit them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_FILES_H
#define DSC_ENGINE_DATA_FILES_H

#include "base/alloc.h"

/* Zeroed but for alloc: empty. */
typedef struct dsc_data_files {
    dsc_alloc *alloc;
    char **path;    /* [count], owned */
    int32_t *entry; /* [count] which of the names each file comes from */
    int64_t count, room;
} dsc_data_files;

#define DSC_DATA_RANGE_MAX 100000
/* Appends a file, the files of a range {A..B} of numbers, or those of a pattern with *, ? or [...] in the order of
 * their bytes. A name that exists is not a pattern. The index of Megatron's pair is left out. DSC_ERR_INPUT: nothing
 * fits the pattern. */
DSC_MUST_USE dsc_status dsc_data_files_add(dsc_data_files *files, const char *name, int32_t entry, dsc_error *err);
void dsc_data_files_free(dsc_data_files *files);

#endif
