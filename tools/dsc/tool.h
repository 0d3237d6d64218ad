/* tool.h - declarations that the subcommands of `dsc` share. One file per subcommand; dsc.c has the one table of them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TOOL_H
#define DSC_TOOLS_TOOL_H

#include <dsc/error.h>

#include "base/alloc.h"
#include "base/flags.h"

/* A row of the table of commands. argv[0] is the name. */
typedef struct dsc_command {
    const char *name;
    const char *usage;   /* after "dsc " */
    const char *summary; /* one line for --help */
    int (*run)(int argc, char **argv);
} dsc_command;

/* Subcommands: exit codes of the command-line contract. */
int dsc_cmd_check(int argc, char **argv);
int dsc_cmd_ckpt(int argc, char **argv);
int dsc_cmd_classify(int argc, char **argv);
int dsc_cmd_comm(int argc, char **argv);
int dsc_cmd_config(int argc, char **argv);
int dsc_cmd_data(int argc, char **argv);
int dsc_cmd_doctor(int argc, char **argv);
int dsc_cmd_embed(int argc, char **argv);
int dsc_cmd_generate(int argc, char **argv);
int dsc_cmd_io(int argc, char **argv);
int dsc_cmd_model(int argc, char **argv);
int dsc_cmd_plan(int argc, char **argv);
int dsc_cmd_plot(int argc, char **argv);
int dsc_cmd_scale(int argc, char **argv);
int dsc_cmd_simulate(int argc, char **argv);
int dsc_cmd_tune(int argc, char **argv);

/* Prints "dsc: error: where: message" once and returns the exit code of the status. */
int dsc_tool_fail(const dsc_error *err);
/* As above for a wrong command line: exit code 2. */
int dsc_tool_usage(const char *where, const char *fmt, ...) DSC_PRINTF(2, 3);
/* Ends a command that printed to stdout: a full disk or a closed pipe is an error. */
int dsc_tool_end(void);
/* Parses the command line into `out`. Returns -1 when the command goes on, else its exit code: 0 after --help has
 * printed the page, 2 after a printed error. */
int dsc_tool_parse(const dsc_flag_command *command, int argc, char **argv, void *out);

/* A subcommand. run() gets the arguments from the subcommand's name on; the name is the last word of page->name. */
typedef struct dsc_tool_verb {
    const dsc_flag_command *page;
    int (*run)(int argc, char **argv);
} dsc_tool_verb;
/* Runs the subcommand that argv[1] names; --help lists all. `command` is such as "dsc ckpt". Returns the exit code. */
int dsc_tool_run_verb(const char *command, const char *description, const dsc_tool_verb *verbs, int32_t count, int argc,
                      char **argv);
/* The path of another of our programs, which is beside this one. */
DSC_MUST_USE dsc_status dsc_tool_beside(const char *program, char *out, size_t out_bytes, dsc_error *err);
/* Gives `line` every line of a file that is not empty, without its end: `where` is "path:number", text is not
 * terminated. A last line without an end is left out. Stops at the first that is not DSC_OK. */
typedef dsc_status (*dsc_tool_line_fn)(void *user, const char *where, const char *text, int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_tool_lines(dsc_alloc *alloc, const char *path, int64_t bytes_max, dsc_tool_line_fn line,
                                       void *user, dsc_error *err);
/* A JSON string with its quotes on stdout. */
void dsc_tool_json_text(const char *text);
/* The shortest decimal form that reads back as the same double. Returns out. */
const char *dsc_tool_double(double value, char out[32]);

#endif
