/* attention_plan.cu - see attention_plan.h.
 *
 * The kernels of warpgroups may not work with every card, driver or compiler. So both kernels of a shape are tried on
 * the same input (attention_trial.cu). If the difference is larger than rounding explains, the kernel does not work
 * here and is not used; otherwise it is, without regard to times. The bits then follow from card and shape alone, so
 * that fresh runs have equal bits. The kernel that stores score gradients changes no bit, and is taken where it is
 * faster and its run has room (dsc_attention_fwd_args.stored_bytes). A shape's forward pass and its gradients are two
 * plans. cuDNN's kernel is tried in the same way, and timed where times may choose.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/attention_trial.h"
#include "kernels/cuda/measure.h"
#include "kernels/cuda/plan_text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

/* Plain bytes, compared as such: no padding. */
typedef struct attention_key {
    int64_t q_stride, k_stride, v_stride, out_stride, head_stride;
    int32_t batch, tokens, heads, kv_heads, size, window;
    uint8_t backward, all, hides, documents, zero[4];
} attention_key;

typedef struct attention_plan {
    attention_key key;
    dsc_attention_fwd_args shape; /* without pointers */
    bool from_text;               /* its choice comes from a text: not to be tried */
    bool has_sm90;                /* beside the kernel of warps, that of warpgroups */
    cudnn_plan cudnn;
    dsc_attention_kind own;  /* the best of dsc's own */
    dsc_attention_kind kind; /* what it takes */
} attention_plan;

/* A model's layers have one shape or two, and checkkern has all of its own. */
enum { PLANS_MAX = 128, WITHOUT_MAX = 16 };
/* PyTorch's cuDNN has 1.4 times the speed of our forward pass for heads of 64 on an H200 (bench/results). Narrower
 * heads are not measured. */
constexpr int32_t CUDNN_HEAD_LEAST = 64;

struct dsc_cuda_attention {
    dsc_alloc *alloc;
    int32_t arch;
    dsc_cudnn_use source;
    dsc_gemm_choice choice;
    void *encode; /* from dsc_cuda_attention_sm90_find; NULL: there is nothing to choose */
    bool cannot_start; /* the second kernels, as compiled: no encode then */
    pthread_mutex_t lock;
    attention_plan plans[PLANS_MAX];
    int32_t count;
    cudnn_library cudnn;
    attention_key without[WITHOUT_MAX]; /* passes for which cuDNN is wanted and has no plan */
    int32_t without_count;
};

