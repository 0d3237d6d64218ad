/* classify_pictures.h - what a model says about pictures: the part of `dsc classify` for models that see some.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_CLASSIFY_PICTURES_H
#define DSC_TOOLS_CLASSIFY_PICTURES_H

#include <dsc/error.h>

#include "base/base.h"

typedef struct classify_pictures {
    const char *model, *device; /* as in dsc_infer_options */
    const char *const *paths;   /* [path_count] pictures, folders, or what training reads */
    int32_t path_count;
    int64_t threads, top; /* classes of each picture */
    const char *grid;     /* a PNG file of the first pictures; NULL: none */
    int64_t show;         /* pictures that are printed as text, instead of a line for each; 0: none */
    bool bf16;
} classify_pictures;

/* The model sees pictures: *out. */
DSC_MUST_USE dsc_status classify_sees_pictures(const char *model, bool *out, dsc_error *err);
/* Prints a JSON object for each picture, and the accuracy to stderr where classes are known. */
DSC_MUST_USE dsc_status classify_pictures_run(const classify_pictures *options, dsc_error *err);

#endif
