/* detect.c - see detect.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/detect.h"

#include <string.h>

#include "engine/data/sft/records.h"
#include "engine/data/sft/row.h"
#include "engine/text/content.h"

/* A table without known columns has documents: their reader names the column that is missing. */
static dsc_rows rows_of(const cJSON *row, bool table, const dsc_sft_section *section, const char *field)
{
    dsc_sft_format format = DSC_SFT_AUTO;
    const bool documents = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(row, field != NULL ? field : "text"));
    if (section->enabled || section->pairs)
        return DSC_ROWS_EXAMPLES;
    if (documents && field != NULL)
        return DSC_ROWS_DOCUMENTS;
    if (dsc_sft_find_format(section, "", row, &format, NULL) == DSC_OK && format != DSC_SFT_TEXT)
        return DSC_ROWS_EXAMPLES;
    return documents || table || format == DSC_SFT_TEXT ? DSC_ROWS_DOCUMENTS : DSC_ROWS_EXAMPLES;
}

dsc_rows dsc_sft_detect(const dsc_io *io, dsc_alloc *alloc, const char *path, const dsc_sft_section *section,
                           const char *field)
{
    dsc_records *records = NULL;
    const cJSON *row = NULL;
    dsc_content content;
    if (dsc_content_detect(io, path, field != NULL ? field : "text", &content, NULL) != DSC_OK ||
        (content.kind != DSC_CONTENT_JSON_LINES && content.kind != DSC_CONTENT_JSON_LIST &&
         content.kind != DSC_CONTENT_TABLE) ||
        dsc_records_open(io, alloc, path, &records, NULL) != DSC_OK)
        return DSC_ROWS_NONE;
    /* An invalid first object is reported by who reads the file. */
    const bool read = dsc_records_next(records, &row, NULL) == DSC_OK && row != NULL;
    const dsc_rows rows = read ? rows_of(row, content.kind == DSC_CONTENT_TABLE, section, field) : DSC_ROWS_DOCUMENTS;
    dsc_records_close(&records);
    return rows;
}
