/* conv2d_plan.cu - see conv2d_plan.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv2d/conv2d_plan.h"
#include "kernels/conv2d_products.h"
#include "kernels/cuda/conv2d/conv2d_cudnn.h"
#include "kernels/cuda/conv2d/conv2d_trial.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/measure.h"
#include "kernels/cuda/plan_text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

/* Plain bytes, compared as such: no padding. */
typedef struct conv2d_key {
    dsc_conv2d_shape shape;
    int32_t pass, dtype, adds, zero; /* adds: Y with a bias */
} conv2d_key;

typedef struct conv2d_plan {
    conv2d_key key;
    bool from_text;   /* its choice comes from a text: not to be tried */
    bool taken;       /* by cuDNN */
    cudnn_plan cudnn; /* NULL: cuDNN is wanted and has no plan */
} conv2d_plan;

/* A model has some dozens of shapes, of three passes each. */
enum { PLANS_MAX = 512, LINE_BYTES = 480 };

struct dsc_cuda_conv2d {
    dsc_alloc *alloc;
    int32_t arch;
    dsc_cudnn_use use;
    dsc_gemm_choice choice;
    cudnn_library cudnn;
    pthread_mutex_t lock;
    conv2d_plan plans[PLANS_MAX];
    int32_t count;
};

namespace {

conv2d_key key_of(const dsc_conv2d_args *a)
{
    conv2d_key key;
    memset(&key, 0, sizeof key);
    key.shape = a->shape;
    key.pass = a->pass, key.dtype = a->dtype, key.adds = a->pass == DSC_CONV2D_Y && a->add != NULL;
    return key;
}

/* The pass without pointers, but for whether it has a bias. */
dsc_conv2d_args shape_of(const conv2d_key *key)
{
    static const char adds = 0;
    dsc_conv2d_args a = {};
    a.pass = static_cast<dsc_conv2d_pass>(key->pass), a.dtype = static_cast<dsc_dtype>(key->dtype);
    a.shape = key->shape;
    a.add = key->adds != 0 ? &adds : NULL;
    return a;
}

conv2d_plan *find(dsc_cuda_conv2d *x, const dsc_conv2d_args *a)
{
    const conv2d_key key = key_of(a);
    for (int32_t i = 0; i < x->count; i++)
        if (memcmp(&x->plans[i].key, &key, sizeof key) == 0)
            return &x->plans[i];
    return NULL;
}

/* ---- choice ---- */

dsc_status choose(const dsc_cuda_conv2d *x, conv2d_trial *t, conv2d_plan *p, dsc_cudnn_tried *out, dsc_error *err)
{
    conv2d_found found = {};
    t->plan = p->cudnn.plan, t->shape = shape_of(&p->key);
    t->timed = x->use == DSC_CUDNN_AUTO && x->choice == DSC_GEMM_FASTEST;
    DSC_TRY(dsc_cuda_conv2d_try(t, &found, err));
    const bool is_right = found.fits && found.far == 0 && found.unlike == 0;
    const bool is_slower = is_right && t->timed && !(found.ms[1] < MEASURE_WORTH * found.ms[0]);
    out->untried += !found.fits;
    out->wrong += found.fits && !is_right;
    out->slower += is_slower;
    p->taken = is_right && !is_slower;
    return DSC_OK;
}

dsc_status choose_all(dsc_cuda_conv2d *x, conv2d_trial *t, dsc_gemm_choice choice, dsc_cudnn_tried *out, dsc_error *err)
{
    for (int32_t i = 0; i < x->count; i++) {
        conv2d_plan *p = &x->plans[i];
        if (p->from_text || p->cudnn.plan == NULL)
            continue;
        out->shapes++;
        if (choice == DSC_GEMM_FIRST)
            p->taken = true;
        else
            DSC_TRY(choose(x, t, p, out, err));
        out->taken += p->taken;
    }
    return DSC_OK;
}

/* ---- as text ---- */

/* Everything of the key: two plans of one text would be one plan. */
void line_of(const conv2d_key *k, const char *kind, char line[LINE_BYTES])
{
    static const char *const passes[] = { "y", "dx", "dw" };
    const dsc_conv2d_shape *s = &k->shape;
    snprintf(line, LINE_BYTES,
             "conv2d %s %s %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " to %" PRId64 " window %" PRId64 "x%" PRId64
             " stride %" PRId64 ",%" PRId64 " padding %" PRId64 ",%" PRId64 " dilation %" PRId64 ",%" PRId64 "%s by %s",
             passes[k->pass], k->dtype == DSC_BF16 ? "bf16" : "fp32", s->batch, s->height, s->width, s->in, s->out,
             s->kernel[0], s->kernel[1], s->stride[0], s->stride[1], s->padding[0], s->padding[1], s->dilation[0],
             s->dilation[1], k->adds != 0 ? " bias" : "", kind);
}

/* "by cudnn" alone, which people write, is any version and engine of it. */
bool is_named(const conv2d_plan *p, const char *kind, const char *text)
{
    char line[LINE_BYTES];
    line_of(&p->key, kind, line);
    return has_line(text, line);
}

/* The text had cuDNN for a pass that has no choice here. */
bool is_lost(const conv2d_plan *p, const char *text)
{
    char line[LINE_BYTES];
    line_of(&p->key, "cudnn ", line);
    return p->cudnn.plan == NULL && strstr(text, line) != NULL;
}

} // namespace

