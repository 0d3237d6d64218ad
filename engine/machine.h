/* machine.h - free memory and cores of the machine, as far as this process may use them (machine.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MACHINE_H
#define DSC_ENGINE_MACHINE_H

#include <stdint.h>

/* Bytes that a process needs in addition to its plan: heaps and stacks of libraries, products that oneDNN compiles
 * (5 MiB), page tables (1 to 2) and resident code (11), which the kernel otherwise drops and reads again. In a memory
 * cgroup, a run was 4 to 30 times slower with 12 to 16 MiB on top of its plan, and at full speed from 17 on. */
#define DSC_PROCESS_BYTES ((int64_t)20 << 20)
/* Free bytes of the machine or cgroup, less the reserve of `processes` processes; INT64_MAX: unknown. */
int64_t dsc_machine_available_bytes(int32_t processes);
int32_t dsc_machine_cores(void); /* that this process may run on */
/* Share of a core for each thread when all ranks of this host compute: 1 when the cores suffice. */
double dsc_machine_share(int32_t threads, int32_t ranks);

#endif
