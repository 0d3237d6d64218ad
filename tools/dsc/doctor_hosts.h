/* doctor_hosts.h - `dsc doctor --hostfile F`: the same questions to every host of a job, side by side.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_DOCTOR_HOSTS_H
#define DSC_TOOLS_DOCTOR_HOSTS_H

#include "tools/dsc/tool.h"

/* Prints one host's description for the reader at the other end: one line on stdout. */
int dsc_doctor_answer(void);
/* Asks all hosts through dsc-launch, whose flags for hosts and ssh are flag[0..count). */
int dsc_doctor_ask(char *const *flag, int count);

#endif