dsc_status dsc_cuda_conv2d_open(const dsc_device_options *options, int32_t arch, dsc_cuda_conv2d **out, dsc_error *err)
{
    dsc_cuda_conv2d *x = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *x, &x, err));
    x->alloc = options->alloc;
    x->arch = arch;
    x->use = options->convolutions;
    x->choice = options->plans;
    pthread_mutex_init(&x->lock, NULL); /* cannot fail with default attributes on Linux */
    *out = x;
    return DSC_OK;
}

void dsc_cuda_conv2d_close(dsc_cuda_conv2d **conv2d)
{
    dsc_cuda_conv2d *x = *conv2d;
    if (x == NULL)
        return;
    for (int32_t i = 0; i < x->count; i++)
        dsc_cuda_cudnn_plan_close(&x->cudnn, &x->plans[i].cudnn);
    dsc_cuda_cudnn_close(&x->cudnn);
    pthread_mutex_destroy(&x->lock);
    dsc_alloc_free(x->alloc, x);
    *conv2d = NULL;
}

/* A shape is asked for once, since the answer takes time. */
void dsc_cuda_conv2d_prepare(dsc_cuda_conv2d *x, const dsc_conv2d_args *shape)
{
    if (!dsc_conv2d_wants_cudnn(shape, x->use, x->choice, x->arch))
        return;
    pthread_mutex_lock(&x->lock);
    if (find(x, shape) == NULL && x->count < PLANS_MAX) {
        conv2d_plan *p = &x->plans[x->count++];
        *p = {};
        p->key = key_of(shape);
        (void)dsc_cuda_conv2d_cudnn_plan(&x->cudnn, x->arch, shape,
                                         dsc_cuda_cudnn_workspace_most(x->use == DSC_CUDNN_ALWAYS), &p->cudnn);
    }
    pthread_mutex_unlock(&x->lock);
}

int64_t dsc_cuda_conv2d_workspace_bytes(const dsc_cuda_conv2d *x) { return x->cudnn.needed_bytes; }

void dsc_cuda_conv2d_set_workspace(dsc_cuda_conv2d *x, void *memory, int64_t bytes)
{
    if (dsc_cuda_cudnn_set_workspace(&x->cudnn, memory, bytes))
        return;
    for (int32_t i = 0; i < x->count; i++)
        dsc_cuda_cudnn_plan_close(&x->cudnn, &x->plans[i].cudnn);
    dsc_cuda_cudnn_close(&x->cudnn);
}

/* Under the lock. cuDNN's plan of a pass; NULL: it is products. */
static void *taken(dsc_cuda_conv2d *x, const dsc_conv2d_args *a)
{
    const conv2d_plan *p = find(x, a);
    return p != NULL && p->taken ? p->cudnn.plan : NULL;
}

bool dsc_cuda_conv2d_is_whole(dsc_cuda_conv2d *x, const dsc_conv2d_args *a)
{
    pthread_mutex_lock(&x->lock);
    const bool whole = dsc_cuda_conv2d_cudnn_aligned(a) && taken(x, a) != NULL;
    pthread_mutex_unlock(&x->lock);
    return whole;
}

dsc_status dsc_cuda_conv2d_launch(const dsc_cuda_launch *at, const dsc_conv2d_args *a, dsc_error *err)
{
    dsc_cuda_conv2d *x = at->conv2d;
    pthread_mutex_lock(&x->lock);
    void *const plan = taken(x, a);
    const dsc_status status =
        plan != NULL ? dsc_cuda_conv2d_cudnn_run(at, &x->cudnn, plan, a, err)
                     : DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "CONV2D",
                                "a GPU has the pass as WINDOWS and GEMM; only cuDNN has it whole, where chosen");
    pthread_mutex_unlock(&x->lock);
    return status;
}

dsc_status dsc_cuda_conv2d_choose(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes, dsc_gemm_choice choice,
                                  int64_t chunk_bytes, dsc_cudnn_tried *out, dsc_error *err)
{
    dsc_cuda_conv2d *x = at->conv2d;
    conv2d_trial t = {};
    t.at = at, t.cudnn = &x->cudnn, t.chunk_bytes = chunk_bytes;
    t.memory = static_cast<char *>(memory), t.memory_bytes = memory_bytes;
    DSC_ASSERT(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    pthread_mutex_lock(&x->lock);
    out->number = x->cudnn.number;
    snprintf(out->note, sizeof out->note, "%s", x->cudnn.note);
    const dsc_status status = choose_all(x, &t, choice, out, err);
    pthread_mutex_unlock(&x->lock);
    return status;
}

void dsc_cuda_conv2d_plans_get(dsc_cuda_conv2d *x, char *text, int64_t capacity, int64_t *bytes)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        const conv2d_plan *p = &x->plans[i];
        if (p->cudnn.plan == NULL)
            continue;
        line_of(&p->key, p->taken ? p->cudnn.name : "products", line);
        put_line(line, text, capacity, bytes);
    }
    pthread_mutex_unlock(&x->lock);
}

void dsc_cuda_conv2d_plans_set(dsc_cuda_conv2d *x, const char *text, int64_t *others)
{
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        conv2d_plan *p = &x->plans[i];
        if (p->cudnn.plan == NULL) {
            *others += text != NULL && is_lost(p, text);
            continue;
        }
        const bool library = text != NULL && (is_named(p, p->cudnn.name, text) || is_named(p, "cudnn", text));
        const bool found = library || (text != NULL && is_named(p, "products", text));
        if (found)
            p->taken = library;
        p->from_text = p->from_text || found;
        *others += !found;
    }
    pthread_mutex_unlock(&x->lock);
}

dsc_status dsc_cuda_run_CONV2D(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return dsc_cuda_conv2d_launch(at, static_cast<const dsc_conv2d_args *>(args), err);
}
