/* checkpoint_load.c - collective load: every rank reads what it owns, whatever world size, stage or precision wrote it.
 *
 * Into states that can be made again, one pass verifies each block and then copies it: whoever asked throws the states
 * away when a later block is bad. Into a run's states there are two passes over the same blocks: the first only
 * verifies, and nothing changes before every rank has seen good hashes; the second verifies again what it copies, so a
 * byte that changes in between ends in an error, not in a weight.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint_adapter.h"
#include "kernels/scalar.h"

typedef struct load_job {
    const dsc_checkpoint_ctx *c;
    ckpt_reader reader;
    dsc_dtype dtype; /* this run's compute dtype */
    dsc_recipe recipe;
    bool copy;       /* a pass that writes */
} load_job;

/* ---- does it fit the model? ---- */

static void shape_text(char *out, size_t out_bytes, const int64_t *dim, int32_t dim_count)
{
    size_t at = 0;
    out[0] = 0;
    for (int32_t d = 0; d < dim_count && at < out_bytes; d++)
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%" PRId64, d > 0 ? "," : "", dim[d]);
}

static dsc_status check_tensor(const ckpt_reader *reader, const dsc_layout_tensor *tensor, ckpt_plane plane,
                               dsc_error *err)
{
    const dsc_param_spec *spec = tensor->spec;
    const dsc_safetensors_entry *entry = dsc_ckpt_reader_find(reader, plane, spec->name, NULL);
    const char *where = dsc_safetensors_path(reader->file[plane == CKPT_WEIGHTS ? CKPT_MODEL : CKPT_OPTIMIZER]);
    const char *prefix = dsc_ckpt_plane_name(&reader->manifest.state, plane), *point = *prefix != 0 ? "." : "";
    if (entry == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "the checkpoint has no \"%s%s%.200s\", which the model needs",
                        prefix, point, spec->name);
    bool same = entry->desc.dim_count == spec->dim_count;
    for (int32_t d = 0; same && d < spec->dim_count; d++)
        same = entry->desc.dim[d] == spec->dim[d];
    if (same)
        return DSC_OK;
    char saved[80], wanted[80];
    shape_text(saved, sizeof saved, entry->desc.dim, entry->desc.dim_count);
    shape_text(wanted, sizeof wanted, spec->dim, spec->dim_count);
    return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%s%s%.200s\" has the shape [%s]; the model's is [%s]", prefix,
                    point, spec->name, saved, wanted);
}

/* Another optimizer's states mean something else, and to begin them at zero would be another run. */
static dsc_status check_optimizer(const load_job *j, dsc_error *err)
{
    const dsc_recipe saved = j->reader.manifest.state.recipe;
    if (saved == j->recipe)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(j->reader.file[CKPT_OPTIMIZER]), "saved by %s, and this "
                    "run's optimizer is %s; resume with that one, or begin from the weights: --model DIR/step-N",
                    dsc_recipes[saved].name, dsc_recipes[j->recipe].name);
}

static dsc_status check_model(const load_job *j, const char *step_dir, dsc_error *err)
{
    const dsc_layout *layout = j->c->layout;
    const ckpt_reader *reader = &j->reader;
    DSC_TRY(check_optimizer(j, err));
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        DSC_TRY(check_tensor(reader, tensor, CKPT_WEIGHTS, err));
        for (int plane = CKPT_MASTER; plane < CKPT_PLANE_COUNT; plane++)
            if (dsc_ckpt_stores(&reader->manifest.state, (ckpt_plane)plane, tensor->spec->trainable))
                DSC_TRY(check_tensor(reader, tensor, (ckpt_plane)plane, err));
    }
    const int64_t count = dsc_safetensors_count(reader->file[CKPT_MODEL]);
    if (count != layout->tensor_count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[CKPT_MODEL]), "%lld tensors; the "
                        "model has %d", (long long)count, (int)layout->tensor_count);
    const char *adapter = j->c->model->adapter_json;
    if (adapter == NULL || reader->manifest.file[CKPT_ADAPTER].bytes < 0)
        return DSC_OK;
    return dsc_ckpt_adapter_check(j->c->io, j->c->alloc, step_dir, adapter, err);
}

