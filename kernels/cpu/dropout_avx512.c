/* dropout_avx512.c - dropout_wide.h on AVX512. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/philox_avx512.h"

#include "kernels/cpu/dropout_wide.h"

DROPOUT_DEFINE(avx512, dropout_words_wide)
