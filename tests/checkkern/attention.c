/* attention.c - checks and times attention against double precision. The allowed errors are counted for every
 * element from the roundings that lead to it, beside the expected values. SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/attention_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sanitizer.h"

static problem now; /* verify functions get the kernel's arguments only */
/* A GPU's benches: the reference in double would take minutes at their sizes, and its results stay 0. */
static bool bench_only;
static bool aligned; /* this case's rows start at multiples of 16 bytes where the head size lets them */

/* A tensor as the kernel sees it. Element (row, i) is element first + row * stride + i of a buffer; if heads are
 * apart, it is first + row * stride + i / size * apart + i % size. */
typedef struct view {
    void *buf;
    dsc_dtype dtype;
    int64_t first, stride, rows, cols;
    int64_t size, apart; /* 0: heads lie side by side */
} view;

static int64_t place(const view *x, int64_t row, int64_t i)
{
    return x->first + row * x->stride + (x->apart > 0 ? i / x->size * x->apart + i % x->size : i);
}

/* ---- the kernel's tensors ---- */

typedef struct tensors {
    view q, k, v, out, d_out, dq, dk, dv;
    float *lse, *d_sinks;
    void *scratch, *sinks;
} tensors;

static view alone(ck_role role, dsc_dtype dtype, int64_t rows, int64_t cols, int64_t gap, const char *name)
{
    view x = { NULL, dtype, 0, cols + gap, rows, cols, 0, 0 };
    x.buf = ck_buf(role, dtype, (rows - 1) * x.stride + cols, name);
    ck_gaps(x.buf, rows, cols, x.stride);
    return x;
}

/* Unused elements between rows: some number, or some heads where rows are aligned, as tile copies want them. */
static int64_t gap_of(const shape *s, int64_t any, int64_t heads) { return aligned ? heads * s->size : any; }

/* Three views of one [rows, (H + 2 KV) D] tensor, or three tensors with odd strides, each with its own. */
static void three(view to[3], const shape *s, ck_role role, dsc_dtype dtype, const char *const name[3])
{
    const int64_t rows = kv_rows_of(s), q = (int64_t)s->heads * s->size, kv = (int64_t)s->kv_heads * s->size;
    if (!s->packed) {
        to[0] = alone(role, dtype, rows_of(s), q, gap_of(s, 3, 1), name[0]);
        to[1] = alone(role, dtype, rows, kv, gap_of(s, 5, 1), name[1]);
        to[2] = alone(role, dtype, rows, kv, gap_of(s, 9, 3), name[2]);
        return;
    }
    view all = alone(role, dtype, rows, q + 2 * kv, 0, name[0]);
    to[0] = to[1] = to[2] = all;
    to[1].first = s->by_head ? s->size : q;
    to[2].first = s->by_head ? 2 * s->size : q + kv;
    to[0].first = s->past * to[0].stride;
    to[0].rows = rows_of(s);
    to[0].cols = q;
    to[1].cols = to[2].cols = kv;
    for (int i = 0; i < 3 && s->by_head; i++) {
        DSC_ASSERT(s->heads == s->kv_heads);
        to[i].size = s->size;
        to[i].apart = 3 * s->size;
    }
}

static void *address(const view *x) { return (char *)x->buf + x->first * (int64_t)dsc_dtype_bytes(x->dtype); }

static void read_view(const view *x, double *to)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; c < x->cols; c++)
            to[r * x->cols + c] = ck_get(x->buf, place(x, r, c));
}

static void write_view(const view *x, const double *from)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; c < x->cols; c++)
            ck_set(x->buf, place(x, r, c), from[r * x->cols + c]);
}

static void near_view(const view *x, const double *want, const double *tol, double factor)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; c < x->cols; c++) {
            const double expected = want[r * x->cols + c];
            ck_near(x->buf, place(x, r, c), expected, factor * tol[r * x->cols + c] + 1e-37);
        }
}

static void fill(const view *x)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; c < x->cols; c++) {
            double sum = -6;
            for (int i = 0; i < 12 && !bench_only; i++)
                sum += ck_random() / 4294967296.0; /* near normal */
            if (bench_only)
                sum = 3 * (ck_random() / 2147483648.0 - 1);
            ck_set(x->buf, place(x, r, c), sum);
        }
}