namespace {

attention_key key_of(const dsc_attention_fwd_args *a, bool backward)
{
    attention_key key;
    memset(&key, 0, sizeof key);
    key.q_stride = a->q_stride, key.k_stride = a->k_stride, key.v_stride = a->v_stride, key.out_stride = a->out_stride;
    key.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    key.batch = a->batch, key.tokens = a->tokens, key.heads = a->heads, key.kv_heads = a->kv_heads;
    key.size = a->head_size, key.window = a->keys.all ? 0 : a->keys.window;
    key.backward = backward;
    key.documents = !a->keys.all && a->keys.positions != NULL;
    key.all = a->keys.all, key.hides = a->keys.all && a->keys.tokens != NULL;
    return key;
}

/* Fields of a key. */
dsc_attention_fwd_args forward_of(const dsc_attention_bwd_args *b)
{
    dsc_attention_fwd_args a = {};
    a.q_stride = b->q_stride, a.k_stride = b->k_stride, a.v_stride = b->v_stride, a.out_stride = b->out_stride;
    a.head_stride = b->head_stride;
    a.batch = b->batch, a.tokens = b->tokens, a.heads = b->heads, a.kv_heads = b->kv_heads;
    a.head_size = b->head_size, a.keys = b->keys, a.logits = b->logits, a.sinks = b->sinks;
    return a;
}

attention_plan *find(dsc_cuda_attention *x, const attention_key *key)
{
    for (int32_t i = 0; i < x->count; i++)
        if (memcmp(&x->plans[i].key, key, sizeof *key) == 0)
            return &x->plans[i];
    return NULL;
}

/* Two samples show the stride between samples. More would take memory that not every run of the shape has. */
enum { TRIAL_BATCH_MAX = 2 };

/* Gradients whose scores' are stored. The bits of a run's waves do not depend on the number of samples, but times do.
 */
dsc_status choose_stored(attention_trial *t, attention_plan *p, dsc_attention_tried *out, dsc_error *err)
{
    attention_found found = {};
    t->candidate = DSC_ATTENTION_WARPGROUPS_STORED, t->own = p->own;
    t->timed = true, t->same_bits = t->at->attention->choice != DSC_GEMM_FASTEST;
    for (int32_t batch = p->shape.batch; batch >= 1 && !found.fits; batch /= 2) {
        t->shape.batch = batch;
        DSC_TRY(dsc_cuda_attention_try(t, &found, err));
    }
    const bool may = found.fits && found.far == 0 && (found.unlike == 0 || !t->same_bits);
    out->stored_tried += found.fits;
    out->stored_wrong += found.far > 0;
    if (may && found.ms[1] < MEASURE_WORTH * found.ms[0]) {
        p->own = DSC_ATTENTION_WARPGROUPS_STORED;
        out->stored_taken++;
    }
    return DSC_OK;
}

/* The better of the kernels of warps and of warpgroups. */
dsc_status choose_warpgroups(attention_trial *t, attention_plan *p, dsc_attention_tried *out, dsc_error *err)
{
    attention_found found = {};
    t->candidate = DSC_ATTENTION_WARPGROUPS, t->own = p->own, t->timed = t->same_bits = false;
    for (int32_t batch = TRIAL_BATCH_MAX; batch >= 1 && !found.fits; batch--) {
        t->shape.batch = batch < p->shape.batch ? batch : p->shape.batch;
        DSC_TRY(dsc_cuda_attention_try(t, &found, err));
    }
    if (!found.fits)
        return DSC_OK;
    p->own = found.far == 0 ? DSC_ATTENTION_WARPGROUPS : DSC_ATTENTION_WARPS;
    out->tried++;
    out->wrong += found.far > 0;
    out->changed += p->own == DSC_ATTENTION_WARPGROUPS;
    return DSC_OK;
}

/* A plan has one number of samples, so the trial has it too. */
dsc_status choose_cudnn(attention_trial *t, attention_plan *p, dsc_attention_tried *out, dsc_error *err)
{
    const dsc_cuda_attention *x = t->at->attention;
    attention_found found = {};
    t->candidate = DSC_ATTENTION_CUDNN, t->own = p->own, t->cudnn_plan = p->cudnn.plan;
    t->timed = x->source == DSC_CUDNN_AUTO && x->choice == DSC_GEMM_FASTEST, t->same_bits = true;
    t->shape.batch = p->shape.batch;
    DSC_TRY(dsc_cuda_attention_try(t, &found, err));
    const bool is_right = found.fits && found.far == 0 && found.unlike == 0;
    const bool is_slower = is_right && t->timed && !(found.ms[1] < MEASURE_WORTH * found.ms[0]);
    out->cudnn.untried += !found.fits;
    out->cudnn.wrong += found.fits && !is_right;
    out->cudnn.slower += is_slower;
    if (is_right && !is_slower)
        p->kind = DSC_ATTENTION_CUDNN;
    return DSC_OK;
}

/* Whether a run has room for score gradients of the shape. */
bool stores(const attention_plan *p)
{
    return p->has_sm90 && p->key.backward && dsc_attention_stored_bytes(&p->shape, p->shape.stored_bytes) > 0;
}

dsc_status choose(attention_trial *t, attention_plan *p, dsc_gemm_choice choice, dsc_attention_tried *out,
                  dsc_error *err)
{
    t->shape = p->shape;
    t->backward = p->key.backward, t->hides = p->key.hides, t->documents = p->key.documents;
    if (choice == DSC_GEMM_FIRST) {
        p->kind = p->cudnn.plan != NULL ? DSC_ATTENTION_CUDNN : p->own;
        return DSC_OK;
    }
    if (p->has_sm90)
        DSC_TRY(choose_warpgroups(t, p, out, err));
    if (p->own == DSC_ATTENTION_WARPGROUPS && stores(p))
        DSC_TRY(choose_stored(t, p, out, err));
    p->kind = p->own;
    return p->cudnn.plan != NULL ? choose_cudnn(t, p, out, err) : DSC_OK;
}

dsc_status try_all(attention_trial *t, dsc_gemm_choice choice, dsc_attention_tried *out, dsc_error *err)
{
    dsc_cuda_attention *x = t->at->attention;
    for (int32_t i = 0; i < x->count; i++) {
        if (x->plans[i].from_text)
            continue;
        out->shapes += x->plans[i].has_sm90;
        out->cudnn.shapes += x->plans[i].cudnn.plan != NULL;
        DSC_TRY(choose(t, &x->plans[i], choice, out, err));
        out->cudnn.taken += x->plans[i].kind == DSC_ATTENTION_CUDNN;
    }
    return DSC_OK;
}

/* ---- as text ---- */

enum { LINE_BYTES = 512 };

/* Everything of the key: two plans of one text would be one plan. */
void line_of(const attention_key *k, const char *kind, char line[LINE_BYTES])
{
    char v_stride[24] = ""; /* a text of one stride is one of k and v */
    if (k->v_stride != k->k_stride)
        snprintf(v_stride, sizeof v_stride, "/%" PRId64, k->v_stride);
    const char *const keys = k->all ? k->hides ? "all but hidden" : "all" : k->documents ? "documents" : "causal";
    snprintf(line, LINE_BYTES,
             "attention %s%dx%d heads %d/%d of %d ld %" PRId64 ",%" PRId64 "%s,%" PRId64 ",%" PRId64
             " %s window %d by %s",
             k->backward ? "backward " : "", static_cast<int>(k->batch), static_cast<int>(k->tokens),
             static_cast<int>(k->heads), static_cast<int>(k->kv_heads), static_cast<int>(k->size), k->q_stride,
             k->k_stride, v_stride, k->out_stride, k->head_stride, keys, static_cast<int>(k->window), kind);
}

const char *name_of(const attention_plan *p, int kind)
{
    static const char *const names[DSC_ATTENTION_KINDS] = {
        "warps", "warpgroups", "warpgroups-in-turn", "warpgroups-ahead", "warpgroups-staying", "warpgroups-stored"
    };
    return kind == DSC_ATTENTION_CUDNN ? p->cudnn.name : names[kind];
}

bool has_kind(const attention_plan *p, int kind)
{
    switch (kind) {
    case DSC_ATTENTION_WARPS:
        return true;
    case DSC_ATTENTION_CUDNN:
        return p->cudnn.plan != NULL;
    case DSC_ATTENTION_WARPGROUPS_STORED:
        return p->has_sm90 && p->key.backward;
    default:
        return p->has_sm90;
    }
}

/* Where a recorded kernel has no room for score gradients, the one that computes them twice. */
dsc_attention_kind with_room(const attention_plan *p, dsc_attention_kind kind)
{
    return kind == DSC_ATTENTION_WARPGROUPS_STORED && !stores(p) ? DSC_ATTENTION_WARPGROUPS : kind;
}

/* "by cudnn" alone, which people write, is any version and engine of it. */
bool is_named(const attention_plan *p, int kind, const char *text)
{
    char line[LINE_BYTES];
    line_of(&p->key, name_of(p, kind), line);
    if (has_line(text, line))
        return true;
    line_of(&p->key, "cudnn", line);
    return kind == DSC_ATTENTION_CUDNN && has_line(text, line);
}

/* Passes that had cuDNN in the text and have no choice here. */
int64_t lost_by(dsc_cuda_attention *x, const char *text)
{
    char line[LINE_BYTES];
    int64_t count = 0;
    for (int32_t i = 0; i < x->without_count; i++) {
        line_of(&x->without[i], "cudnn ", line);
        count += find(x, &x->without[i]) == NULL && strstr(text, line) != NULL;
    }
    return count;
}

} // namespace

