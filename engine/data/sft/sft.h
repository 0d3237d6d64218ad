/* sft.h - instruction data: formats, settings and one example of it.
 *
 * A row of a file becomes a conversation, a prompt with its completion, a text, or tokens with labels. The tokens of
 * the answers count in the loss; the others are context. A row of preferences has two examples with the same prompt.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_SFT_H
#define DSC_ENGINE_DATA_SFT_SFT_H

#include <dsc/error.h>
#include <dsc/model.h>

#include "engine/text/buffer.h"

/* In the order of precedence: the first format whose columns a row has. With dsc.dpo there is only preference, with a
 * model for labels only that, and with dsc.embedding only the last one. */
typedef enum dsc_sft_format {
    DSC_SFT_AUTO,
    DSC_SFT_MESSAGES,          /* messages: list of {role, content} */
    DSC_SFT_CONVERSATIONS,     /* conversations: list of {from, value} (ShareGPT) */
    DSC_SFT_TOKENS,            /* input_ids, labels */
    DSC_SFT_PROMPT_COMPLETION, /* prompt, completion: texts or lists of messages */
    DSC_SFT_ALPACA,            /* instruction, input, output */
    DSC_SFT_TEXT,              /* text: all of it counts */
    DSC_SFT_PREFERENCE,        /* chosen, rejected: texts or lists of messages; prompt: may be missing */
    DSC_SFT_LABELS,            /* text, text_pair, label: for a model with labels alone */
    DSC_SFT_TEXTS,             /* anchor, positive, negatives, score: for a model that makes vectors alone */
    DSC_SFT_FORMAT_COUNT
} dsc_sft_format;
const char *dsc_sft_format_text(dsc_sft_format format); /* "messages", as the config spells it */

typedef enum dsc_sft_column {
    DSC_SFT_COLUMN_MESSAGES,
    DSC_SFT_COLUMN_CONVERSATIONS,
    DSC_SFT_COLUMN_INPUT_IDS,
    DSC_SFT_COLUMN_LABELS,
    DSC_SFT_COLUMN_PROMPT,
    DSC_SFT_COLUMN_COMPLETION,
    DSC_SFT_COLUMN_INSTRUCTION,
    DSC_SFT_COLUMN_INPUT,
    DSC_SFT_COLUMN_OUTPUT,
    DSC_SFT_COLUMN_TEXT,
    DSC_SFT_COLUMN_SYSTEM,
    DSC_SFT_COLUMN_TOOLS,
    DSC_SFT_COLUMN_CHOSEN,
    DSC_SFT_COLUMN_REJECTED,
    DSC_SFT_COLUMN_TEXT_PAIR,
    DSC_SFT_COLUMN_LABEL,
    DSC_SFT_COLUMN_NEGATIVE,
    DSC_SFT_COLUMN_COUNT
} dsc_sft_column;

/* Which example of a row. Only rows of preferences have two. */
typedef enum dsc_sft_side { DSC_SFT_ONLY, DSC_SFT_CHOSEN, DSC_SFT_REJECTED } dsc_sft_side;
const char *dsc_sft_side_text(dsc_sft_side side); /* "chosen" */

#define DSC_SFT_ROLES_MAX 8
#define DSC_SFT_ROLE_BYTES 64   /* size of a role's name with its NUL */
#define DSC_SFT_TEXT_BYTES 1024 /* size of a path or a prompt of the config with its NUL */

/* "dsc.sft". */
typedef struct dsc_sft_section {
    bool enabled; /* the section is there */
    dsc_sft_format format;
    char column[DSC_SFT_COLUMN_COUNT][128]; /* "": the column's own name */
    char train_on[DSC_SFT_ROLES_MAX][DSC_SFT_ROLE_BYTES]; /* roles whose messages count */
    int train_on_count;                     /* 0: assistant */
    char system[DSC_SFT_TEXT_BYTES];        /* for conversations without a system message */
    char template_file[DSC_SFT_TEXT_BYTES]; /* "": the model folder's template */
    bool end_token, packing, drop_long;
    bool pairs; /* the config has dsc.dpo: rows are preferences, and are not packed */
    dsc_labels labels; /* the model's labels; rows with labels are not packed; names are borrowed */
    bool unlabeled;    /* only texts of such rows are read */
    /* Prompts of texts that are compared: before the first and before the others. Their columns are TEXT, TEXT_PAIR,
     * NEGATIVE and LABEL, which is the score. */
    char prompt[2][DSC_SFT_TEXT_BYTES];
} dsc_sft_section;
#define DSC_SFT_SECTION_INIT { .end_token = true, .packing = true }

#define DSC_TEXTS_MAX 64 /* texts of a row that are compared */

/* Words of 32 bits that the labels of a sample take. */
static inline int64_t dsc_label_words(const dsc_labels *labels)
{
    if (labels->tokens > 0)
        return labels->tokens;
    if (dsc_label_kind_pairs(labels->kind))
        return 2; /* place and score */
    return labels->kind == DSC_LABELS_NONE ? 0 : labels->kind == DSC_LABELS_CLASS ? 1 : labels->count;
}

/* Name of a column. */
const char *dsc_sft_column_name(const dsc_sft_section *section, dsc_sft_column column);
bool dsc_sft_role_counts(const dsc_sft_section *section, const char *role);

#endif
