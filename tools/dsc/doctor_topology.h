/* doctor_topology.h - `dsc doctor`: which GPUs, network adapters and cores are near each other.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_DOCTOR_TOPOLOGY_H
#define DSC_TOOLS_DOCTOR_TOPOLOGY_H

#include "base/base.h"
#include "tools/dsc/tool.h"

enum { DSC_DOCTOR_FINDINGS = 32 };
/* Findings about this machine, each line with its remedy. */
typedef struct dsc_doctor_findings {
    char text[DSC_DOCTOR_FINDINGS][320];
    int count;
} dsc_doctor_findings;
/* Lines that do not fit are dropped: the first ones matter most. */
void dsc_doctor_find(dsc_doctor_findings *findings, const char *fmt, ...) DSC_PRINTF(2, 3);

/* Prints NUMA nodes and the matrix of devices as `sysfs` ("/sys") tells them. */
void dsc_doctor_topology(const char *sysfs, dsc_doctor_findings *findings);

#endif