dsc_status dsc_cuda_attention_open(const dsc_device_options *options, int32_t arch, dsc_cuda_attention **out,
                                   dsc_error *err)
{
    dsc_cuda_attention *x = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *x, &x, err));
    x->alloc = options->alloc;
    x->arch = arch;
    x->source = options->attention;
    x->choice = options->plans;
    x->encode = arch == 90 ? dsc_cuda_attention_sm90_find() : NULL;
    if (x->encode != NULL && !(dsc_cuda_attention_fwd_sm90_starts() && dsc_cuda_attention_bwd_sm90_starts())) {
        x->encode = NULL;
        x->cannot_start = true;
    }
    pthread_mutex_init(&x->lock, NULL); /* cannot fail with default attributes on Linux */
    *out = x;
    return DSC_OK;
}

void dsc_cuda_attention_close(dsc_cuda_attention **attention)
{
    dsc_cuda_attention *x = *attention;
    if (x == NULL)
        return;
    for (int32_t i = 0; i < x->count; i++)
        dsc_cuda_cudnn_plan_close(&x->cudnn, &x->plans[i].cudnn);
    dsc_cuda_cudnn_close(&x->cudnn);
    pthread_mutex_destroy(&x->lock);
    dsc_alloc_free(x->alloc, x);
    *attention = NULL;
}

/* Under the lock. NULL: there is no place. */
static attention_plan *prepare_pass(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape,
                                    const attention_key *key)
{
    attention_plan *p = find(x, key);
    if (p != NULL || x->count == PLANS_MAX)
        return p;
    p = &x->plans[x->count++];
    *p = {};
    p->key = *key;
    p->shape = *shape;
    return p;
}

