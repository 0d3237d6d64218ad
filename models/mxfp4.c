/* mxfp4.c - see mxfp4.h. An expert's bytes are read at once and kept: its elements are wanted in the order of inputs,
 * and files have them in the order of outputs. SPDX-License-Identifier: Apache-2.0 */
#include "models/mxfp4.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { GROUP = 32, GROUP_BYTES = GROUP / 2, TILE = 64 }; /* elements of a scale; outputs that are unpacked together */

const float dsc_mxfp4_values[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };

typedef struct packed {
    const dsc_weight *blocks, *scales; /* blocks NULL: not in MXFP4 */
    int64_t in, out;
} packed;

struct dsc_mxfp4 {
    dsc_alloc *alloc;
    packed *item; /* [count] */
    int64_t count;
    pthread_mutex_t lock; /* of what follows */
    const packed *kept;   /* the matrix whose expert `expert` is in bytes: its blocks, then its scales; NULL: none */
    int64_t expert;
    uint8_t *bytes;
    int64_t capacity;
};

static int64_t blocks_bytes(const packed *p) { return p->out * p->in / 2; }
static int64_t scales_bytes(const packed *p) { return p->out * p->in / GROUP; }

dsc_status dsc_mxfp4_open(dsc_mxfp4 **out, dsc_alloc *alloc, int64_t count, dsc_error *err)
{
    dsc_mxfp4 *m = NULL;
    *out = NULL;
    DSC_ASSERT(count >= 1);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *m, &m, err));
    m->alloc = alloc;
    m->count = count;
    const dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *m->item, &m->item, err);
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, m);
        return status;
    }
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return DSC_OK;
}

void dsc_mxfp4_close(dsc_mxfp4 **mxfp4)
{
    dsc_mxfp4 *m = *mxfp4;
    if (m == NULL)
        return;
    pthread_mutex_destroy(&m->lock);
    dsc_alloc_free(m->alloc, m->bytes);
    dsc_alloc_free(m->alloc, m->item);
    dsc_alloc_free(m->alloc, m);
    *mxfp4 = NULL;
}

/* ---- checks ---- */

static dsc_status check_tensor(const dsc_weight *weight, const int64_t *dim, int32_t dim_count, dsc_error *err)
{
    const dsc_tensor_desc *desc = &weight->entry->desc;
    char is[120] = "", needs[120] = "";
    if (desc->dtype == DSC_U8 && desc->dim_count == dim_count &&
        memcmp(desc->dim, dim, (size_t)dim_count * sizeof *dim) == 0)
        return DSC_OK;
    for (int32_t d = 0; d < desc->dim_count; d++)
        snprintf(is + strlen(is), sizeof is - strlen(is), "%s%lld", d > 0 ? "," : "", (long long)desc->dim[d]);
    for (int32_t d = 0; d < dim_count; d++)
        snprintf(needs + strlen(needs), sizeof needs - strlen(needs), "%s%lld", d > 0 ? "," : "", (long long)dim[d]);
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(weight->file),
                    "tensor \"%.200s\" is [%s] in %s; config.json needs [%s] in U8 for MXFP4", weight->name, is,
                    weight->entry->dtype_text, needs);
}

/* Room for the bytes of one expert. */
static dsc_status reserve(dsc_mxfp4 *m, int64_t bytes, dsc_error *err)
{
    if (bytes <= m->capacity)
        return DSC_OK;
    dsc_alloc_free(m->alloc, m->bytes);
    m->bytes = NULL;
    m->capacity = 0;
    DSC_TRY(dsc_alloc_zeroed(m->alloc, DSC_TAG_CONTROL, bytes, 1, &m->bytes, err));
    m->capacity = bytes;
    return DSC_OK;
}

dsc_status dsc_mxfp4_add(dsc_mxfp4 *mxfp4, int64_t i, const dsc_weight *blocks, const dsc_weight *scales,
                         const dsc_param_spec *spec, dsc_error *err)
{
    DSC_ASSERT(i >= 0 && i < mxfp4->count);
    DSC_ASSERT(spec->dim_count == 3);
    const int64_t experts = spec->dim[0], in = spec->dim[1], out = spec->dim[2];
    const int64_t of_blocks[] = { experts, out, in / GROUP, GROUP_BYTES }, of_scales[] = { experts, out, in / GROUP };
    if (in % GROUP != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(blocks->file),
                        "tensor \"%.200s\": matrices of %lld inputs are not in MXFP4; expected a multiple of %d",
                        blocks->name, (long long)in, GROUP);
    DSC_TRY(check_tensor(blocks, of_blocks, 4, err));
    DSC_TRY(check_tensor(scales, of_scales, 3, err));
    const packed item = { blocks, scales, in, out };
    DSC_TRY(reserve(mxfp4, blocks_bytes(&item) + scales_bytes(&item), err));
    mxfp4->item[i] = item;
    return DSC_OK;
}

