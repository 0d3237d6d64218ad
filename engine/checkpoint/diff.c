/* diff.c - comparison of the same tensors in two checkpoints, whoever wrote them.
 *
 * Compared is what a run goes on from: master weights (fp32 runs: the weights), m and v, as fp32, tensor by tensor.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

typedef struct diff_job {
    dsc_ckpt_reader side[2];
    float *buffer[2];
    const dsc_ckpt_diff_sink *sink;
    int64_t differing; /* tensors */
} diff_job;

/* Place of a tensor's state: its master weights are the weights themselves where there are no others. */
static const dsc_safetensors_entry *find(const dsc_ckpt_reader *reader, dsc_ckpt_plane plane, const char *name,
                                         dsc_ckpt_plane *found)
{
    DSC_ASSERT(plane != DSC_CKPT_WEIGHTS); /* compared as masters */
    const dsc_safetensors_entry *entry = dsc_ckpt_reader_find(reader, plane, name, NULL);
    *found = plane;
    if (entry == NULL && plane == DSC_CKPT_MASTER) {
        entry = dsc_ckpt_reader_find(reader, DSC_CKPT_WEIGHTS, name, NULL);
        *found = DSC_CKPT_WEIGHTS;
    }
    return entry;
}

static void tell(diff_job *j, const char *name, dsc_ckpt_plane plane, const char *what, int64_t differing,
                 double largest)
{
    DSC_ASSERT(what != NULL || differing > 0);
    const dsc_run_state *first = &j->side[0].manifest.state, *second = &j->side[1].manifest.state;
    const char *stored = plane == DSC_CKPT_WEIGHTS ? "weights"
                         : plane == DSC_CKPT_MASTER || dsc_ckpt_is_saved(first, plane, true)
                             ? dsc_ckpt_plane_name(first, plane)
                             : dsc_ckpt_plane_name(second, plane);
    const dsc_ckpt_diff_row row = {
        .tensor = name, .plane = stored, .what = what, .differing = differing, .largest = largest
    };
    j->differing++;
    j->sink->row(j->sink->user, &row);
}

static dsc_status compare_values(diff_job *j, const char *name, dsc_ckpt_plane plane, dsc_error *err)
{
    const int64_t capacity = DSC_CKPT_BLOCK_BYTES / 4;
    DSC_ASSERT(plane < DSC_CKPT_PLANE_COUNT);
    dsc_ckpt_plane found[2];
    const dsc_safetensors_entry *entry[2];
    int64_t differing = 0;
    double largest = 0;
    if (dsc_ckpt_is_absmax(plane))
        return DSC_OK; /* the moments' values have it */
    for (int s = 0; s < 2; s++)
        entry[s] = find(&j->side[s], plane, name, &found[s]);
    if (entry[0] == NULL || entry[1] == NULL) {
        if (entry[0] != entry[1])
            tell(j, name, plane, entry[0] == NULL ? "only in the second" : "only in the first", 0, 0);
        return DSC_OK;
    }
    for (int64_t first = 0; first < entry[0]->count; first += capacity) {
        const int64_t count = dsc_min_i64(capacity, entry[0]->count - first);
        for (int s = 0; s < 2; s++)
            DSC_TRY(dsc_ckpt_reader_f32(&j->side[s], found[s], name, first, count, j->buffer[s], err));
        if (memcmp(j->buffer[0], j->buffer[1], (size_t)count * 4) == 0)
            continue;
        for (int64_t i = 0; i < count; i++) {
            const bool same = memcmp(&j->buffer[0][i], &j->buffer[1][i], 4) == 0; /* bits: NaN is itself, -0 is not 0 */
            const double by = fabs((double)j->buffer[0][i] - (double)j->buffer[1][i]);
            differing += !same;
            largest = same || by <= largest ? largest : by;
        }
    }
    if (differing > 0)
        tell(j, name, plane, NULL, differing, largest);
    return DSC_OK;
}

static bool same_shape(const dsc_safetensors_entry *a, const dsc_safetensors_entry *b)
{
    return a->desc.dim_count == b->desc.dim_count &&
           memcmp(a->desc.dim, b->desc.dim, (size_t)a->desc.dim_count * sizeof a->desc.dim[0]) == 0;
}