static void prepare_sm90(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape, const attention_key *key)
{
    attention_plan *p = prepare_pass(x, shape, key);
    if (p == NULL)
        return;
    p->has_sm90 = true;
    p->shape.stored_bytes = shape->stored_bytes;
}

/* Where the config leaves it open, the choice must follow from card and shape, or from times where these may choose. */
static bool wants_cudnn(const dsc_cuda_attention *x, const dsc_attention_fwd_args *shape)
{
    if (x->source != DSC_CUDNN_AUTO)
        return x->source == DSC_CUDNN_ALWAYS;
    return x->choice == DSC_GEMM_FASTEST ||
           (x->choice == DSC_GEMM_SAME_BITS && x->arch == 90 && shape->head_size >= CUDNN_HEAD_LEAST);
}

static bool is_without(const dsc_cuda_attention *x, const attention_key *key)
{
    for (int32_t i = 0; i < x->without_count; i++)
        if (memcmp(&x->without[i], key, sizeof *key) == 0)
            return true;
    return false;
}

/* Both passes or none. A shape is asked for once, since the answer takes time. */
static void prepare_cudnn(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape, const attention_key key[2])
{
    cudnn_plan made[2] = {};
    const attention_plan *known = find(x, &key[0]);
    if ((known != NULL && known->cudnn.plan != NULL) || is_without(x, &key[0]) || x->count + 2 > PLANS_MAX)
        return;
    const int64_t most = dsc_cuda_cudnn_workspace_most(x->source == DSC_CUDNN_ALWAYS);
    if (!dsc_cuda_attention_cudnn_plan(&x->cudnn, x->arch, shape, most, made)) {
        for (int pass = 0; pass < 2 && x->without_count < WITHOUT_MAX; pass++)
            x->without[x->without_count++] = key[pass];
        return;
    }
    for (int pass = 0; pass < 2; pass++)
        prepare_pass(x, shape, &key[pass])->cudnn = made[pass];
}

void dsc_cuda_attention_prepare(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape)
{
    dsc_attention_fwd_args a = *shape;
    const attention_key key[2] = { key_of(&a, false), key_of(&a, true) };
    const bool fits_cudnn = dsc_cuda_attention_cudnn_fits(&a);
    if (!dsc_attention_is_plain(&a.keys, &a.logits, a.sinks))
        return; /* these have one kernel */
    a.out = NULL, a.lse = NULL, a.q = a.k = a.v = NULL, a.scratch = NULL, a.keys.tokens = a.keys.positions = NULL;
    const dsc_attention_bwd_args b = dsc_cuda_attention_gradients_of(&a);
    pthread_mutex_lock(&x->lock);
    if (x->encode != NULL && dsc_cuda_attention_fwd_sm90_fits(&a))
        prepare_sm90(x, &a, &key[0]);
    if (x->encode != NULL && dsc_cuda_attention_bwd_sm90_fits(&b))
        prepare_sm90(x, &a, &key[1]);
    if (fits_cudnn && wants_cudnn(x, &a))
        prepare_cudnn(x, &a, key);
    pthread_mutex_unlock(&x->lock);
}

int64_t dsc_cuda_attention_workspace_bytes(const dsc_cuda_attention *x) { return x->cudnn.needed_bytes; }

void dsc_cuda_attention_set_workspace(dsc_cuda_attention *x, void *memory, int64_t bytes)
{
    if (dsc_cuda_cudnn_set_workspace(&x->cudnn, memory, bytes))
        return;
    for (int32_t i = 0; i < x->count; i++)
        dsc_cuda_cudnn_plan_close(&x->cudnn, &x->plans[i].cudnn);
    dsc_cuda_cudnn_close(&x->cudnn);
}

static dsc_attention_kind chosen(dsc_cuda_attention *x, const attention_key *key)
{
    pthread_mutex_lock(&x->lock);
    const attention_plan *p = find(x, key);
    const dsc_attention_kind kind = p == NULL ? DSC_ATTENTION_WARPS : p->kind == DSC_ATTENTION_CUDNN ? p->own : p->kind;
    pthread_mutex_unlock(&x->lock);
    return kind;
}

void *dsc_cuda_attention_encode(const dsc_cuda_attention *x) { return x->encode; }

dsc_attention_kind dsc_cuda_attention_fwd_chosen(dsc_cuda_attention *x, const dsc_attention_fwd_args *a)
{
    if (x->encode == NULL || !dsc_cuda_attention_fwd_sm90_fits(a))
        return DSC_ATTENTION_WARPS;
    const attention_key key = key_of(a, false);
    return chosen(x, &key);
}

