/* program_reference_lstm.h - LSTMs in double, for program_reference.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROGRAM_REFERENCE_LSTM_H
#define DSC_TESTS_PROGRAM_REFERENCE_LSTM_H

#include "tests/support/program_reference.h"

/* The op forward or backward; false: it is another kind. Outputs and gradients are zero before. */
bool program_reference_lstm(program_reference *reference, const dsc_op *op, bool backward);

#endif
