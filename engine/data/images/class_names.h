/* class_names.h - names of classes in a text, one a line in their order, as `dsc data images` writes them beside a
 * packed file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_CLASS_NAMES_H
#define DSC_ENGINE_DATA_IMAGES_CLASS_NAMES_H

#include "base/io.h"

/* Zeroed but for alloc: none. */
typedef struct dsc_class_names {
    dsc_alloc *alloc;
    char *text;
    const char **name; /* [count] */
    int64_t count;
} dsc_class_names;

/* DSC_ERR_INPUT: an empty line, or no line at all. */
DSC_MUST_USE dsc_status dsc_class_names_read(const dsc_io *io, const char *path, dsc_class_names *out, dsc_error *err);
/* DSC_ERR_INPUT unless class i of `names` is that of `others` [count] for all; NULL: anything is. */
DSC_MUST_USE dsc_status dsc_class_names_compare(const dsc_class_names *names, const char *const *others, int64_t count,
                                                const char *path, dsc_error *err);
void dsc_class_names_free(dsc_class_names *names);

#endif