bool dsc_mxfp4_has(const dsc_mxfp4 *mxfp4, int64_t i)
{
    DSC_ASSERT(i >= 0 && i < mxfp4->count);
    return mxfp4->item[i].blocks != NULL;
}

/* ---- reading ---- */

static dsc_status keep(dsc_mxfp4 *m, const packed *p, int64_t expert, dsc_error *err)
{
    const int64_t blocks = blocks_bytes(p), scales = scales_bytes(p);
    if (m->kept == p && m->expert == expert)
        return DSC_OK;
    DSC_ASSERT(blocks + scales <= m->capacity);
    m->kept = NULL;
    DSC_TRY(dsc_safetensors_read_bytes(p->blocks->file, p->blocks->entry, expert * blocks, blocks, m->bytes, err));
    DSC_TRY(
        dsc_safetensors_read_bytes(p->scales->file, p->scales->entry, expert * scales, scales, m->bytes + blocks, err));
    m->kept = p;
    m->expert = expert;
    return DSC_OK;
}

/* A part of an expert: input rows [first, last) of outputs [left, right), all inputs of one group; `to` is the element
 * of input `first` and output `left`. */
typedef struct part {
    int64_t first, last, left, right;
    float *to;
} part;

static void unpack(const dsc_mxfp4 *m, const packed *p, const part *of)
{
    const uint8_t *scales = m->bytes + blocks_bytes(p);
    const int64_t groups = p->in / GROUP, group = of->first / GROUP;
    float factor[TILE];
    for (int64_t j0 = of->left; j0 < of->right; j0 += TILE) {
        const int64_t count = dsc_min_i64(TILE, of->right - j0);
        for (int64_t j = 0; j < count; j++)
            factor[j] = ldexpf(1, (int)scales[(j0 + j) * groups + group] - 127);
        for (int64_t c = of->first; c < of->last; c++) {
            const uint8_t *codes = m->bytes + j0 * groups * GROUP_BYTES + c / 2;
            float *to = of->to + (c - of->first) * p->out + (j0 - of->left);
            for (int64_t j = 0; j < count; j++)
                to[j] = dsc_mxfp4_values[codes[j * groups * GROUP_BYTES] >> (c % 2 * 4) & 15] * factor[j];
        }
    }
}

/* Elements [first, first + count) of an expert: the rest of an input's row, whole rows, the beginning of one. */
static void unpack_range(const dsc_mxfp4 *m, const packed *p, int64_t first, int64_t count, float *out)
{
    const int64_t end = first + count;
    for (int64_t at = first; at < end;) {
        const int64_t row = at / p->out, left = at % p->out, whole = end / p->out;
        part of = { row, row + 1, left, dsc_min_i64(p->out, left + end - at), out + (at - first) };
        if (left == 0 && whole > row) {
            of.last = dsc_min_i64(whole, (row / GROUP + 1) * GROUP);
            of.right = p->out;
        }
        unpack(m, p, &of);
        at += (of.last - of.first - 1) * p->out + of.right - of.left;
    }
}

static dsc_status check_finite(const packed *p, int64_t first, int64_t count, const float *x, dsc_error *err)
{
    float sum = 0; /* NaN once one of them is not finite */
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * 0;
    if (sum == 0)
        return DSC_OK;
    int64_t i = 0;
    while (isfinite(x[i]))
        i++;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(p->scales->file),
                    "tensor \"%.200s\" makes element %lld of its matrices %s: the file is damaged", p->scales->name,
                    (long long)(first + i), isnan(x[i]) ? "NaN" : "infinite");
}

dsc_status dsc_mxfp4_read(dsc_mxfp4 *mxfp4, int64_t i, int64_t first, int64_t count, float *out, dsc_error *err)
{
    DSC_ASSERT(dsc_mxfp4_has(mxfp4, i));
    const packed *p = &mxfp4->item[i];
    const int64_t each = p->in * p->out;
    dsc_status status = DSC_OK;
    for (int64_t at = first; at < first + count && status == DSC_OK;) {
        const int64_t expert = at / each, inside = at % each, here = dsc_min_i64(each - inside, first + count - at);
        pthread_mutex_lock(&mxfp4->lock);
        status = keep(mxfp4, p, expert, err);
        if (status == DSC_OK)
            unpack_range(mxfp4, p, inside, here, out + (at - first));
        pthread_mutex_unlock(&mxfp4->lock);
        at += here;
    }
    return status == DSC_OK ? check_finite(p, first, count, out, err) : status;
}