/* Inputs of the forward pass, and its results in double. */
static void forward_inputs(problem *p, tensors *x)
{
    static const char *const name[3] = { "q", "k", "v" };
    view in[3];
    three(in, &p->s, CK_IN, p->dtype, name);
    double *const to[3] = { p->q, p->k, p->v };
    for (int i = 0; i < 3; i++) {
        fill(&in[i]);
        read_view(&in[i], to[i]);
    }
    x->q = in[0], x->k = in[1], x->v = in[2];
    if (p->s.hide) {
        p->key_tokens = ck_buf(CK_IN, DSC_I32, rows_of(&p->s), "key_tokens");
        ck_int(p->key_tokens, 0, HIDDEN);
        for (int64_t b = 0; b < p->s.batch; b++)
            ck_set(p->key_tokens, b * p->s.tokens + p->s.tokens / 2, 0); /* one is seen */
        for (int64_t t = 0; t + 1 < p->s.tokens / 2; t++)
            ck_set(p->key_tokens, t, HIDDEN); /* the first sample: padding on the left, whole tiles of it */
    }
    if (p->s.documents > 0) {
        p->positions = ck_buf(CK_IN, DSC_I32, rows_of(&p->s), "positions");
        for (int64_t i = 0; i < rows_of(&p->s); i++) {
            const int64_t t = i % p->s.tokens;
            const bool begins = ck_random() % (uint32_t)p->s.documents == 0;
            ck_set(p->positions, i, t == 0 || begins ? 0 : p->positions[i - 1] + 1);
        }
    }
    x->sinks = p->s.sinks ? ck_buf(CK_IN, p->dtype, p->s.heads, "sinks") : NULL;
    for (int32_t h = 0; h < p->s.heads && p->s.sinks; h++) {
        ck_set(x->sinks, h, ck_random() / 1073741824.0 - 1);
        p->sinks[h] = ck_get(x->sinks, h);
    }
    if (!bench_only)
        ck_attention_forward(p);
}

static dsc_attention_keys keys_of(const problem *p)
{
    return (dsc_attention_keys){ .all = p->s.all, .tokens = p->key_tokens, .hidden = HIDDEN, .positions = p->positions,
                                 .window = p->s.window, .past = p->s.past };
}

static dsc_attention_logits logits_of(const problem *p)
{
    return (dsc_attention_logits){ .softcap = p->s.softcap, .alibi = p->s.alibi, .alibi_of_key = p->s.of_key };
}

static dsc_attention_fwd_args forward_args(const problem *p, const tensors *x)
{
    const shape *s = &p->s;
    return (dsc_attention_fwd_args){ .out = address(&x->out), .lse = x->lse, .q = address(&x->q), .k = address(&x->k),
                                     .v = address(&x->v), .scratch = x->scratch, .q_stride = x->q.stride,
                                     .k_stride = x->k.stride, .v_stride = x->v.stride, .out_stride = x->out.stride,
                                     .batch = s->batch, .tokens = s->tokens, .heads = s->heads,
                                     .kv_heads = s->kv_heads, .head_size = s->size, .head_stride = x->q.apart,
                                     .scale = (float)p->scale, .keys = keys_of(p), .logits = logits_of(p),
                                     .sinks = x->sinks, .dtype = p->dtype };
}

static dsc_attention_fwd_args forward_open(problem *p, tensors *x, bool want_lse)
{
    const shape *s = &p->s;
    forward_inputs(p, x);
    x->out = alone(CK_OUT, p->dtype, rows_of(s), (int64_t)s->heads * s->size, gap_of(s, 7, 1), "out");
    x->lse = want_lse ? ck_buf(CK_OUT, DSC_F32, rows_of(s) * s->heads, "lse") : NULL;
    x->scratch = ck_buf(CK_SCRATCH, DSC_U8, dsc_attention_fwd_scratch_bytes(s->batch, s->tokens, s->heads, s->size),
                        "scratch");
    return forward_args(p, x);
}

/* Room for the score gradients of some heads: as in a run, or of so few that there are several waves of heads. A wave
 * has one pair of a sample and a key head or, of more than two, two pairs: the last of an odd number is alone. */
static int64_t stored_bytes(const problem *p)
{
    const shape *s = &p->s;
    const dsc_attention_fwd_args args = { .batch = s->batch,
                                          .tokens = s->tokens,
                                          .heads = s->heads,
                                          .kv_heads = s->kv_heads,
                                          .head_size = s->size,
                                          .dtype = p->dtype,
                                          .keys = { .all = s->all, .window = s->window },
                                          .logits = logits_of(p) };
    const int64_t group = s->heads / s->kv_heads * dsc_attention_stored_head_bytes(s->tokens, s->all);
    const int64_t pairs_of_wave = (int64_t)s->batch * s->kv_heads > 2 ? 2 : 1;
    return dsc_attention_stored_bytes(&args, bench_only ? INT64_C(512) << 20 : pairs_of_wave * group + group / 2);
}

