/* program_dump.c - a random program with its values as JSON, for tests/support/program_torch.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_dump.h"

#include "base/rng.h"

static void put_doubles(FILE *file, const char *name, const double *x, int64_t count)
{
    fprintf(file, "\"%s\": [", name);
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s%.17g", i > 0 ? "," : "", x[i]);
    fprintf(file, "], ");
}

static void put_floats(FILE *file, const char *name, const float *x, int64_t count)
{
    fprintf(file, "\"%s\": [", name);
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s%.9g", i > 0 ? "," : "", (double)x[i]);
    fprintf(file, "], ");
}

/* Whether each element of a dropout is kept, as 1 or 0. */
static void put_kept(FILE *file, const program_random *r, const program_reference *reference, const dsc_op *op)
{
    const uint64_t stream = dsc_rng_stream(DSC_RNG_DROPOUT, op->dropout.stream);
    fprintf(file, "\"probability\": %.17g, \"kept\": [", op->dropout.probability);
    const int64_t elements = program_reference_elements(reference, op->in[0]);
    for (int64_t i = 0; i < elements; i++) {
        const int64_t word = op->dropout.per_sample ? i / (elements / r->batch) : i;
        fprintf(file, "%s%d", i > 0 ? "," : "",
                dsc_rng_u32(r->seed, stream, (uint64_t)word) >= (uint32_t)(op->dropout.probability * 0x1p32));
    }
    fprintf(file, "], ");
}

static void put_router(FILE *file, const dsc_op *op)
{
    double bias[DSC_MOE_EXPERTS_MAX];
    for (int32_t e = 0; e < op->rule.experts; e++)
        bias[e] = (double)program_reference_bias(op->router.bias, e);
    fprintf(file, "\"groups\": %d, \"best_groups\": %d, \"pairs\": %d, ", (int)op->rule.groups,
            (int)op->rule.best_groups, op->rule.group_pairs);
    put_doubles(file, "bias", bias, op->router.bias >= 0 ? op->rule.experts : 0);
}

