/* cudnn_conv2d.cc - a pass of a convolution as a graph: the convolution, and the sum with a bias.
 *
 * Tensors are [B,C,H,W] and [Cout,Cin,kh,kw] whose channels lie together. Sums are fp32. Engines that sum in another
 * order each time are left out, and those that round operands or sums further than the dtype says.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cudnn/cudnn_graph.h"

namespace {

using namespace dsc_cudnn;

enum uid : int64_t { IN = 1, WITH, ADD, OUT };

fe::DataType_t type_of(dsc_dtype dtype)
{
    return dtype == DSC_F32 ? fe::DataType_t::FLOAT : fe::DataType_t::BFLOAT16;
}

/* A tensor [n,c,h,w] with channels together. */
void lay(const tensor &t, int64_t n, int64_t c, int64_t h, int64_t w, dsc_dtype dtype)
{
    t->set_dim({ n, c, h, w }).set_stride({ h * w * c, 1, w * c, c }).set_data_type(type_of(dtype));
}

void lay_x(const tensor &t, const dsc_conv2d_args *a)
{
    lay(t, a->shape.batch, a->shape.in, a->shape.height, a->shape.width, a->dtype);
}

void lay_y(const tensor &t, const dsc_conv2d_args *a)
{
    lay(t, a->shape.batch, a->shape.out, dsc_conv2d_out(&a->shape, 0), dsc_conv2d_out(&a->shape, 1), a->dtype);
}

void lay_weight(const tensor &t, const dsc_conv2d_args *a)
{
    lay(t, a->shape.out, a->shape.in, a->shape.kernel[0], a->shape.kernel[1], a->dtype);
}

void lay_bias(const tensor &t, const dsc_conv2d_args *a) { lay(t, 1, a->shape.out, 1, 1, a->dtype); }

using lay_fn = void (*)(const tensor &, const dsc_conv2d_args *);

tensor input(fe::graph::Graph *graph, uid id, const char *name, lay_fn lay_it, const dsc_conv2d_args *a)
{
    fe::graph::Tensor_attributes attributes;
    attributes.set_name(name).set_uid(id);
    const tensor t = graph->tensor(attributes);
    lay_it(t, a);
    return t;
}

template <class Attributes> Attributes convolution(const char *name, const dsc_conv2d_shape *s)
{
    Attributes attributes;
    attributes.set_name(name);
    attributes.set_padding({ s->padding[0], s->padding[1] })
        .set_stride({ s->stride[0], s->stride[1] })
        .set_dilation({ s->dilation[0], s->dilation[1] });
    return attributes;
}

/* The convolution's result, and how it lies. */
tensor convolve(fe::graph::Graph *graph, const dsc_conv2d_args *a, lay_fn *lay_it)
{
    const dsc_conv2d_shape *s = &a->shape;
    if (a->pass == DSC_CONV2D_DW) {
        const tensor x = input(graph, IN, "x", lay_x, a), dy = input(graph, WITH, "dy", lay_y, a);
        *lay_it = lay_weight;
        return graph->conv_wgrad(dy, x, convolution<fe::graph::Conv_wgrad_attributes>("gradient", s));
    }
    const tensor w = input(graph, WITH, "weight", lay_weight, a);
    if (a->pass == DSC_CONV2D_DX) {
        *lay_it = lay_x;
        const tensor dy = input(graph, IN, "dy", lay_y, a);
        return graph->conv_dgrad(dy, w, convolution<fe::graph::Conv_dgrad_attributes>("back", s));
    }
    *lay_it = lay_y;
    const tensor x = input(graph, IN, "x", lay_x, a);
    return graph->conv_fprop(x, w, convolution<fe::graph::Conv_fprop_attributes>("forward", s));
}

void add_pass(fe::graph::Graph *graph, const dsc_conv2d_args *a)
{
    lay_fn lay_out = NULL;
    tensor out = convolve(graph, a, &lay_out);
    if (a->pass == DSC_CONV2D_Y && a->add != NULL) {
        lay_out(out, a);
        out->set_data_type(fe::DataType_t::FLOAT); /* not rounded before the sum */
        const tensor more = input(graph, ADD, "bias", lay_bias, a);
        fe::graph::Pointwise_attributes attributes;
        attributes.set_name("sum").set_mode(fe::PointwiseMode_t::ADD);
        out = graph->pointwise(out, more, attributes);
    }
    out->set_output(true).set_name("out").set_uid(OUT);
    lay_out(out, a);
}

} // namespace

dsc_status dsc_cudnn::conv2d_plan_open(void *opened, const dsc_conv2d_args *shape, void **out,
                                       dsc_cudnn_plan_info *info, dsc_error *err)
{
    std::vector<fe::NumericalNote_t> without = { fe::NumericalNote_t::NONDETERMINISTIC,
                                                 fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                                 fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION };
    if (shape->dtype == DSC_F32)
        without.push_back(fe::NumericalNote_t::TENSOR_CORE); /* they round to tf32 */
    return open_plan(static_cast<library *>(opened), type_of(shape->dtype), without,
                     [=](fe::graph::Graph *graph) { add_pass(graph, shape); }, out, info, err);
}

dsc_status dsc_cudnn::conv2d_run(void *opened, void *stream, void *workspace, const dsc_conv2d_args *a, dsc_error *err)
{
    return guarded(DSC_ERR_DEVICE, "a run", err, [=]() -> dsc_status {
        pointers at = { { IN, writable(a->in) }, { WITH, writable(a->with) }, { OUT, a->out } };
        if (a->pass == DSC_CONV2D_Y && a->add != NULL)
            at[ADD] = writable(a->add);
        return run(static_cast<plan *>(opened), stream, workspace, &at, err);
    });
}
