/* program.h - the file that PROGRAM means on this host. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_PROGRAM_H
#define DSC_LAUNCHER_PLAN_PROGRAM_H

#include "base/base.h"

/* Path of this very program. */
void dsc_program_path(char *out, size_t out_bytes);
/* With a slash: that file. Without: beside dsc-launch, then in PATH. Not there, or not executable: DSC_ERR_INPUT. */
DSC_MUST_USE dsc_status dsc_program_find(const char *name, char *out, size_t out_bytes, dsc_error *err);

#endif