/* The forward pass's results become inputs, rounded to what a kernel would have written. */
static dsc_attention_bwd_args backward_open(problem *p, tensors *x)
{
    static const char *const name[3] = { "dq", "dk", "dv" };
    const shape *s = &p->s;
    const int64_t cols = (int64_t)s->heads * s->size;
    forward_inputs(p, x);
    x->out = alone(CK_IN, p->dtype, rows_of(s), cols, gap_of(s, 7, 1), "out");
    x->d_out = alone(CK_IN, p->dtype, rows_of(s), cols, gap_of(s, 7, 1), "d_out");
    write_view(&x->out, p->out_want);
    read_view(&x->out, p->out);
    fill(&x->d_out);
    read_view(&x->d_out, p->d_out);
    x->lse = ck_buf(CK_IN, DSC_F32, rows_of(s) * s->heads, "lse");
    for (int64_t i = 0; i < rows_of(s) * s->heads; i++) {
        ck_set(x->lse, i, p->lse_want[i]);
        p->lse[i] = ck_get(x->lse, i);
    }
    view grad[3];
    three(grad, s, CK_OUT, p->dtype, name);
    x->dq = grad[0], x->dk = grad[1], x->dv = grad[2];
    x->d_sinks = s->sinks ? ck_buf(CK_OUT, DSC_F32, s->heads, "d_sinks") : NULL;
    const int64_t stored = stored_bytes(p);
    x->scratch =
        ck_buf(CK_SCRATCH, DSC_U8, dsc_attention_stored_at(s->batch, s->tokens, s->heads, s->size) + stored, "scratch");
    return (dsc_attention_bwd_args){ .dq = address(&x->dq), .dk = address(&x->dk), .dv = address(&x->dv),
                                     .d_out = address(&x->d_out), .out = address(&x->out), .lse = x->lse,
                                     .q = address(&x->q), .k = address(&x->k), .v = address(&x->v),
                                     .scratch = x->scratch, .q_stride = x->q.stride, .k_stride = x->k.stride,
                                     .v_stride = x->v.stride, .out_stride = x->out.stride, .batch = s->batch,
                                     .tokens = s->tokens, .heads = s->heads, .kv_heads = s->kv_heads,
                                     .head_size = s->size, .head_stride = x->q.apart, .scale = (float)p->scale,
                                     .keys = keys_of(p), .logits = logits_of(p), .sinks = x->sinks,
                                     .d_sinks = x->d_sinks, .dtype = p->dtype, .stored_bytes = stored };
}

/* ---- against the double reference ---- */

static tensors current; /* of `now` */

static bool rounds_products(const problem *p) { return p->dtype == DSC_BF16 && (ck_caps() & DSC_CPU_AVX512_BF16) != 0; }

static void verify_forward(const void *args)
{
    if (now.bf16_products != rounds_products(&now)) {
        now.bf16_products = rounds_products(&now);
        ck_attention_forward(&now);
    }
    near_view(&current.out, now.out_want, now.out_tol, 1);
    for (int64_t i = 0; current.lse != NULL && i < rows_of(&now.s) * now.s.heads; i++)
        ck_near(current.lse, i, now.lse_want[i], now.lse_tol[i]);
}

/* Computes the gradients in double, once for all variants that round alike. */
static void gradients_in_double(void)
{
    double *const want[3] = { now.dq_want, now.dk_want, now.dv_want };
    double *const tol[3] = { now.dq_tol, now.dk_tol, now.dv_tol };
    const int64_t count[3] = { q_count(&now.s), kv_count(&now.s), kv_count(&now.s) };
    if (now.gradients_known && now.bf16_products == rounds_products(&now))
        return;
    now.bf16_products = rounds_products(&now);
    ck_attention_backward(&now);
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < count[i]; j++)
            tol[i][j] += 1.01 * ck_attention_rounded(&now, want[i][j]);
    now.gradients_known = true;
}

static void near_gradients(double factor)
{
    gradients_in_double();
    near_view(&current.dq, now.dq_want, now.dq_tol, factor);
    near_view(&current.dk, now.dk_want, now.dk_tol, factor);
    near_view(&current.dv, now.dv_want, now.dv_tol, factor);
    for (int32_t h = 0; h < now.s.heads && current.d_sinks != NULL; h++)
        ck_near(current.d_sinks, h, now.d_sinks_want[h], now.d_sinks_tol[h]);
}

static void verify_backward(const void *args) { near_gradients(1); }

/* cuDNN stores the slopes of the probabilities in 16 bits before it subtracts from them, a rounding more than here. */
static void verify_cudnn_backward(const void *args) { near_gradients(2); }

static bool align_case(bool want)
{
    aligned = want;
    if (want)
        ck_align();
    return true;
}

static void same_rows(const view *x, const double *before, int64_t tokens, int64_t first, int64_t last,
                      const char *what);

enum { LAYOUT_BYTES = 128 };

static void describe(const shape *s, bool align, char text[LAYOUT_BYTES])
{
    const int length =
        snprintf(text, LAYOUT_BYTES, "%s%s%s documents=%d window=%d past=%d",
                 s->packed ? s->by_head ? "by head" : "packed" : "apart", align ? " aligned" : "",
                 s->hide ? " all but hidden" : s->all ? " all" : "", s->documents, s->window, s->past);
    if (s->softcap > 0 || s->alibi > 0 || s->sinks)
        snprintf(text + length, (size_t)(LAYOUT_BYTES - length), " softcap=%g alibi=%g%s%s", (double)s->softcap,
                 (double)s->alibi, s->of_key > 0 ? " of keys" : "", s->sinks ? " sinks" : "");
}

