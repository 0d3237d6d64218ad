/* program_dump.h - a random program with its values and a run's results as one JSON object.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_PROGRAM_DUMP_H
#define DSC_TESTS_PROGRAM_DUMP_H

#include <stdio.h>

#include "tests/support/program_random.h"

void program_dump(FILE *file, const program_random *random, const program_reference *reference,
                  const program_result *result);

#endif