/* What ends bit-exactness. The stage is not among it: no bit depends on it. */
static void warn_differences(const dsc_checkpoint_ctx *c, const dsc_run_state *now, const dsc_run_state *saved)
{
    const dsc_log *log = c->log;
    if (dsc_comm_rank(c->comm) != 0)
        return;
    if (strcmp(now->versions, saved->versions) != 0)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: saved by %s, this is %s; bits may differ", saved->versions,
                       now->versions);
    if (strcmp(now->cpu_level, saved->cpu_level) != 0)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: saved on a machine with %s, this one has %s; bits may differ",
                       saved->cpu_level, now->cpu_level);
    if (now->compute_dtype != saved->compute_dtype)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: saved in %s, the run goes on in %s",
                       dsc_dtype_text(saved->compute_dtype), dsc_dtype_text(now->compute_dtype));
    if (now->moment_dtype != saved->moment_dtype)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: moments were saved in %s, the run goes on with %s",
                       dsc_dtype_text(saved->moment_dtype),
                       now->moment_dtype == DSC_BF16 ? "bf16, rounded to the nearest once" : "fp32");
    const bool same_samples = now->train_batch_size == saved->train_batch_size && now->seed == saved->seed &&
                              now->shuffle == saved->shuffle && now->seq_length == saved->seq_length &&
                              now->samples_per_epoch == saved->samples_per_epoch;
    const bool same_world = now->world_size == saved->world_size ||
                            (now->world_size_reproducible && saved->world_size_reproducible);
    if (!same_samples)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: batch size, seed, shuffling, sequence length or data differ from "
                       "the saved run's; other samples come than without the interruption");
    else if (!same_world || now->micro_batch != saved->micro_batch)
        dsc_log_printf(log, DSC_LOG_WARNING, "resume: world size or micro-batch differs from the saved run's; bits may "
                       "differ");
}

/* Going on from a step that is not the folder's last: the run will come to the later ones again, maybe in hours. */
static void warn_later_steps(const dsc_checkpoint_ctx *c, const char *step_dir, int64_t step)
{
    char dir[CKPT_PATH_BYTES], **names = NULL;
    int64_t count = 0, later = 0;
    if (dsc_ckpt_step_of(step_dir) < 0)
        return;
    snprintf(dir, sizeof dir, "%s", step_dir);
    for (size_t end = strlen(dir); end > 0 && dir[end - 1] == '/'; end--)
        dir[end - 1] = 0;
    char *slash = strrchr(dir, '/');
    if (slash == NULL)
        snprintf(dir, sizeof dir, ".");
    else
        slash[slash == dir ? 1 : 0] = 0;
    if (dsc_io_list(c->io, c->alloc, dir, &names, &count, NULL) != DSC_OK)
        return; /* only a warning is lost */
    for (int64_t i = 0; i < count; i++)
        if (dsc_checkpoint_is_step_name(names[i])) {
            const int64_t other = strtoll(names[i] + 5, NULL, 10);
            later = other > step && (later == 0 || other < later) ? other : later;
        }
    dsc_io_list_free(c->alloc, names, count);
    if (later > 0)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "resume: %s already holds step-%lld; a save of that step into this "
                       "folder keeps it when the tensors come out the same, and is refused otherwise", dir,
                       (long long)later);
}

/* ---- reading ---- */

/* fp32 to 16 bits, and between these, rounds to nearest even; everything else is exact. */
static void convert(void *to, dsc_dtype to_dtype, const void *from, dsc_dtype from_dtype, int64_t count)
{
    if (to_dtype == from_dtype)
        memcpy(to, from, (size_t)count * dsc_dtype_bytes(to_dtype));
    else
        for (int64_t i = 0; i < count; i++)
            dsc_put(to, i, to_dtype, dsc_get(from, i, from_dtype));
}

