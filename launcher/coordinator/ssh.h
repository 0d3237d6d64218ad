/* ssh.h - how an agent is started on another host, and what it means when that fails.
 *
 * The remote command is a constant: where the agent's program is comes as the first line of its stdin, everything else
 * as frames behind it (message.h). So nothing that a user can choose is read by a shell.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_SSH_H
#define DSC_LAUNCHER_COORDINATOR_SSH_H

#include "base/alloc.h"
#include "launcher/plan/options.h"

/* Text of `ssh -V` on both sides does not matter; options are those of the user first, ours where he has none. Returns
 * argv, NULL-terminated, freed with dsc_alloc_free; its texts are borrowed from opt, host and static memory. */
DSC_MUST_USE dsc_status dsc_ssh_command(dsc_alloc *alloc, const dsc_launcher_options *opt, const char *host,
                                        char ***argv, dsc_error *err);
/* The bytes that the agent's shell reads before the frames: the path to be tried before PATH, and a newline. */
void dsc_ssh_first_line(char *out, size_t out_bytes);

/* DSC_ERR_INPUT when there is no ssh here. */
DSC_MUST_USE dsc_status dsc_ssh_check(dsc_error *err);

/* Why the agent of `host` cannot be had: code is what ssh (or the agent itself) ended with, as a shell sees it; -1: it
 * still ran. `said` is the end of what came on its stderr, which this function may change. */
void dsc_ssh_diagnose(const dsc_launcher_options *opt, const char *host, int code, char *said, dsc_error *err);

#endif
