/* module_names.h - names of a model's modules, as PyTorch spells them: "model.layers.3.mlp" is around
 * "model.layers.3.mlp.up_proj.weight". SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_MODULE_NAMES_H
#define DSC_BASE_MODULE_NAMES_H

#include <dsc/types.h>

/* How a name of a module that a user gives lies in the name of a parameter. */
typedef enum dsc_module_match {
    DSC_MODULE_OTHER,
    DSC_MODULE_PARTLY, /* a module around the parameter ends with it within a component: "proj" of "q_proj" */
    DSC_MODULE_WHOLE   /* a module around the parameter is it, or ends with a point and it */
} dsc_module_match;
/* The best match over all modules around the parameter, the innermost one included. */
dsc_module_match dsc_module_around(const char *param, const char *module);

/* Names of the modules of ViT and DINOv2. Files have the older ones. Since transformers 5 its models have others, as
 * adapters of PEFT do:
 *
 *     vit.encoder.layer.0.attention.attention.query       vit.layers.0.attention.q_proj
 *     dinov2.encoder.layer.0.attention.attention.query    dinov2.encoder.layer.0.attention.q_proj
 */
bool dsc_module_is_vit(const char *name); /* of a whole name, of a module or a parameter */
/* The name that PEFT has of a module or a parameter; `name` may be the end of one. out[0..bytes) is cut if too short.
 */
void dsc_module_vit_in_peft(const char *name, char *out, size_t bytes);

#endif
