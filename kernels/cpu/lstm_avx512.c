/* lstm_avx512.c - lstm_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/lstm_v16.h"