dsc_attention_kind dsc_cuda_attention_bwd_chosen(dsc_cuda_attention *x, const dsc_attention_bwd_args *b)
{
    if (x->encode == NULL || !dsc_cuda_attention_bwd_sm90_fits(b))
        return DSC_ATTENTION_WARPS;
    const dsc_attention_fwd_args a = forward_of(b);
    const attention_key key = key_of(&a, true);
    return chosen(x, &key);
}

/* cuDNN's plan of a pass, if it takes one; NULL: it takes another kernel. Under the lock. The scale is a part of the
 * plan and not of the key. */
static void *library_plan(dsc_cuda_attention *x, const dsc_attention_fwd_args *a, bool backward)
{
    const attention_key key = key_of(a, backward);
    const attention_plan *p = find(x, &key);
    return p != NULL && p->kind == DSC_ATTENTION_CUDNN && p->shape.scale == a->scale ? p->cudnn.plan : NULL;
}

dsc_status dsc_cuda_attention_fwd_library(const dsc_cuda_launch *at, const dsc_attention_fwd_args *a, bool *done,
                                          dsc_error *err)
{
    dsc_cuda_attention *x = at->attention;
    *done = false;
    if (x->cudnn.library == NULL || !dsc_cuda_attention_cudnn_fits(a))
        return DSC_OK;
    pthread_mutex_lock(&x->lock);
    void *const plan = library_plan(x, a, false);
    *done = plan != NULL;
    const dsc_status status = plan != NULL ? dsc_cuda_attention_cudnn_fwd(&x->cudnn, plan, at->stream, a, err) : DSC_OK;
    pthread_mutex_unlock(&x->lock);
    return status;
}

dsc_status dsc_cuda_attention_bwd_library(const dsc_cuda_launch *at, const dsc_attention_bwd_args *b, bool *done,
                                          dsc_error *err)
{
    dsc_cuda_attention *x = at->attention;
    dsc_attention_fwd_args a = forward_of(b);
    *done = false;
    a.scale = b->scale, a.dtype = b->dtype;
    if (x->cudnn.library == NULL || !dsc_cuda_attention_cudnn_fits(&a) || !dsc_cuda_attention_cudnn_aligned(b))
        return DSC_OK;
    pthread_mutex_lock(&x->lock);
    void *const plan = library_plan(x, &a, true);
    *done = plan != NULL;
    const dsc_status status = plan != NULL ? dsc_cuda_attention_cudnn_bwd(&x->cudnn, plan, at->stream, b, err) : DSC_OK;
    pthread_mutex_unlock(&x->lock);
    return status;
}

dsc_status dsc_cuda_attention_choose(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes,
                                     dsc_gemm_choice choice, dsc_attention_tried *out, dsc_error *err)
{
    dsc_cuda_attention *x = at->attention;
    attention_trial t = {};
    t.at = at, t.encode = x->encode, t.cudnn = &x->cudnn;
    t.memory = static_cast<char *>(memory), t.memory_bytes = memory_bytes;
    DSC_ASSERT(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    pthread_mutex_lock(&x->lock);
    out->cannot_start = x->cannot_start;
    out->cudnn.number = x->cudnn.number;
    snprintf(out->cudnn.note, sizeof out->cudnn.note, "%s", x->cudnn.note);
    const dsc_status status = try_all(&t, choice, out, err);
    pthread_mutex_unlock(&x->lock);
    return status;
}

void dsc_cuda_attention_plans_get(dsc_cuda_attention *x, char *text, int64_t capacity, int64_t *bytes)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        line_of(&x->plans[i].key, name_of(&x->plans[i], x->plans[i].kind), line);
        put_line(line, text, capacity, bytes);
    }
    pthread_mutex_unlock(&x->lock);
}

void dsc_cuda_attention_plans_set(dsc_cuda_attention *x, const char *text, int64_t *others)
{
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        attention_plan *p = &x->plans[i];
        bool found = false;
        for (int kind = 0; kind < DSC_ATTENTION_KINDS && !found && text != NULL; kind++) {
            found = has_kind(p, kind) && is_named(p, kind, text);
            if (found)
                p->kind = with_room(p, static_cast<dsc_attention_kind>(kind));
        }
        p->from_text = p->from_text || found;
        *others += !found;
    }
    *others += text != NULL ? lost_by(x, text) : 0;
    pthread_mutex_unlock(&x->lock);
}
