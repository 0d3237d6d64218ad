/* delta_ref.c - delta_range.h for any CPU: the reference. SPDX-License-Identifier: Apache-2.0 */
#define DELTA_ISA ref
#include "kernels/cpu/delta_range.h"
