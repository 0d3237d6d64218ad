/* delta_avx2.c - delta_range.h for AVX2. SPDX-License-Identifier: Apache-2.0 */
#define DELTA_ISA avx2
#include "kernels/cpu/delta_range.h"