/* Where the elements of a tensor's part in this rank's slice go. */
typedef struct target {
    int32_t group;
    dsc_plane plane;
    dsc_dtype dtype;
    int64_t at; /* element of the slice */
} target;

/* Writes `count` elements of a block, which lie at `from`, from the target's element `first` on: straight, or by way of
 * the buffer's upper half. */
static dsc_status put(const load_job *j, const target *to, int64_t first, const char *from, dsc_dtype from_dtype,
                      int64_t count, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    const bool visible = dsc_device_host_visible(c->device);
    const int64_t from_each = (int64_t)dsc_dtype_bytes(from_dtype), to_each = (int64_t)dsc_dtype_bytes(to->dtype);
    char *staged = (char *)c->buffer.ptr + c->buffer.bytes / 2; /* a block in bf16 is twice as long in fp32 */
    DSC_ASSERT(count * to_each <= c->buffer.bytes / 2);
    if (!visible) {
        DSC_TRY(dsc_stream_sync(c->stream, err)); /* of the copy before */
        convert(staged, to->dtype, from, from_dtype, count);
    }
    for (int64_t done = 0, now; done < count; done += now) {
        void *ptr;
        now = count - done;
        DSC_TRY(dsc_zero_view(c->zero, to->group, to->plane, to->at + first + done, &now, true, &ptr, err));
        if (visible)
            convert(ptr, to->dtype, from + done * from_each, from_dtype, now);
        else
            DSC_TRY(dsc_copy(c->stream, ptr, staged + done * to_each, now * to_each, err));
    }
    return DSC_OK;
}

/* Elements [first, first + count) of a tensor: every block that meets them is verified, and `to` gets what it has of
 * them in a pass that copies (NULL: only verified). */
static dsc_status take_span(load_job *j, ckpt_plane plane, const char *name, int64_t first, int64_t count,
                            const target *to, dsc_error *err)
{
    const ckpt_manifest_tensor *tensor = NULL;
    if (dsc_ckpt_reader_find(&j->reader, plane, name, &tensor) == NULL)
        return DSC_OK; /* check_model has asked for what must be there */
    const int64_t from_bytes = (int64_t)dsc_dtype_bytes(tensor->dtype);
    const ckpt_block *const all = j->reader.manifest.block + tensor->first_block, *block = all;
    int64_t asked = 0;
    for (int64_t b = 0; b < tensor->block_count; b++, block++) {
        const int64_t low = dsc_max_i64(first, block->first);
        const int64_t high = dsc_min_i64(first + count, block->first + block->count);
        if (low >= high)
            continue;
        /* What belongs to others is not asked for. */
        for (; asked < tensor->block_count && asked <= b + CKPT_BLOCKS_AHEAD; asked++)
            if (asked > b && all[asked].first < first + count)
                dsc_ckpt_reader_expect(&j->reader, &all[asked]);
        DSC_TRY(dsc_ckpt_reader_block(&j->reader, block, j->c->buffer.ptr, err));
        if (j->copy && to != NULL)
            DSC_TRY(put(j, to, low - first, (const char *)j->c->buffer.ptr + (low - block->first) * from_bytes,
                        tensor->dtype, high - low, err));
    }
    return DSC_OK;
}

/* A frozen tensor has only parameters, in the compute dtype. A trainable one is its master weights: those of a bf16
 * run, the weights themselves of an fp32 run. */