/* The kernels of GPUs of compute capability 9.0 are compared with the reference. In the simulator, where both kinds of
 * products add up alike, those that add up in the order of the kernels of warps also have their bits. */
static bool warpgroups_case(const shape *s, const char *kind, const char *name)
{
    char layout[LAYOUT_BYTES];
    describe(s, true, layout);
    return ck_set_up.gpu &&
           ck_case("%s %s bf16 B=%d T=%d H=%d/%d D=%d %s", name, kind, s->batch, s->tokens, s->heads, s->kv_heads,
                   s->size, layout) &&
           align_case(true);
}

/* In plans' lines: a run's "warpgroups" is one of them. The last is one of gradients alone. */
static const char *const warpgroups_kinds[] = { "warpgroups-in-turn", "warpgroups-ahead", "warpgroups-staying",
                                                "warpgroups-stored" };

static size_t kinds_of(dsc_kernel kernel) { return DSC_COUNT(warpgroups_kinds) - (kernel == DSC_KERNEL_ATTENTION_FWD); }

/* Runs the kernel of warps, then checks the others. `shape_args`: what the choice is made by. */
static void check_both(dsc_kernel kernel, const void *args, int64_t args_bytes, ck_verify_fn verify,
                       const dsc_attention_fwd_args *shape_args, const view *const *results, int32_t count)
{
    double *before[3];
    if (!ck_device_choose_attention(shape_args, "warps"))
        return;
    ck_run(kernel, CK_GPU, args, args_bytes);
    for (int32_t i = 0; i < count; i++) {
        before[i] = ck_attention_doubles(results[i]->rows * results[i]->cols);
        read_view(results[i], before[i]);
    }
    for (size_t k = 0; k < kinds_of(kernel); k++) {
        if (!ck_device_choose_attention(shape_args, warpgroups_kinds[k]))
            ck_fail("the shape does not take the kernel %s", warpgroups_kinds[k]);
        ck_kernel(kernel, args, args_bytes, verify);
        const bool adds_alike = kernel == DSC_KERNEL_ATTENTION_BWD || k == 0;
        for (int32_t i = 0; i < count && ck_device_is_simulated() && adds_alike; i++)
            same_rows(results[i], before[i], now.s.tokens, 0, now.s.tokens, "beside the kernel of warps");
    }
    for (int32_t i = 0; i < count; i++)
        free(before[i]);
    (void)ck_device_choose_attention(shape_args, "warps");
}

static void check_warpgroups(const shape *s)
{
    if (warpgroups_case(s, "warpgroups", "attention_fwd")) {
        const view *const results[] = { &current.out };
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_fwd_args args = forward_open(&now, &current, s->tokens % 2 == 0);
        check_both(DSC_KERNEL_ATTENTION_FWD, &args, sizeof args, verify_forward, &args, results, 1);
        ck_attention_close(&now);
    }
    if (warpgroups_case(s, "warpgroups", "attention_bwd")) {
        const view *const results[] = { &current.dq, &current.dk, &current.dv };
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        dsc_attention_fwd_args shape_args = forward_args(&now, &current);
        shape_args.stored_bytes = args.stored_bytes;
        check_both(DSC_KERNEL_ATTENTION_BWD, &args, sizeof args, verify_backward, &shape_args, results, 3);
        ck_attention_close(&now);
    }
}

/* Attention by cuDNN, where it is installed and has the shape. It is held to the bounds of the other kernels. */
static bool cudnn_case(const shape *s, const char *name)
{
    char layout[LAYOUT_BYTES];
    describe(s, true, layout);
    return ck_set_up.gpu && ck_wants_cudnn() && ck_case("%s cudnn bf16 B=%d T=%d H=%d/%d D=%d %s", name, s->batch,
                                                        s->tokens, s->heads, s->kv_heads, s->size, layout) &&
           align_case(true);
}

static void run_cudnn(dsc_kernel kernel, const void *args, int64_t args_bytes, ck_verify_fn verify,
                      const dsc_attention_fwd_args *shape_args)
{
    if (!ck_device_choose_attention(shape_args, "cudnn")) {
        ck_skip("cuDNN has no plan for the shape");
        return;
    }
    ck_kernel(kernel, args, args_bytes, verify);
    (void)ck_device_choose_attention(shape_args, "warps");
}

static void check_cudnn(const shape *s)
{
    if (s->size % 8 != 0 || s->hide || s->documents > 0 || s->past > 0 || s->tokens < 2)
        return;
    if (cudnn_case(s, "attention_fwd")) {
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_fwd_args args = forward_open(&now, &current, s->tokens % 2 == 0);
        run_cudnn(DSC_KERNEL_ATTENTION_FWD, &args, sizeof args, verify_forward, &args);
        ck_attention_close(&now);
    }
    if (cudnn_case(s, "attention_bwd")) {
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        const dsc_attention_fwd_args shape_args = forward_args(&now, &current);
        run_cudnn(DSC_KERNEL_ATTENTION_BWD, &args, sizeof args, verify_cudnn_backward, &shape_args);
        ck_attention_close(&now);
    }
}

