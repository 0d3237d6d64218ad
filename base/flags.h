/* flags.h - one command line as a const table: its flags, its positional arguments and its help page.
 *
 * '-' and '_' are equal inside a long flag. A value follows as "--flag value" or "--flag=value"; the last of two equal
 * flags counts. Nothing is printed: errors are values, and the help page is a text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FLAGS_H
#define DSC_BASE_FLAGS_H

#include <dsc/error.h>

typedef enum dsc_flag_kind {
    DSC_FLAG_BOOL,    /* bool: true; takes no value */
    DSC_FLAG_INTEGER, /* int64_t in [min, max] */
    DSC_FLAG_NUMBER,  /* double in [low, high] */
    DSC_FLAG_TEXT,    /* const char *, into argv */
    DSC_FLAG_CHOICE,  /* const char *, one of `choices` */
    DSC_FLAG_LIST,    /* dsc_flag_list: each use adds one text */
    DSC_FLAG_CALL,    /* `set` reads the value */
    DSC_FLAG_SWITCH   /* `set` is called; takes no value, so the value is "" */
} dsc_flag_kind;

/* Texts in argv. The caller owns the array and sets its capacity before the parse. */
typedef struct dsc_flag_list {
    const char **text;
    int32_t count, capacity;
} dsc_flag_list;

typedef struct dsc_flag dsc_flag;

/* Reads the value of a flag into the struct of the command. Returns an error with the flag's name as its place. */
typedef dsc_status (*dsc_flag_fn)(void *out, const dsc_flag *flag, const char *value, dsc_error *err);

struct dsc_flag {
    const char *name;    /* with its dashes, as the help page shows it */
    const char *alias;   /* second spelling such as "-o", or NULL */
    const char *value;   /* name of the value in messages and on the page; NULL: takes none */
    dsc_flag_kind kind;
    size_t offset;       /* byte offset of the field in the command's struct; unused by SWITCH and CALL */
    const char *help;    /* one sentence without a full stop; NULL: not on the page */
    int64_t min, max;
    double low, high;
    const char *const *choices; /* ends with NULL */
    dsc_flag_fn set;
    const char *key;     /* free for `set`, such as a key of the config */
    bool required;
    bool allow_empty;    /* TEXT: "" is a value */
    bool greedy;         /* CALL and LIST: "--flag A B" gives all texts up to the next flag */
};

/* Positional arguments in their order. */
typedef struct dsc_positional {
    const char *name;   /* "FILE" */
    const char *help;
    const char *kind;   /* for the message about too many: "one file at a time" needs "file" */
    size_t offset;      /* max 1: of a const char *, else of a dsc_flag_list whose capacity is the limit */
    int32_t min, max;   /* max 0: any number; only the last row may have a max other than 1 */
} dsc_positional;

/* Further rows whose offsets count from `offset`, for flags that several commands share. */
typedef struct dsc_flag_group {
    const dsc_flag *flags;
    size_t count, offset;
} dsc_flag_group;

typedef struct dsc_flag_command {
    const char *name;        /* "dsc plan" */
    const char *description; /* one or two sentences */
    const dsc_flag *flags;
    size_t flag_count;
    const dsc_positional *positionals;
    size_t positional_count;
    dsc_flag_group shared;
    const char *notes;       /* paragraph at the end of the page, or NULL */
    const char *exit_codes;  /* after "exit codes: "; NULL: the usual three */
} dsc_flag_command;

/* Parses argv[1..argc-1] into `out`, a struct with defaults already set. *help becomes true at --help or -h; the rest
 * of the line is then not read and nothing is required. Texts in `out` point into argv or into the table.
 * DSC_ERR_INPUT: an unknown flag (with the nearest one), a wrong or missing value, a missing or surplus argument. */
DSC_MUST_USE dsc_status dsc_flags_parse(const dsc_flag_command *command, int argc, char **argv, void *out, bool *help,
                                        dsc_error *err);

/* True when `text` is the long flag or short flag `name`, '-' and '_' being equal; `bytes` of text. */
bool dsc_flag_is(const char *text, size_t bytes, const char *name);

/* Writes the help page: usage, description, arguments, flags, notes, exit codes. Lines have at most 100 columns.
 * Returns the bytes of the whole page without its end, as snprintf does; the page is cut when it does not fit. */
size_t dsc_flags_help(const dsc_flag_command *command, char *out, size_t out_bytes);

/* A whole number from decimal digits with an optional sign; false outside [min, max] or when other text follows. */
bool dsc_flag_integer(const char *text, int64_t min, int64_t max, int64_t *out);

#endif