static dsc_status take_tensor(load_job *j, const dsc_layout_tensor *tensor, dsc_error *err)
{
    const char *name = tensor->spec->name;
    dsc_zero_slice slice;
    int64_t first = 0;
    dsc_zero_slice_get(j->c->zero, tensor->group, &slice);
    const int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
    const target param = { tensor->group, DSC_PLANE_PARAM, j->dtype, tensor->offset + first - slice.first };
    const target master = { tensor->group, DSC_PLANE_MASTER, DSC_F32, param.at };
    const dsc_dtype moment_dtype = dsc_zero_dtype(j->c->zero, DSC_PLANE_MOMENT1);
    if (count == 0)
        return DSC_OK;
    if (!slice.trainable)
        return take_span(j, CKPT_WEIGHTS, name, first, count, &param, err);
    const bool has_master = dsc_ckpt_reader_find(&j->reader, CKPT_MASTER, name, NULL) != NULL;
    DSC_TRY(take_span(j, CKPT_WEIGHTS, name, first, count, has_master ? NULL : &master, err));
    DSC_TRY(take_span(j, CKPT_MASTER, name, first, count, &master, err));
    for (int32_t k = 0; k < dsc_recipes[j->recipe].state_count; k++) {
        const target moment = { tensor->group, (dsc_plane)(DSC_PLANE_MOMENT1 + k), moment_dtype, param.at };
        DSC_TRY(take_span(j, (ckpt_plane)(CKPT_MOMENT1 + k), name, first, count, &moment, err));
    }
    return DSC_OK;
}

static dsc_status take_all(load_job *j, bool copy, dsc_error *err)
{
    j->copy = copy;
    for (int32_t t = 0; t < j->c->layout->tensor_count; t++)
        DSC_TRY(take_tensor(j, &j->c->layout->tensor[t], err));
    return dsc_stream_sync(j->c->stream, err);
}

static dsc_status find_together(const dsc_checkpoint_ctx *c, const char *dir, char step_dir[CKPT_PATH_BYTES],
                                dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    memset(step_dir, 0, CKPT_PATH_BYTES);
    if (dsc_comm_rank(c->comm) == 0)
        status = dsc_checkpoint_find(c->io, c->alloc, dir, step_dir, CKPT_PATH_BYTES, &mine);
    DSC_TRY(dsc_checkpoint_agree(c, status, &mine, err));
    return dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, step_dir, CKPT_PATH_BYTES, 0, NULL, err);
}

dsc_status dsc_checkpoint_load(const dsc_checkpoint_ctx *ctx, const char *dir, bool once, const dsc_run_state *now,
                               dsc_run_state *out, bool *changed, dsc_error *err)
{
    char step_dir[CKPT_PATH_BYTES];
    load_job job = { .c = ctx, .dtype = now->compute_dtype, .recipe = now->recipe };
    dsc_error mine = DSC_ERROR_INIT;
    *changed = false;
    DSC_TRY(find_together(ctx, dir, step_dir, err));
    dsc_status status = dsc_ckpt_reader_open(ctx->io, ctx->alloc, step_dir, &job.reader, &mine);
    const bool open = status == DSC_OK;
    if (status == DSC_OK)
        status = check_model(&job, step_dir, &mine);
    if (once) { /* no rank writes before all have found the files, the manifest and the shapes good */
        status = dsc_checkpoint_agree(ctx, status, &mine, err);
        *changed = status == DSC_OK;
    }
    if (status == DSC_OK)
        status = take_all(&job, once, &mine);
    if (!once || *changed)
        status = dsc_checkpoint_agree(ctx, status, &mine, err);
    if (status == DSC_OK) {
        *out = job.reader.manifest.state;
        out->gemm_plans = NULL;
        warn_differences(ctx, now, out);
        if (dsc_comm_rank(ctx->comm) == 0)
            warn_later_steps(ctx, step_dir, out->step);
    }
    if (status == DSC_OK && !once) {
        *changed = true;
        status = take_all(&job, true, &mine);
        status = dsc_checkpoint_agree(ctx, status, &mine, err);
    }
    if (status == DSC_OK) {
        out->gemm_plans = job.reader.manifest.state.gemm_plans;
        job.reader.manifest.state.gemm_plans = NULL;
    }
    if (open)
        dsc_ckpt_reader_close(&job.reader);
    return status;
}