static void check_shape(const shape *s, dsc_dtype dtype, bool align)
{
    const char *type = ck_dtype_text(dtype);
    char layout[LAYOUT_BYTES];
    describe(s, align, layout);
    if (ck_case("attention_fwd %s B=%d T=%d H=%d/%d D=%d %s", type, s->batch, s->tokens, s->heads, s->kv_heads,
                s->size, layout) && align_case(align)) {
        ck_attention_open(&now, s, dtype);
        const dsc_attention_fwd_args args = forward_open(&now, &current, s->tokens % 2 == 0);
        ck_kernel(DSC_KERNEL_ATTENTION_FWD, &args, sizeof args, verify_forward);
        ck_attention_close(&now);
    }
    if (s->past == 0 && ck_case("attention_bwd %s B=%d T=%d H=%d/%d D=%d %s", type, s->batch, s->tokens, s->heads,
                                s->kv_heads, s->size, layout) && align_case(align)) {
        ck_attention_open(&now, s, dtype);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        ck_kernel(DSC_KERNEL_ATTENTION_BWD, &args, sizeof args, verify_backward);
        ck_attention_close(&now);
    }
}

/* ---- the double reference itself ---- */

/* loss = sum of out * d_out; its slope along one element by central differences. */
static double loss(problem *p)
{
    double sum = 0;
    ck_attention_forward(p);
    for (int64_t i = 0; i < q_count(&p->s); i++)
        sum += p->out_want[i] * p->d_out[i];
    return sum;
}

static void check_slopes(problem *p, double *x, const double *want, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++) {
        const double keep = x[i], step = 1e-5;
        x[i] = keep + step;
        const double up = loss(p);
        x[i] = keep - step;
        const double slope = (up - loss(p)) / (2 * step);
        x[i] = keep;
        if (!(fabs(slope - want[i]) <= 1e-8 * (1 + fabs(slope))))
            ck_fail("%s[%lld]: slope %.12g, gradient %.12g", name, (long long)i, slope, want[i]);
    }
}

static void check_finite_differences(bool all, bool documents)
{
    const shape tiny = { .batch = 2, .tokens = 5, .heads = 4, .kv_heads = 2, .size = 3, .scale_up = 1.5, .all = all,
                         .hide = all, .documents = documents ? 2 : 0, .window = documents ? 3 : 0,
                         .softcap = documents ? 2 : 0, .alibi = all ? 8 : 0, .sinks = true };
    if (!ck_case("attention gradients of the reference against finite differences%s",
                 all ? ", all keys, slopes" : documents ? ", documents, cap" : ""))
        return;
    ck_attention_open(&now, &tiny, DSC_F32);
    forward_inputs(&now, &current);
    memcpy(now.out, now.out_want, (size_t)q_count(&tiny) * sizeof(double));
    memcpy(now.lse, now.lse_want, (size_t)(rows_of(&tiny) * tiny.heads) * sizeof(double));
    for (int64_t i = 0; i < q_count(&tiny); i++)
        now.d_out[i] = ck_random() / 4294967296.0 - 0.5;
    ck_attention_backward(&now);
    check_slopes(&now, now.q, now.dq_want, q_count(&tiny), "dq");
    check_slopes(&now, now.k, now.dk_want, kv_count(&tiny), "dk");
    check_slopes(&now, now.v, now.dv_want, kv_count(&tiny), "dv");
    check_slopes(&now, now.sinks, now.d_sinks_want, tiny.heads, "d_sinks");
    ck_attention_close(&now);
}

/* ---- causality, bit by bit ---- */

static void change_rows(const view *x, int64_t tokens, int64_t first, int64_t last)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; r % tokens >= first && r % tokens < last && c < x->cols; c++)
            ck_set(x->buf, place(x, r, c), 3 * ck_get(x->buf, place(x, r, c)) - 1);
}

/* Rows first..last-1 of each sample have the bits that `before` (a copy of the whole view, as doubles) has. */
static void same_rows(const view *x, const double *before, int64_t tokens, int64_t first, int64_t last,
                      const char *what)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; r % tokens >= first && r % tokens < last && c < x->cols; c++) {
            const double got = ck_get(x->buf, place(x, r, c)), was = before[r * x->cols + c];
            if (memcmp(&got, &was, sizeof got) != 0) {
                ck_fail("%s: token %lld changed from %.9g to %.9g", what, (long long)(r % tokens), was, got);
                return;
            }
        }
}

