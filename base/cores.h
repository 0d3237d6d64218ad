/* cores.h - the processor cores of this process. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_CORES_H
#define DSC_BASE_CORES_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cores that this process may run on; 0: unknown, because the system has more cores than a set holds. */
int32_t dsc_cores_usable(void);

#ifdef __cplusplus
}
#endif
#endif
