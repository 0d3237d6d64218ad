/* factors_avx512.c - factors_wide.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/factors_wide.h"

const dsc_factors_ops dsc_factors_avx512 = { rows, cols };
