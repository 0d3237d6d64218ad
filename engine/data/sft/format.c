/* format.c - names of formats and columns, and the format of a row. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/data/sft/row.h"

const char *dsc_sft_format_text(dsc_sft_format format)
{
    static const char *const names[DSC_SFT_FORMAT_COUNT] = { "auto",   "messages",          "conversations",
                                                             "tokens", "prompt_completion", "alpaca",
                                                             "text",   "preference",        "labels",
                                                             "texts" };
    DSC_ASSERT(format < DSC_SFT_FORMAT_COUNT);
    return names[format];
}

const char *dsc_sft_column_name(const dsc_sft_section *section, dsc_sft_column column)
{
    static const char *const names[DSC_SFT_COLUMN_COUNT] = { "messages", "conversations", "input_ids",   "labels",
                                                             "prompt",   "completion",    "instruction", "input",
                                                             "output",   "text",          "system",      "tools",
                                                             "chosen",   "rejected",      "text_pair",   "label",
                                                             "negative" };
    DSC_ASSERT(column < DSC_SFT_COLUMN_COUNT);
    return section->column[column][0] != 0 ? section->column[column] : names[column];
}

const char *dsc_sft_side_text(dsc_sft_side side)
{
    return side == DSC_SFT_CHOSEN ? "chosen" : side == DSC_SFT_REJECTED ? "rejected" : "";
}

bool dsc_sft_role_counts(const dsc_sft_section *section, const char *role)
{
    if (section->train_on_count == 0)
        return strcmp(role, "assistant") == 0;
    for (int i = 0; i < section->train_on_count; i++)
        if (strcmp(section->train_on[i], role) == 0)
            return true;
    return false;
}

static bool has(const dsc_sft_section *section, const cJSON *row, dsc_sft_column column)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(row, dsc_sft_column_name(section, column));
    return value != NULL && !cJSON_IsNull(value);
}

/* Columns of a row, for messages. */
static void list_columns(const cJSON *row, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (const cJSON *each = row->child; each != NULL && used + 40 < out_bytes; each = each->next)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%.32s", used > 0 ? ", " : "", each->string);
}

dsc_status dsc_sft_find_format(const dsc_sft_section *section, const char *where, const cJSON *row,
                               dsc_sft_format *out, dsc_error *err)
{
    const bool pairs = has(section, row, DSC_SFT_COLUMN_CHOSEN) && has(section, row, DSC_SFT_COLUMN_REJECTED);
    char columns[200];
    *out = dsc_label_kind_pairs(section->labels.kind) ? DSC_SFT_TEXTS
           : section->labels.kind != DSC_LABELS_NONE  ? DSC_SFT_LABELS
                                                      : section->format;
    if (section->labels.kind != DSC_LABELS_NONE)
        return DSC_OK;
    if (section->format != DSC_SFT_AUTO)
        return DSC_OK;
    if (section->pairs)
        *out = pairs ? DSC_SFT_PREFERENCE : DSC_SFT_AUTO;
    else if (has(section, row, DSC_SFT_COLUMN_MESSAGES))
        *out = DSC_SFT_MESSAGES;
    else if (has(section, row, DSC_SFT_COLUMN_CONVERSATIONS))
        *out = DSC_SFT_CONVERSATIONS;
    else if (has(section, row, DSC_SFT_COLUMN_INPUT_IDS))
        *out = DSC_SFT_TOKENS;
    else if (has(section, row, DSC_SFT_COLUMN_PROMPT) && has(section, row, DSC_SFT_COLUMN_COMPLETION))
        *out = DSC_SFT_PROMPT_COMPLETION;
    else if (has(section, row, DSC_SFT_COLUMN_INSTRUCTION) && has(section, row, DSC_SFT_COLUMN_OUTPUT))
        *out = DSC_SFT_ALPACA;
    else if (has(section, row, DSC_SFT_COLUMN_TEXT))
        *out = DSC_SFT_TEXT;
    else if (pairs)
        *out = DSC_SFT_PREFERENCE;
    if (*out != DSC_SFT_AUTO)
        return DSC_OK;
    list_columns(row, columns, sizeof columns);
    if (section->pairs)
        return DSC_FAIL(err, DSC_ERR_INPUT, where,
                        "the row has the columns %s; with dsc.dpo expected chosen and rejected: name yours in "
                        "dsc.sft.columns, or remove dsc.dpo",
                        columns[0] != 0 ? columns : "none");
    return DSC_FAIL(
        err, DSC_ERR_INPUT, where,
        "columns without a known format: %s; expected messages, conversations, "
        "prompt and completion, instruction and output, input_ids, text, or chosen and rejected: name yours in "
        "dsc.sft.columns",
        columns[0] != 0 ? columns : "none");
}
