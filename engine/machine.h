/* machine.h - free memory and cores of the machine, as far as this process may use them (machine.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MACHINE_H
#define DSC_ENGINE_MACHINE_H

#include <stdint.h>

/* Bytes that a process needs in addition to its plan. The parts are heaps and stacks of libraries, products compiled by
 * oneDNN (5 MiB), page tables (1 to 2 MiB) and resident code (11 MiB). The kernel drops resident code under pressure
 * and reads the code again. In a memory cgroup, a run with 12 to 16 MiB in addition to its plan was 4 to 30 times
 * slower. 17 MiB gave full speed. */
#define DSC_PROCESS_BYTES ((int64_t)20 << 20)
/* Free bytes of the machine or cgroup, less the reserve of `processes` processes; INT64_MAX: unknown. */
int64_t dsc_machine_available_bytes(int32_t processes);
int32_t dsc_machine_cores(void); /* that this process may run on */
/* Share of a core for each thread when all ranks of this host compute: 1 when the cores suffice. */
double dsc_machine_share(int32_t threads, int32_t ranks);

#endif
