/* pdsh.h - a pdsh user's settings for the ssh that pdsh starts: PDSH_SSH_ARGS, PDSH_SSH_ARGS_APPEND, and flags of pdsh
 * in --launcher_args.
 *
 * pdsh itself cannot start agents. Remote programs get no input from pdsh, but the arguments and the job's token travel
 * there, so that no argument list shows them. pdsh also treats output as lines of text: bytes after a zero are lost,
 * and a line without a newline waits for one (measured, pdsh 2.34). Each host is therefore reached by one ssh, started
 * with the settings that pdsh would use.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_PDSH_H
#define DSC_LAUNCHER_PLAN_PDSH_H

#include "launcher/plan/options.h"

enum { DSC_PDSH_ARGS_MAX = 64, DSC_PDSH_TEXT_BYTES = 8192 };

/* Arguments for ssh, in `text`. */
typedef struct dsc_pdsh_args {
    const char *arg[DSC_PDSH_ARGS_MAX];
    int count;
    size_t used;
    char text[DSC_PDSH_TEXT_BYTES];
} dsc_pdsh_args;

/* `host` may be user@name: they are %u and %h. None unless the launcher is pdsh, by name or as DeepSpeed's default.
 * Options that ssh lacks, or that would take the agent's stream away: DSC_ERR_INPUT, naming the variable or flag. */
DSC_MUST_USE dsc_status dsc_pdsh_read(const dsc_launcher_options *opt, const char *host, dsc_pdsh_args *out,
                                      dsc_error *err);

#endif
