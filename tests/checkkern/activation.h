/* activation.h - activations and their slopes in double, with the bounds of kernels' errors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CHECKKERN_ACTIVATION_H
#define DSC_TESTS_CHECKKERN_ACTIVATION_H

#include "tests/checkkern/ck.h"

extern const char *const ck_activation_names[DSC_ACTIVATIONS];

double ck_activation(dsc_activation kind, double x);
double ck_activation_tolerance(dsc_activation kind, double x);
double ck_activation_slope(dsc_activation kind, double x);
double ck_activation_slope_tolerance(dsc_activation kind, double x);

#endif
