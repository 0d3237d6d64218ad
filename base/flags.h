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
    DSC_FLAG_INT32,   /* int32_t in [min, max] */
    DSC_FLAG_NUMBER,  /* double in [low, high] */
    DSC_FLAG_TEXT,    /* const char *, into argv */
    DSC_FLAG_CHOICE,  /* const char *, one of `choices` */
    DSC_FLAG_LIST,    /* dsc_flag_list: each use adds one text */
    DSC_FLAG_CALL,    /* `set` reads the value */
    DSC_FLAG_SWITCH,  /* `set` is called; takes no value, so the value is "" */
    DSC_FLAG_REFUSED  /* known, but DSC_ERR_UNSUPPORTED with `help` as its message; a value is not looked at */
} dsc_flag_kind;

/* Texts in argv. The caller owns the array and sets its capacity before the parse. */
typedef struct dsc_flag_list {
    const char **text;
    int32_t count, capacity;
} dsc_flag_list;

/* A program and its arguments, at the end of argv and ending with NULL as argv does; argc 0: no program. */
typedef struct dsc_flag_program {
    char **argv;
    int argc;
} dsc_flag_program;

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
    const char *above;   /* INTEGER, INT32: what to do instead of a number above max, for the message; or NULL */
    const char *key;     /* free for `set`, such as a key of the config */
    bool required;
    bool allow_empty;    /* TEXT: "" is a value */
    bool greedy;         /* CALL and LIST: "--flag A B" gives all texts up to the next flag */
    bool minus_one;      /* INT32: -1 is a value too, whatever min is */
    bool ends;           /* BOOL: the rest of the line is not read and nothing is required, as after --help */
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
    const char *usage;       /* text after the name in the first line, or NULL: all arguments and flags */
    const dsc_flag *flags;
    size_t flag_count;
    const dsc_positional *positionals;
    size_t positional_count;
    bool ends_at_program;    /* flags end at the first other argument or at "--"; the rest is the only positional, and
                              * its offset is of a dsc_flag_program */
    dsc_flag_group shared;
    bool strict_values;      /* as argparse: a text that looks like a flag is not a value of the flag before it, unless
                              * '=' joins the two or the text has a blank */
    const char *notes;       /* text at the end of the page, or NULL; a line that begins with a blank is not wrapped */
    const char *exit_codes;  /* after "exit codes: "; NULL: the usual three */
} dsc_flag_command;

/* Parses argv[1..argc-1] into `out`, a struct with defaults already set. *help becomes true at --help or -h; the rest
 * of the line is then not read and nothing is required. Texts in `out` point into argv or into the table.
 * DSC_ERR_INPUT: an unknown flag (with the nearest one), a wrong or missing value, a missing or surplus argument.
 * DSC_ERR_UNSUPPORTED: a REFUSED flag. The place of an error is the flag as the user spelled it. */
DSC_MUST_USE dsc_status dsc_flags_parse(const dsc_flag_command *command, int argc, char **argv, void *out, bool *help,
                                        dsc_error *err);

/* True when `text` is the long flag or short flag `name`, '-' and '_' being equal; `bytes` of text. */
bool dsc_flag_is(const char *text, size_t bytes, const char *name);

/* Writes the help page: usage, description, arguments, flags, notes, exit codes. Lines have at most 100 columns.
 * Returns the bytes of the whole page without its end, as snprintf does; the page is cut when it does not fit. */
size_t dsc_flags_help(const dsc_flag_command *command, char *out, size_t out_bytes);

/* A whole number from decimal digits with an optional sign; false outside [min, max] or when other text follows. */
bool dsc_flag_integer(const char *text, int64_t min, int64_t max, int64_t *out);

/* For `set`: reads the value of a row with a range as an INTEGER row does, with the same error. */
DSC_MUST_USE dsc_status dsc_flag_set_integer(const dsc_flag *flag, const char *value, int64_t *out, dsc_error *err);

#endif
