/* detect.h - format of the rows of a data file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_DETECT_H
#define DSC_ENGINE_DATA_SFT_DETECT_H

#include "base/io.h"
#include "engine/data/sft/sft.h"

typedef enum dsc_rows {
    DSC_ROWS_NONE,      /* no JSON objects: a text, a table, or tokens */
    DSC_ROWS_DOCUMENTS, /* objects with a text each, for training on all tokens of one long text */
    DSC_ROWS_EXAMPLES   /* instruction data */
} dsc_rows;

/* By the first object of the file. `field` is the member with a document's text, NULL: not given. Objects with a text
 * alone are examples if the config has the section dsc.sft. A file that cannot be read has none. */
dsc_rows dsc_sft_detect(const dsc_io *io, dsc_alloc *alloc, const char *path, const dsc_sft_section *section,
                           const char *field);

#endif
