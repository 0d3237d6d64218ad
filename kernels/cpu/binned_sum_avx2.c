/* binned_sum_avx2.c - binned_sum_wide.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/binned_sum_wide.h"

const dsc_binned_sum_ops dsc_binned_sum_avx2 = { rows, cols };
