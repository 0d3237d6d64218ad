/* dry_run.h - prints the plan of a start as JSON. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_DRY_RUN_H
#define DSC_LAUNCHER_DRY_RUN_H

#include <stdio.h>

#include "launcher/plan/resources.h"

/* The plan's stages divide its ranks. launcher_argv: the command of --launcher, or NULL. */
void dsc_launcher_dry_run(const dsc_launcher_plan *plan, const dsc_launcher_options *opt, char *const *launcher_argv,
                          FILE *to);

#endif
