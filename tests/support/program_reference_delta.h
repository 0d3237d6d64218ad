/* program_reference_delta.h - ops of linear attention, for program_reference.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROGRAM_REFERENCE_DELTA_H
#define DSC_TESTS_PROGRAM_REFERENCE_DELTA_H

#include "tests/support/program_reference.h"

/* The op forward or backward; false: it is another kind. Outputs and gradients are zero before. */
bool program_reference_delta(program_reference *reference, const dsc_op *op, bool backward);

#endif
