/* builder_data.c - the public builder's first and last modules, and ops on rows of samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/builder.h"

enum { PATCH_MAX = 1 << 12 };

void dsc_build_begin_first(dsc_builder *b)
{
    if (b->options.data.dim_count == 0)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "samples are tokens, which the model's embedding reads; set "
                       "dsc_build_options.data for another first module");
    (void)dsc_builder_begin(b, BUILDER_FIRST, NULL);
}

dsc_node dsc_build_begin_last(dsc_builder *b)
{
    const dsc_value input = dsc_builder_given(b);
    return dsc_builder_begin(b, BUILDER_LAST, &input) ? dsc_builder_node(b, b->program->input) : DSC_NODE_NONE;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static bool reads_data(dsc_builder *b, const char *op, int32_t dims)
{
    const int32_t own = b->options.data.dim_count;
    if (!b->open || b->kind != BUILDER_FIRST)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%s\" stands outside of a first module; call dsc_build_begin_first", op);
    else if (own != dims)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%s\" reads data of %d dimensions, and \"%.60s\" has %d", op, (int)dims,
                       b->options.data.name, (int)own);
    return b->status == DSC_OK;
}

dsc_node dsc_build_data(dsc_builder *b)
{
    const int64_t *dim = b->options.data.dim;
    if (!reads_data(b, "data", 2))
        return DSC_NODE_NONE;
    return dsc_builder_node(b, dsc_program_data(b->program, DSC_LM_TOKENS, dim[0], dim[1]));
}

dsc_node dsc_build_patches(dsc_builder *b, int64_t patch)
{
    const int64_t *dim = b->options.data.dim;
    const dsc_op_data args = { DSC_LM_TOKENS, dim[0], dim[1], dim[2], patch, 0 };
    if (reads_data(b, "patches", 3) && (patch < 1 || patch > PATCH_MAX || dim[0] * patch * patch > DSC_LM_INNER_MAX))
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"patches\": %lld by %lld pixels; expected a side from 1 to %d and at most %d numbers "
                       "in all planes",
                       (long long)patch, (long long)patch, PATCH_MAX, DSC_LM_INNER_MAX);
    return BUILDER_NODE(b, dsc_program_patches(b->program, &args));
}

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

dsc_node dsc_build_conv2d(dsc_builder *b, dsc_node x, const char *name, const dsc_build_conv2d_options *options)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, own != NULL ? own : "conv2d");
    if (options->struct_bytes < sizeof *options)
        BUILDER_REFUSE(b, DSC_ERR_STATE,
                       "dsc_build_conv2d_options.struct_bytes is %u; use DSC_BUILD_CONV2D_OPTIONS_INIT",
                       options->struct_bytes);
    else if (!(options->init_std <= 1000))
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"%.60s\" (conv2d): init_std %g; expected at most 1000", name,
                       options->init_std);
    else if (options->columns > DSC_LM_INNER_MAX || options->groups < 1 || options->stride[0] < 1 ||
             options->stride[1] < 1 || options->dilation[0] < 1 || options->dilation[1] < 1)
        BUILDER_REFUSE(
            b, DSC_ERR_INPUT,
            "op \"%.60s\" (conv2d): %lld columns, %lld groups, stride %lld and %lld, dilation %lld and %lld; "
            "expected 1 or more, and at most %d columns",
            name, (long long)options->columns, (long long)options->groups, (long long)options->stride[0],
            (long long)options->stride[1], (long long)options->dilation[0], (long long)options->dilation[1],
            DSC_LM_INNER_MAX);
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    dsc_program_conv2d_args args = { .name = own,
                                     .out = options->columns,
                                     .groups = options->groups,
                                     .bias = options->bias,
                                     .std = options->init_std < 0 ? b->options.init_std : options->init_std };
    for (int i = 0; i < 2; i++) {
        args.kernel[i] = options->kernel[i], args.stride[i] = options->stride[i];
        args.padding[i] = options->padding[i], args.dilation[i] = options->dilation[i];
    }
    return dsc_builder_node(b, dsc_program_conv2d(b->program, in, &args));
}

/* ---- rows of samples --------------------------------------------------------------------------------------------- */

static int32_t declare_rows(dsc_builder *b, const char *name, int64_t rows, int16_t like)
{
    const dsc_program_param param = { .name = name,
                                      .part = "weight",
                                      .dim_count = 2,
                                      .dim = { rows, b->program->value[like].columns },
                                      .init = DSC_INIT_NORMAL,
                                      .std = b->options.init_std };
    return dsc_program_declare(b->program, &param);
}

dsc_node dsc_build_prepend(dsc_builder *b, dsc_node x, const char *name, int64_t rows)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, "prepend");
    if (rows < 1 || rows > DSC_LM_POSITIONS_MAX)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "op \"prepend\": %lld rows; expected 1 to %d", (long long)rows,
                       DSC_LM_POSITIONS_MAX);
    return BUILDER_NODE(b, dsc_program_prepend(b->program, in, declare_rows(b, own, rows, in), rows));
}

dsc_node dsc_build_positions(dsc_builder *b, dsc_node x, const char *name)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, "positions");
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const int32_t param = declare_rows(b, own, b->program->value[in].rows, in);
    return dsc_builder_node(b, dsc_program_table(b->program, in, param));
}

static dsc_node pick(dsc_builder *b, dsc_node x, int64_t first, int64_t count, bool mean)
{
    const int16_t in = dsc_builder_value(b, x, mean ? "mean" : "rows");
    return BUILDER_NODE(b, dsc_program_pick(b->program, in, first, count, mean));
}

dsc_node dsc_build_rows(dsc_builder *b, dsc_node x, int64_t first, int64_t count)
{
    return pick(b, x, first, count, false);
}

dsc_node dsc_build_mean(dsc_builder *b, dsc_node x, int64_t first, int64_t count)
{
    return pick(b, x, first, count, true);
}

dsc_node dsc_build_lstm(dsc_builder *b, dsc_node x, const char *name, int64_t columns, int32_t layers)
{
    const char *own = dsc_builder_name(b, name);
    const int16_t in = dsc_builder_value(b, x, own != NULL ? own : "lstm");
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    const dsc_program_lstm_args args = { .name = own, .hidden = columns, .layers = layers, .bias = true };
    return dsc_builder_node(b, dsc_program_lstm(b->program, in, &args));
}