static void put_op(FILE *file, const program_random *r, const program_reference *reference, const dsc_op *op)
{
    static const char *const kinds[] = {
        [DSC_OP_LINEAR] = "linear",
        [DSC_OP_NORM] = "norm",
        [DSC_OP_ROPE_TABLE] = "rope_table",
        [DSC_OP_ROPE] = "rope",
        [DSC_OP_ATTENTION] = "attention",
        [DSC_OP_ACTIVATION] = "activation",
        [DSC_OP_GATED] = "gated",
        [DSC_OP_PAIRS] = "pairs",
        [DSC_OP_ADD] = "add",
        [DSC_OP_SCALE] = "scale",
        [DSC_OP_DROPOUT] = "dropout",
        [DSC_OP_SLICE] = "slice",
        [DSC_OP_COPY] = "copy",
        [DSC_OP_REGROUP] = "regroup",
        [DSC_OP_CUSTOM] = "custom",
        [DSC_OP_HEADS] = "heads",
        [DSC_OP_DATA] = "data",
        [DSC_OP_PATCHES] = "patches",
        [DSC_OP_PREPEND] = "prepend",
        [DSC_OP_TABLE] = "table",
        [DSC_OP_PICK] = "pick",
        [DSC_OP_ROUTER] = "router",
        [DSC_OP_ORDER] = "order",
        [DSC_OP_DISPATCH] = "dispatch",
        [DSC_OP_GROUPED] = "grouped",
        [DSC_OP_COMBINE] = "combine",
        [DSC_OP_PACK] = "pack",
        [DSC_OP_CONV] = "conv",
        [DSC_OP_DELTA] = "delta",
        [DSC_OP_CONV2D] = "conv2d",
        [DSC_OP_LSTM] = "lstm",
        [DSC_OP_BATCH_STATS] = "batch_stats",
        [DSC_OP_BATCH_NORM] = "batch_norm",
        [DSC_OP_POOL] = "pool",
        [DSC_OP_SAMPLE_SCALE] = "sample_scale",
        [DSC_OP_TANH] = "tanh",
        [DSC_OP_GATHER] = "gather",
        [DSC_OP_EMBED] = "embed",
        [DSC_OP_COLUMNS] = "columns",
    };
    DSC_ASSERT((size_t)op->kind < DSC_COUNT(kinds) && kinds[op->kind] != NULL);
    fprintf(file, "{\"kind\": \"%s\", ", kinds[op->kind]);
    if (op->kind == DSC_OP_LINEAR)
        fprintf(file, "\"n_in\": %d, \"n_out\": %d, \"out_in\": %d, \"weight\": %d, \"bias\": %d, ",
                (int)op->linear.shape.in, (int)op->linear.shape.out, op->linear.shape.out_in, op->linear.weight,
                op->linear.bias);
    if (op->kind == DSC_OP_NORM)
        fprintf(file, "\"layer\": %d, \"groups\": %d, \"eps\": %.17g, \"weight\": %d, \"bias\": %d, \"plus_one\": %d, ",
                op->norm.kind == DSC_NORM_LAYER, (int)op->norm.groups, op->norm.eps, op->norm.weight, op->norm.bias,
                op->norm.plus_one);
    if (op->kind == DSC_OP_COLUMNS)
        fprintf(file, "\"param\": %d, ", op->columns);
    if (op->kind == DSC_OP_ROPE)
        fprintf(file, "\"heads\": %d, \"neighbours\": %d, \"first\": %d, ", (int)op->rope.heads,
                op->rope.rope->neighbours, (int)op->rope.first);
    if (op->kind == DSC_OP_HEADS)
        fprintf(file, "\"heads\": %d, \"width\": %d, ", (int)op->heads.heads, (int)op->heads.width);
    if (op->kind == DSC_OP_ROUTER)
        put_router(file, op);
    if (op->kind == DSC_OP_ATTENTION)
        fprintf(file,
                "\"heads\": %d, \"kv_heads\": %d, \"scale\": %.17g, \"window\": %d, \"all\": %d, \"softcap\": %.17g, "
                "\"alibi\": %.17g, \"alibi_of_key\": %.17g, \"sinks\": %d, ",
                (int)op->attention.heads, (int)op->attention.kv_heads, op->attention.scale, (int)op->attention.window,
                op->attention.all, op->attention.softcap, op->attention.alibi,
                op->attention.alibi_of_key,
                op->attention.has_sinks ? op->attention.sinks : DSC_PROGRAM_NONE);
    if (op->kind == DSC_OP_REGROUP)
        fprintf(file, "\"groups\": %d, \"size\": %d, ", (int)op->regroup.groups, (int)op->regroup.head_size);
    if (op->kind == DSC_OP_ACTIVATION || op->kind == DSC_OP_GATED)
        fprintf(file, "\"activation\": %d, ", (int)op->activation);
    if (op->kind == DSC_OP_SCALE)
        fprintf(file, "\"factor\": %.17g, ", op->factor);
    if (op->kind == DSC_OP_DROPOUT)
        put_kept(file, r, reference, op);
    if (op->kind == DSC_OP_ROUTER || op->kind == DSC_OP_ORDER)
        fprintf(file, "\"experts\": %d, \"top_k\": %d, \"sigmoid\": %d, \"renormalize\": %d, \"factor\": %.9g, ",
                (int)op->rule.experts, (int)op->rule.top_k, op->rule.score == DSC_MOE_SIGMOID, op->rule.renormalize,
                (double)op->rule.factor);
    if (op->kind == DSC_OP_GROUPED)
        fprintf(file,
                "\"n_in\": %d, \"n_out\": %d, \"experts\": %d, \"weight\": %d, \"bias\": %d, \"in_out\": %d, "
                "\"spread\": %d, \"first\": %d, ",
                (int)op->grouped.in, (int)op->grouped.out, (int)op->grouped.experts, (int)op->grouped.weight,
                (int)op->grouped.bias, op->grouped.in_out, op->grouped.spread, (int)op->grouped.first);
    if (op->kind == DSC_OP_PAIRS)
        fprintf(file, "\"alpha\": %.17g, \"limit\": %.17g, ", (double)op->clamp.alpha, (double)op->clamp.limit);
    if (op->kind == DSC_OP_CONV)
        fprintf(file, "\"width\": %d, \"weight\": %d, ", op->conv.width, op->conv.weight);
    if (op->kind == DSC_OP_CONV2D) {
        const dsc_conv2d_shape *s = &op->conv2d.shape;
        fprintf(file,
                "\"height\": %d, \"width\": %d, \"groups\": %d, \"kernel\": [%d, %d], \"stride\": [%d, %d], "
                "\"padding\": [%d, %d], \"dilation\": [%d, %d], \"weight\": %d, \"bias\": %d, ",
                (int)s->height, (int)s->width, (int)s->groups, (int)s->kernel[0], (int)s->kernel[1],
                (int)s->stride[0], (int)s->stride[1], (int)s->padding[0], (int)s->padding[1], (int)s->dilation[0],
                (int)s->dilation[1], op->conv2d.weight, op->conv2d.bias);
    }
    if (op->kind == DSC_OP_DELTA)
        fprintf(file, "\"key_heads\": %d, \"value_heads\": %d, \"key_size\": %d, \"a_log\": %d, \"dt_bias\": %d, ",
                (int)op->delta.key_heads, (int)op->delta.value_heads, (int)op->delta.key_size, op->delta.a_log,
                op->delta.dt_bias);
    if (op->kind == DSC_OP_LSTM)
        fprintf(file, "\"hidden\": %d, \"weight\": %d, \"bias\": %d, ", (int)op->lstm.hidden, op->lstm.weight,
                op->lstm.bias);
    if (op->kind == DSC_OP_PREPEND || op->kind == DSC_OP_TABLE)
        fprintf(file, "\"param\": %d, ", op->table.param);
    if (op->kind == DSC_OP_PICK)
        fprintf(file, "\"first\": %d, \"count\": %d, \"mean\": %d, ", (int)op->pick.first, (int)op->pick.count,
                op->pick.mean);
    if (op->kind == DSC_OP_GATHER) {
        const int64_t count = op->gather.count, rows = reference->program->value[op->in[0]].rows;
        fprintf(file, "\"mean\": %d, \"places\": [", op->gather.mean);
        for (int64_t n = 0; n < r->batch * count; n++)
            fprintf(file, "%s%d", n > 0 ? ", " : "", (int)program_reference_place(n / count, n % count, count, rows));
        fprintf(file, "], ");
    }
    if (op->kind == DSC_OP_EMBED)
        fprintf(file, "\"param\": %d, \"first\": %d, \"same\": %d, ", op->embed.position, (int)op->embed.first,
                op->embed.same);
    if (op->kind == DSC_OP_BATCH_NORM)
        fprintf(file, "\"eps\": %.17g, \"weight\": %d, \"bias\": %d, ", op->batch_norm.eps, op->batch_norm.weight,
                op->batch_norm.bias);
    if (op->kind == DSC_OP_POOL)
        fprintf(file,
                "\"pool\": %d, \"map\": [%d, %d], \"windows\": [%d, %d], \"kernel\": %d, \"stride\": %d, "
                "\"padding\": %d, ",
                (int)op->pool.kind, (int)op->pool.height, (int)op->pool.width, (int)op->pool.out_height,
                (int)op->pool.out_width, (int)op->pool.kernel, (int)op->pool.stride, (int)op->pool.padding);
    if (op->kind == DSC_OP_SLICE)
        fprintf(file, "\"column\": %d, \"width\": %d, \"apart\": %d, \"columns\": %d, ", (int)op->slice.column,
                (int)op->slice.width, (int)op->slice.apart, (int)r->source.value[op->out[0]].columns);
    fprintf(file, "\"in\": [%d, %d, %d], \"out\": %d, \"outs\": [%d, %d, %d]}", op->in[0], op->in[1], op->in[2],
            op->out[0], op->out[0], op->out[1], op->out[2]);
}

