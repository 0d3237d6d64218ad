/* toy_model.h - a small model written by hand in plain loops, for tests of the engine. It has an input projection,
 * residual blocks with a frozen scale, and a loss module tied to the projection.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TOY_MODEL_H
#define DSC_TESTS_TOY_MODEL_H

#include <dsc/dsc.h>

/* in: features of a sample; width: hidden; blocks: modules between the first and the last. Static storage inside *out's
 * memory; close with toy_model_close. Aborts without memory. */
dsc_model *toy_model_open(int64_t in, int64_t width, int32_t blocks, bool frozen_scale);
void toy_model_close(dsc_model *model);

/* Endless-looking data: features and targets are pure functions of the sample's number. */
dsc_data_source toy_data(const dsc_model *model, int64_t sample_count);

#endif
