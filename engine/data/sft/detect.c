/* detect.c - see detect.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/detect.h"

#include <string.h>

#include "engine/data/sft/records.h"
#include "engine/data/sft/row.h"

static dsc_content content_of(const cJSON *row, const dsc_sft_section *section, const char *field)
{
    dsc_sft_format format = DSC_SFT_AUTO;
    const bool documents = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(row, field));
    if (section->enabled)
        return DSC_CONTENT_EXAMPLES;
    if (documents && strcmp(field, "text") != 0) /* the config names it */
        return DSC_CONTENT_DOCUMENTS;
    if (dsc_sft_find_format(section, "", row, &format, NULL) == DSC_OK && format != DSC_SFT_TEXT)
        return DSC_CONTENT_EXAMPLES;
    return documents || format == DSC_SFT_TEXT ? DSC_CONTENT_DOCUMENTS : DSC_CONTENT_EXAMPLES;
}

dsc_content dsc_sft_detect(const dsc_io *io, dsc_alloc *alloc, const char *path, const dsc_sft_section *section,
                           const char *field)
{
    dsc_records *records = NULL;
    const cJSON *row = NULL;
    if (dsc_records_detect(io, alloc, path) == DSC_RECORDS_NONE ||
        dsc_records_open(io, alloc, path, &records, NULL) != DSC_OK)
        return DSC_CONTENT_OTHER;
    /* An invalid first object is reported by who reads the file. */
    const bool read = dsc_records_next(records, &row, NULL) == DSC_OK && row != NULL;
    const dsc_content content = read ? content_of(row, section, field) : DSC_CONTENT_DOCUMENTS;
    dsc_records_close(&records);
    return content;
}