static void check_causality(dsc_dtype dtype, uint32_t caps, const char *variant, int64_t cut)
{
    static const shape s = { .batch = 2, .tokens = 150, .heads = 2, .kv_heads = 1, .size = 24, .scale_up = 1 };
    const char *type = ck_dtype_text(dtype);
    double *before = ck_attention_doubles(q_count(&s));
    aligned = false;
    if (ck_case("attention_fwd %s %s does not see past token %d", type, variant, (int)cut - 1)) {
        ck_attention_open(&now, &s, dtype);
        const dsc_attention_fwd_args args = forward_open(&now, &current, true);
        ck_run(DSC_KERNEL_ATTENTION_FWD, caps, &args, sizeof args);
        read_view(&current.out, before);
        change_rows(&current.q, s.tokens, cut, s.tokens);
        change_rows(&current.k, s.tokens, cut, s.tokens);
        change_rows(&current.v, s.tokens, cut, s.tokens);
        ck_run(DSC_KERNEL_ATTENTION_FWD, caps, &args, sizeof args);
        same_rows(&current.out, before, s.tokens, 0, cut, "out");
        ck_attention_close(&now);
    }
    if (ck_case("attention_bwd %s %s gives token %d nothing from before", type, variant, (int)cut)) {
        ck_attention_open(&now, &s, dtype);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        ck_run(DSC_KERNEL_ATTENTION_BWD, caps, &args, sizeof args);
        read_view(&current.dk, before);
        change_rows(&current.d_out, s.tokens, 0, cut);
        change_rows(&current.out, s.tokens, 0, cut);
        ck_run(DSC_KERNEL_ATTENTION_BWD, caps, &args, sizeof args);
        same_rows(&current.dk, before, s.tokens, cut, s.tokens, "dk");
        ck_attention_close(&now);
    }
    free(before);
}

/* ---- times ---- */

static void bench_kind(const char *kind, dsc_kernel kernel, const void *args, int64_t args_bytes,
                       const dsc_attention_fwd_args *shape_args, int64_t flops)
{
    if (ck_device_choose_attention(shape_args, kind))
        ck_bench(kernel, args, args_bytes, 0, flops, 0);
    (void)ck_device_choose_attention(shape_args, "warps");
}

/* On cards that have two kernels of each pass. `product`: multiply-adds of one. */
static void bench_warpgroups(size_t number, const shape *s, int64_t product)
{
    const char *const kind = warpgroups_kinds[number];
    if (number < kinds_of(DSC_KERNEL_ATTENTION_FWD) && warpgroups_case(s, kind, "bench attention_fwd")) {
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_fwd_args args = forward_open(&now, &current, true);
        bench_kind(kind, DSC_KERNEL_ATTENTION_FWD, &args, sizeof args, &args, 2 * product);
        ck_attention_close(&now);
    }
    if (warpgroups_case(s, kind, "bench attention_bwd")) {
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        dsc_attention_fwd_args shape_args = forward_args(&now, &current);
        shape_args.stored_bytes = args.stored_bytes;
        bench_kind(kind, DSC_KERNEL_ATTENTION_BWD, &args, sizeof args, &shape_args, 5 * product);
        ck_attention_close(&now);
    }
}

static void bench_cudnn(const shape *s, int64_t product)
{
    if (cudnn_case(s, "bench attention_fwd")) {
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_fwd_args args = forward_open(&now, &current, true);
        bench_kind("cudnn", DSC_KERNEL_ATTENTION_FWD, &args, sizeof args, &args, 2 * product);
        ck_attention_close(&now);
    }
    if (cudnn_case(s, "bench attention_bwd")) {
        ck_attention_open(&now, s, DSC_BF16);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        const dsc_attention_fwd_args shape_args = forward_args(&now, &current);
        bench_kind("cudnn", DSC_KERNEL_ATTENTION_BWD, &args, sizeof args, &shape_args, 5 * product);
        ck_attention_close(&now);
    }
}

static void bench(const shape *s, dsc_dtype dtype)
{
    bench_only = ck_set_up.gpu;
    const char *type = ck_dtype_text(dtype);
    /* Multiply-adds of one product over the keys that each query sees. */
    const int64_t product = 2ll * s->batch * s->heads * s->size * ((int64_t)s->tokens * (s->tokens + 1) / 2);
    if (ck_case("bench attention_fwd %s B=%d T=%d H=%d/%d D=%d", type, s->batch, s->tokens, s->heads, s->kv_heads,
                s->size) &&
        align_case(ck_set_up.gpu)) {
        ck_attention_open(&now, s, dtype);
        const dsc_attention_fwd_args args = forward_open(&now, &current, true);
        ck_bench(DSC_KERNEL_ATTENTION_FWD, &args, sizeof args, 0, 2 * product, s->tokens > 256);
        ck_attention_close(&now);
    }
    if (ck_case("bench attention_bwd %s B=%d T=%d H=%d/%d D=%d", type, s->batch, s->tokens, s->heads, s->kv_heads,
                s->size) &&
        align_case(ck_set_up.gpu)) {
        ck_attention_open(&now, s, dtype);
        const dsc_attention_bwd_args args = backward_open(&now, &current);
        ck_bench(DSC_KERNEL_ATTENTION_BWD, &args, sizeof args, 0, 5 * product, s->tokens > 256);
        ck_attention_close(&now);
    }
    for (size_t k = 0; k < DSC_COUNT(warpgroups_kinds); k++)
        bench_warpgroups(k, s, product);
    bench_cudnn(s, product);
}

