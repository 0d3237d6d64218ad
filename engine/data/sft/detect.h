/* detect.h - what the rows of a data file are. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_DETECT_H
#define DSC_ENGINE_DATA_SFT_DETECT_H

#include "base/io.h"
#include "engine/data/sft/sft.h"

typedef enum dsc_content {
    DSC_CONTENT_OTHER,     /* no JSON objects: a text, or tokens */
    DSC_CONTENT_DOCUMENTS, /* objects with a text each, for training on all tokens of one long text */
    DSC_CONTENT_EXAMPLES   /* instruction data */
} dsc_content;

/* By the first object of the file. `field` is the member with a document's text. Objects with a text alone are examples
 * if the config has the section dsc.sft. A file that cannot be read is OTHER. */
dsc_content dsc_sft_detect(const dsc_io *io, dsc_alloc *alloc, const char *path, const dsc_sft_section *section,
                           const char *field);

#endif