/* Tensors of one side; those of both are compared when the first side has its turn. */
static dsc_status compare_tensors(diff_job *j, int side, dsc_error *err)
{
    DSC_ASSERT(side == 0 || side == 1);
    const dsc_safetensors *model = j->side[side].file[DSC_CKPT_MODEL];
    for (int64_t i = 0; i < dsc_safetensors_count(model); i++) {
        const dsc_safetensors_entry *mine = dsc_safetensors_at(model, i);
        const dsc_safetensors_entry *other = dsc_safetensors_find(j->side[1 - side].file[DSC_CKPT_MODEL], mine->name);
        if (other == NULL)
            tell(j, mine->name, DSC_CKPT_WEIGHTS, side == 0 ? "only in the first" : "only in the second", 0, 0);
        else if (side == 0 && !same_shape(mine, other))
            tell(j, mine->name, DSC_CKPT_WEIGHTS, "another shape", 0, 0);
        else if (side == 0)
            for (int plane = DSC_CKPT_MASTER; plane < DSC_CKPT_PLANE_COUNT; plane++)
                DSC_TRY(compare_values(j, mine->name, (dsc_ckpt_plane)plane, err));
    }
    return DSC_OK;
}

static void tell_buffer(diff_job *j, const char *name, const char *what, int64_t differing, double largest)
{
    const dsc_ckpt_diff_row row = {
        .tensor = name, .plane = "buffer", .what = what, .differing = differing, .largest = largest
    };
    DSC_ASSERT(what != NULL || differing > 0);
    j->differing++;
    j->sink->row(j->sink->user, &row);
}

/* Element i, of fp32 or int64. */
static double buffer_value(const dsc_safetensors_entry *entry, const char *data, int64_t i)
{
    float x;
    int64_t n;
    DSC_ASSERT(i < entry->count);
    if (entry->desc.dtype == DSC_F32) {
        memcpy(&x, data + i * 4, sizeof x);
        return (double)x;
    }
    memcpy(&n, data, sizeof n);
    return (double)n;
}

static void compare_buffer(diff_job *j, const dsc_safetensors_entry *a, const dsc_safetensors_entry *b)
{
    const char *const left = dsc_ckpt_buffer_file_data(&j->side[0].buffers, a);
    const char *const right = dsc_ckpt_buffer_file_data(&j->side[1].buffers, b);
    const int64_t each = (int64_t)dsc_dtype_bytes(a->desc.dtype);
    int64_t differing = 0;
    double largest = 0;
    if (a->desc.dtype != b->desc.dtype || !same_shape(a, b)) {
        tell_buffer(j, a->name, "another shape", 0, 0);
        return;
    }
    for (int64_t i = 0; i < a->count; i++)
        if (memcmp(left + i * each, right + i * each, (size_t)each) != 0) {
            differing++;
            largest = fmax(largest, fabs(buffer_value(a, left, i) - buffer_value(b, right, i)));
        }
    if (differing > 0)
        tell_buffer(j, a->name, NULL, differing, largest);
}

static void compare_buffers(diff_job *j, int side)
{
    const dsc_ckpt_buffer_file *const mine = &j->side[side].buffers, *const others = &j->side[1 - side].buffers;
    DSC_ASSERT(side == 0 || side == 1);
    for (int64_t i = 0; i < dsc_ckpt_buffer_file_count(mine); i++) {
        const dsc_safetensors_entry *e = dsc_ckpt_buffer_file_at(mine, i);
        const dsc_safetensors_entry *other =
            others->table != NULL ? dsc_safetensors_find(others->table, e->name) : NULL;
        if (other == NULL)
            tell_buffer(j, e->name, side == 0 ? "only in the first" : "only in the second", 0, 0);
        else if (side == 0)
            compare_buffer(j, e, other);
    }
}

dsc_status dsc_ckpt_diff(const dsc_io *io, dsc_alloc *alloc, const char *const step_dir[2],
                         const dsc_ckpt_diff_sink *sink, int64_t *differing, dsc_error *err)
{
    DSC_ASSERT(sink->row != NULL);
    diff_job j = { .sink = sink };
    bool open[2] = { false, false };
    dsc_status status = DSC_OK;
    for (int s = 0; s < 2 && status == DSC_OK; s++) {
        status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, DSC_CKPT_BLOCK_BYTES, 1, &j.buffer[s], err);
        /* A flipped bit is damage, not a difference. */
        if (status == DSC_OK)
            status = dsc_ckpt_verify_with(io, alloc, step_dir[s], j.buffer[s], err);
        if (status == DSC_OK)
            status = dsc_ckpt_reader_open(io, alloc, step_dir[s], &j.side[s], err);
        open[s] = status == DSC_OK;
        if (status == DSC_OK)
            status = dsc_ckpt_refuse_part(&j.side[s], step_dir[s], err);
    }
    for (int s = 0; s < 2 && status == DSC_OK; s++)
        status = compare_tensors(&j, s, err);
    for (int s = 0; s < 2 && status == DSC_OK; s++)
        compare_buffers(&j, s);
    for (int s = 0; s < 2; s++) {
        if (open[s])
            dsc_ckpt_reader_close(&j.side[s]);
        dsc_alloc_free(alloc, j.buffer[s]);
    }
    *differing = j.differing;
    return status;
}