void program_dump(FILE *file, const program_random *r, const program_reference *reference, const program_result *result)
{
    const dsc_program *program = &r->source;
    const int64_t in = program_reference_elements(reference, program->input);
    fprintf(file, "{\"seed\": %d, \"batch\": %d, \"tokens\": %d, \"input\": %d, \"output\": %d, \"pairs\": %d, ",
            (int)r->seed, (int)r->batch, (int)program->tokens, program->input, program->output, r->rope.pairs);
    put_floats(file, "frequency", r->rope.frequency, r->rope.pairs);
    put_doubles(file, "in", reference->value[program->input], in);
    put_doubles(file, "d_out", reference->d_value[program->output], result->out_elements);
    put_floats(file, "got_out", result->out, result->out_elements);
    put_floats(file, "got_d_in", result->d_in, in);
    fprintf(file, "\"params\": [");
    for (int i = 0; i < r->param_count; i++) {
        fprintf(file, "%s{", i > 0 ? ", " : "");
        put_doubles(file, "value", reference->param[i], r->param_elements[i]);
        if (r->spec[i].trainable)
            put_floats(file, "got", result->d_param[i], r->param_elements[i]);
        fprintf(file, "\"number\": %d}", i);
    }
    fprintf(file, "], \"ops\": [");
    for (int16_t i = 0; i < program->op_count; i++) {
        fprintf(file, i > 0 ? ",\n" : "\n");
        put_op(file, r, reference, &program->op[i]);
    }
    fprintf(file, "]}\n");
}
