/* cores.c - see cores.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/cores.h"

#include <sched.h>

int32_t dsc_cores_usable(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    const int count = CPU_COUNT(&set);
    DSC_ASSERT(count > 0);
    return count;
}
