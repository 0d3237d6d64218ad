/* dropout_ref.c - the reference. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/dropout_range.h"

DROPOUT_DEFINE(ref, dropout_words_plain)
