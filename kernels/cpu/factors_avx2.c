/* factors_avx2.c - factors_wide.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/factors_wide.h"

const dsc_factors_ops dsc_factors_avx2 = { rows, cols };
