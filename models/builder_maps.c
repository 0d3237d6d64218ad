/* builder_maps.c - the public builder's ops on feature maps. SPDX-License-Identifier: Apache-2.0 */
#include "models/builder.h"

dsc_node dsc_build_batch_norm(dsc_builder *b, dsc_node x, const char *name, double eps, double momentum)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, "batch_norm");
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const dsc_program_batch_norm_args args = { .name = own, .eps = eps, .momentum = momentum };
    return dsc_builder_node(b, dsc_program_batch_norm(b->program, in, &args));
}

dsc_node dsc_build_max_pool(dsc_builder *b, dsc_node x, int64_t kernel, int64_t stride, int64_t padding)
{
    const int16_t in = dsc_builder_value(b, x, "pool");
    const dsc_op_pool args = { .kernel = kernel, .stride = stride, .padding = padding };
    return BUILDER_NODE(b, dsc_program_max_pool(b->program, in, &args));
}

dsc_node dsc_build_average_pool(dsc_builder *b, dsc_node x, int64_t kernel, int64_t stride, int64_t padding)
{
    const int16_t in = dsc_builder_value(b, x, "pool");
    const dsc_op_pool args = { .kernel = kernel, .stride = stride, .padding = padding };
    return BUILDER_NODE(b, dsc_program_average_pool(b->program, in, &args));
}

dsc_node dsc_build_mean_pool(dsc_builder *b, dsc_node x, int64_t height, int64_t width)
{
    const int16_t in = dsc_builder_value(b, x, "pool");
    return BUILDER_NODE(b, dsc_program_mean_pool(b->program, in, height, width));
}

dsc_node dsc_build_scale_rows(dsc_builder *b, dsc_node x, dsc_node scale)
{
    const int16_t in[2] = { dsc_builder_value(b, x, "sample_scale"), dsc_builder_value(b, scale, "sample_scale") };
    return BUILDER_NODE(b, dsc_program_scale_rows(b->program, in[0], in[1]));
}

dsc_node dsc_build_drop_path(dsc_builder *b, dsc_node x, double probability)
{
    const int16_t in = dsc_builder_value(b, x, "dropout");
    return BUILDER_NODE(b, dsc_program_drop_path(b->program, in, probability, b->dropouts++));
}
