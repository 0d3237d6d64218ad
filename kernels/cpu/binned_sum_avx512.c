/* binned_sum_avx512.c - binned_sum_wide.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/binned_sum_wide.h"

const dsc_binned_sum_ops dsc_binned_sum_avx512 = { rows, cols };