/* Long ones take a simulated GPU, or a build for ThreadSanitizer, a second or more. There fp32 and fp16, which are
 * instances of one source, take turns over the shapes by day. */
static bool takes_turn(size_t number, const shape *s, dsc_dtype dtype)
{
    if ((!ck_device_is_simulated() && !SANITIZE_THREAD) || s->tokens < 100 || getenv("DSC_TEST_NIGHT") != NULL)
        return true;
    return (number % 2 == 0) == (dtype == DSC_F32);
}

static void check_types(size_t number, const shape *s)
{
    check_shape(s, DSC_BF16, false);
    if (takes_turn(number, s, DSC_F32))
        check_shape(s, DSC_F32, false);
    if (takes_turn(number, s, DSC_F16))
        check_shape(s, DSC_F16, false);
    if (s->size % 8 == 0)
        check_shape(s, DSC_BF16, true);
}

/* Shapes that the kernels of warpgroups and of cuDNN do not have. */
#define HEADS(h, kv, d) .heads = (h), .kv_heads = (kv), .size = (d)
static const shape with_logits[] = {
    { .batch = 1, .tokens = 97, HEADS(4, 2, 64), .packed = true, .scale_up = 3, .documents = 20, .window = 30,
      .softcap = 2 },
    { .batch = 1, .tokens = 70, HEADS(2, 1, 128), .scale_up = 1, .all = true, .hide = true, .softcap = 50 },
    { .batch = 1, .tokens = 33, HEADS(2, 2, 200), .scale_up = 2, .softcap = 3 },
    { .batch = 1, .tokens = 20, HEADS(3, 3, 33), .packed = true, .by_head = true, .scale_up = 4, .past = 50,
      .softcap = 5, .alibi = 8, .sinks = true },
    { .batch = 2, .tokens = 150, HEADS(2, 1, 64), .packed = true, .scale_up = 1, .all = true, .window = 40 },
    { .batch = 1, .tokens = 200, HEADS(2, 2, 24), .scale_up = 1, .all = true, .documents = 60 },
    { .batch = 1, .tokens = 290, HEADS(1, 1, 96), .scale_up = 1, .all = true, .documents = 90, .window = 131 },
    { .batch = 1, .tokens = 90, HEADS(2, 1, 200), .scale_up = 1, .all = true, .documents = 30, .window = 50 },
    { .batch = 1, .tokens = 75, HEADS(6, 2, 64), .scale_up = 1, .documents = 30, .alibi = 8 },
    { .batch = 1, .tokens = 40, HEADS(3, 1, 128), .scale_up = 1, .all = true, .alibi = 4 },
    { .batch = 2, .tokens = 50, HEADS(4, 2, 64), .packed = true, .scale_up = 2, .window = 20, .sinks = true },
    { .batch = 1, .tokens = 33, HEADS(2, 1, 200), .scale_up = 2, .softcap = 20, .alibi = 8, .sinks = true },
    { .batch = 1, .tokens = 300, HEADS(5, 5, 64), .packed = true, .scale_up = 1, .alibi = 8, .of_key = 0.125f },
    { .batch = 1, .tokens = 20, HEADS(3, 1, 33), .scale_up = 2, .past = 50, .alibi = 8, .of_key = 0.17f },
};

