/* builder_data.c - the public builder's first and last modules, and ops on rows of samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include "models/builder.h"

enum { PATCH_MAX = 1 << 12 };

void dsc_build_begin_first(dsc_builder *b)
{
    if (b->options.data.dim_count == 0)
        BUILDER_REFUSE(b, DSC_ERR_INPUT, "samples are tokens, which the model's embedding reads; set "
                       "dsc_build_options.data for another first module");
    (void)dsc_builder_begin(b, BUILDER_FIRST);
}

dsc_node dsc_build_begin_last(dsc_builder *b)
{
    return dsc_builder_begin(b, BUILDER_LAST) ? dsc_builder_node(b, b->program->input) : DSC_NODE_NONE;
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
    const dsc_op_data args = { DSC_LM_TOKENS, dim[0], dim[1], dim[2], patch };
    if (reads_data(b, "patches", 3) && (patch < 1 || patch > PATCH_MAX || dim[0] * patch * patch > DSC_LM_INNER_MAX))
        BUILDER_REFUSE(b, DSC_ERR_INPUT,
                       "op \"patches\": %lld by %lld pixels; expected a side from 1 to %d and at most %d numbers "
                       "in all planes",
                       (long long)patch, (long long)patch, PATCH_MAX, DSC_LM_INNER_MAX);
    return b->status == DSC_OK ? dsc_builder_node(b, dsc_program_patches(b->program, &args)) : DSC_NODE_NONE;
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
    if (b->status != DSC_OK)
        return DSC_NODE_NONE;
    return dsc_builder_node(b, dsc_program_prepend(b->program, in, declare_rows(b, own, rows, in), rows));
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
    return b->status == DSC_OK ? dsc_builder_node(b, dsc_program_pick(b->program, in, first, count, mean))
                               : DSC_NODE_NONE;
}

dsc_node dsc_build_rows(dsc_builder *b, dsc_node x, int64_t first, int64_t count)
{
    return pick(b, x, first, count, false);
}

dsc_node dsc_build_mean(dsc_builder *b, dsc_node x, int64_t first, int64_t count)
{
    return pick(b, x, first, count, true);
}
