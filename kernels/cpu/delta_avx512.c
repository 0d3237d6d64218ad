/* delta_avx512.c - delta_range.h for AVX512. SPDX-License-Identifier: Apache-2.0 */
#define DELTA_ISA avx512
#include "kernels/cpu/delta_range.h"
