/* program_reference_maps.h - feature maps for program_reference.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROGRAM_REFERENCE_MAPS_H
#define DSC_TESTS_PROGRAM_REFERENCE_MAPS_H

#include "tests/support/program_reference.h"

/* Whether the op is one of those here, which then ran. */
bool program_reference_maps(program_reference *r, const dsc_op *op, bool backward);

#endif
