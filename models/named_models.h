/* named_models.h - models that a name opens without a folder, by the text of their config.json. Inside models/ only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_NAMED_MODELS_H
#define DSC_MODELS_NAMED_MODELS_H

#include "base/base.h"

typedef struct dsc_named_model {
    const char *name, *config; /* config: of a convolutional network the name of its architecture */
} dsc_named_model;

#define DSC_NAMED_SEQUENCE 2048 /* tokens of a sample, where the model has as many positions */

/* NULL past the end. */
const dsc_named_model *dsc_named_model_at(int32_t index);

#endif