/* Rows leave out the last fields, which are 0. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
void ck_attention(void)
{
    static const shape shapes[] = {
        { 1, 1, 1, 1, 1, false, 1, false, false, false, 0, 0, 0 },
        { 2, 40, 3, 3, 20, true, 1, false, false, false, 0, 0, 0 },
        { 1, 65, 2, 1, 15, false, 2, false, false, false, 0, 0, 0 },
        { 1, 130, 4, 2, 64, true, 1, false, false, false, 0, 0, 0 },
        { 2, 64, 2, 2, 64, true, 1, false, false, false, 0, 0, 0 },
        { 1, 200, 6, 2, 80, false, 1, false, false, false, 0, 0, 0 },
        { 1, 70, 5, 5, 128, true, 3, false, false, false, 0, 0, 0 },
        { 1, 257, 2, 1, 64, true, 1, false, false, false, 0, 0, 0 },
        { 2, 17, 2, 2, 33, false, 1, false, false, false, 0, 0, 0 },
        { 1, 100, 8, 1, 128, true, 1, false, false, false, 0, 0, 0 },
        { 2, 72, 14, 2, 64, false, 1, false, false, false, 0, 0, 0 },
        { 1, 129, 1, 1, 200, false, 1, false, false, false, 0, 0, 0 },
        { 1, 40, 4, 4, 15, true, 1, false, false, false, 0, 0, 0 },
        { 1, 192, 2, 2, 96, false, 8, false, false, false, 0, 0, 0 },
        { 1, 70, 3, 3, 20, true, 1, true, false, false, 0, 0, 0 },
        { 2, 33, 4, 4, 64, true, 1, true, false, false, 0, 0, 0 },
        { 2, 70, 3, 3, 20, true, 1, true, true, true, 0, 0, 0 },
        { 1, 130, 2, 2, 64, true, 1, false, true, false, 0, 0, 0 },
        { 2, 64, 4, 2, 64, false, 1, false, true, true, 0, 0, 0 },
        { 1, 200, 2, 1, 80, false, 1, false, true, true, 0, 0, 0 },
        { 3, 5, 2, 2, 16, true, 2, false, true, false, 0, 0, 0 },
        { 1, 65, 2, 2, 128, true, 3, false, true, true, 0, 0, 0 },
        { 1, 129, 1, 1, 200, false, 1, false, true, true, 0, 0, 0 },
        { 1, 300, 2, 1, 64, true, 1, false, true, true, 0, 0, 0 },
        { 1, 420, 2, 1, 64, true, 1, false, false, false, 0, 0, 0 },
        { 1, 513, 4, 1, 128, true, 1, false, false, false, 0, 0, 0 },
        { 2, 200, 4, 2, 64, true, 1, false, false, false, 40, 0, 0 },
        { 1, 300, 2, 1, 80, false, 1, false, false, false, 90, 0, 0 },
        { 2, 70, 3, 3, 20, true, 1, true, false, false, 9, 0, 0 },
        { 1, 257, 2, 2, 128, false, 3, false, false, false, 300, 0, 0 },
        { 1, 260, 2, 1, 64, false, 1, false, false, false, 0, 33, 0 },
        { 2, 200, 2, 2, 24, true, 1, false, false, false, 50, 70, 0 },
        { 1, 130, 1, 1, 200, false, 1, false, false, false, 30, 129, 0 },
        { 1, 1, 4, 2, 64, false, 1, false, false, false, 0, 0, 1 },
        { 1, 1, 6, 2, 64, false, 1, false, false, false, 0, 0, 200 },
        { 1, 33, 4, 4, 64, true, 1, false, false, false, 0, 0, 95 },
        { 1, 70, 3, 1, 20, false, 1, false, false, false, 0, 0, 64 },
        { 1, 130, 2, 2, 128, false, 3, false, false, false, 0, 100, 61 },
        { 1, 20, 2, 2, 33, true, 1, true, false, false, 0, 0, 7 },
        { 1, 3, 2, 1, 200, false, 1, false, false, false, 0, 16, 129 },
    };
    static const shape timed[] = {
        { 4, 256, 6, 6, 64, true, 1, false, false, false, 0, 0, 0 },
        { 4, 64, 12, 12, 64, true, 1, false, false, false, 0, 0, 0 },
        { 1, 1024, 12, 12, 64, true, 1, false, false, false, 0, 0, 0 },
        { 1, 512, 14, 2, 64, true, 1, false, false, false, 0, 0, 0 },
    };
    static const shape timed_gpu[] = {
        { 32, 1024, 12, 12, 64, true, 1, false, false, false, 0, 0, 0 },
        { 8, 1024, 25, 25, 64, true, 1, false, false, false, 0, 0, 0 },
        { 4, 2048, 32, 32, 128, true, 1, false, false, false, 0, 0, 0 },
        { 2, 4096, 32, 32, 128, true, 1, false, false, false, 0, 0, 0 },
        { 2, 4096, 32, 8, 128, true, 1, false, false, false, 0, 0, 0 },
    };
    check_finite_differences(false, false);
    check_finite_differences(true, false);
    check_finite_differences(false, true);
    for (size_t i = 0; i < DSC_COUNT(shapes); i++) {
        check_types(i, &shapes[i]);
        if (shapes[i].size % 8 == 0 && shapes[i].size >= 64 && shapes[i].size <= 128 && shapes[i].past == 0)
            check_warpgroups(&shapes[i]);
        check_cudnn(&shapes[i]);
    }
    for (size_t i = 0; i < DSC_COUNT(with_logits); i++)
        check_types(i, &with_logits[i]);
    for (int32_t v = 0; v < CK_VARIANTS; v++) {
        const uint32_t caps = ck_set_up.gpu ? CK_GPU : ck_variants[v].caps;
        if (ck_set_up.gpu ? v > 0 : (caps & ~dsc_cpu_caps()) != 0)
            continue;
        check_causality(DSC_F32, caps, ck_variant_name(caps), 70);
        check_causality(DSC_BF16, caps, ck_variant_name(caps), 37);
        check_causality(DSC_F16, caps, ck_variant_name(caps), 65);
        check_causality(DSC_BF16, caps, ck_variant_name(caps), 128);
    }
    for (size_t i = 0; ck_benching() && ck_set_up.gpu && i < DSC_COUNT(timed_gpu); i++)
        bench(&timed_gpu[i], DSC_BF16);
    for (size_t i = 0; ck_benching() && !ck_set_up.gpu && i < DSC_COUNT(timed); i++) {
        bench(&timed[i], DSC_BF16);
        bench(&timed[i], DSC_F32);
    }
}
