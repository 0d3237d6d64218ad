/* unsafe_format.c - see unsafe_format.h. Commands are for the folder that the error names, so that no path needs
 * quotes in them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/formats/unsafe_format.h"

#include <stdio.h>
#include <string.h>

#define PATH_BYTES 4096
#define TAG_BYTES 65 /* longer ones leave no room in an error */

static bool has(const char *dir, const char *name)
{
    char path[PATH_BYTES];
    return dsc_path_join(path, sizeof path, dir, name, NULL) == DSC_OK && dsc_io_kind(path) == DSC_PATH_FILE;
}

static bool has_one_of(const char *dir, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (has(dir, names[i]))
            return true;
    return false;
}

/* ---- DeepSpeed ---- */

/* Its stages 1 and 2, and 3. */
static bool is_deepspeed_step(const char *dir)
{
    static const char *const names[] = { "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt" };
    return has_one_of(dir, names, DSC_COUNT(names));
}

/* Stage 0 keeps whole tensors in one file, which its converter does not read. */
static bool is_sharded(const char *dir)
{
    static const char *const names[] = { "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                         "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                         "fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                         "zero_pp_rank_0_mp_rank_00_model_states.pt" };
    return has_one_of(dir, names, DSC_COUNT(names));
}

/* A name that a shell takes as it is. */
static bool is_word(const char *tag)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return tag[0] != 0 && tag[0] != '-' && tag[0] != '.' && strspn(tag, letters) == strlen(tag);
}

/* The last part of a path, without slashes behind it. */
static void last_part(const char *path, char *out, size_t out_bytes)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    snprintf(out, out_bytes, "%.*s", (int)(end - begin), path + begin);
}

/* The folder that `latest` of a DeepSpeed checkpoint names. */
static bool read_tag(const dsc_io *io, dsc_alloc *alloc, const char *dir, char tag[TAG_BYTES])
{
    char path[PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    if (dsc_path_join(path, sizeof path, dir, "latest", NULL) != DSC_OK || dsc_io_kind(path) != DSC_PATH_FILE ||
        dsc_io_read_all(io, alloc, path, TAG_BYTES - 1, &text, &bytes, NULL) != DSC_OK)
        return false;
    snprintf(tag, TAG_BYTES, "%.*s", (int)strcspn(text, " \r\n"), text);
    dsc_alloc_free(alloc, text);
    return is_word(tag) && dsc_path_join(path, sizeof path, dir, tag, NULL) == DSC_OK && is_deepspeed_step(path);
}

static dsc_status refuse_deepspeed(const char *dir, const char *step_dir, const char *tag, dsc_error *err)
{
    static const char what[] = "a DeepSpeed checkpoint; its pickles can run code and are never read.";
    if (!is_sharded(step_dir))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dir,
                        "%s Convert its weights once, in the folder %s: python3 -c \"import torch, safetensors.torch "
                        "as s; d = torch.load('mp_rank_00_model_states.pt', 'cpu', weights_only=False)['module']; "
                        "s.save_file({k: v.contiguous().clone() for k, v in d.items()}, 'model.safetensors')\"; add "
                        "the model's config.json and name that folder with --model", what, tag);
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dir,
                    "%s Convert its weights once, in the folder that holds %s: python3 -m deepspeed.utils.zero_to_fp32 "
                    ". weights --safe_serialization -t %s; add the model's config.json to the folder weights and name "
                    "it with --model", what, tag, tag);
}

static dsc_status check_deepspeed(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char tag[TAG_BYTES], step_dir[PATH_BYTES];
    if (is_deepspeed_step(dir)) {
        last_part(dir, tag, sizeof tag);
        return refuse_deepspeed(dir, dir, is_word(tag) ? tag : "TAG", err);
    }
    if (!read_tag(io, alloc, dir, tag))
        return DSC_OK;
    DSC_TRY(dsc_path_join(step_dir, sizeof step_dir, dir, tag, err));
    return refuse_deepspeed(dir, step_dir, tag, err);
}

/* ---- Hugging Face folders ---- */

static dsc_status check_hugging_face(const char *dir, dsc_error *err)
{
    static const struct { const char *name, *more; } others[] = {
        { "pytorch_model.bin", "" }, { "pytorch_model.bin.index.json", "" }, { "tf_model.h5", ", from_tf=True" },
        { "flax_model.msgpack", ", from_flax=True" },
    };
    for (size_t i = 0; i < DSC_COUNT(others); i++) {
        if (!has(dir, others[i].name))
            continue;
        if (i == 0 && !has(dir, "config.json")) /* without it only the tensors themselves can be converted */
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dir,
                            "its weights are in pytorch_model.bin; only *.safetensors are read. Convert once, in that "
                            "folder: python3 -c \"import torch, safetensors.torch as s; d = torch.load("
                            "'pytorch_model.bin', 'cpu', weights_only=True); s.save_file({k: v.contiguous().clone() "
                            "for k, v in d.items()}, 'model.safetensors')\"; the model's config.json is missing there "
                            "too");
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dir,
                        "its weights are in %s; only *.safetensors are read. Convert once, in that folder: python3 -c "
                        "\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('.'%s)"
                        ".save_pretrained('.', safe_serialization=True)\"%s", others[i].name, others[i].more,
                        has(dir, "config.json") ? "" : "; the model's config.json, which this needs, is missing there");
    }
    return DSC_OK;
}

/* ---- other files of PyTorch ---- */

static bool ends_in(const char *name, const char *end)
{
    const size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes > end_bytes && strcmp(name + bytes - end_bytes, end) == 0;
}

static bool is_pickle(const char *name)
{
    return ends_in(name, ".pt") || ends_in(name, ".pth") || ends_in(name, ".ckpt");
}

/* Those of torch.save are what its readers call one of these, or the tensors themselves. */
static dsc_status refuse_pickle(const char *where, const char *name, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                    "PyTorch's pickle; it can run code and is never read. Convert its weights once, in its folder: "
                    "python3 -c \"import torch, safetensors.torch as s; d = torch.load('%s', 'cpu', "
                    "weights_only=True); d = d.get('model', d.get('state_dict', d)); s.save_file({k: "
                    "v.contiguous().clone() for k, v in d.items()}, 'model.safetensors')\"; add the model's "
                    "config.json and name that folder with --model",
                    is_word(name) ? name : "FILE");
}

dsc_status dsc_foreign_refuse_file(const char *path, dsc_error *err)
{
    char name[TAG_BYTES];
    last_part(path, name, sizeof name);
    if (!is_pickle(path) && !(strncmp(name, "pytorch_model", 13) == 0 && ends_in(path, ".bin")))
        return DSC_OK;
    return refuse_pickle(path, name, err);
}

/* torch.distributed.checkpoint's folder: .metadata beside __0_0.distcp. */
static dsc_status refuse_distcp(const char *dir, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dir,
                    "a checkpoint of torch.distributed.checkpoint; its pickles can run code and are never read. "
                    "Convert it once, in that folder: python3 -m torch.distributed.checkpoint.format_utils "
                    "dcp_to_torch . weights.pt; --load of weights.pt then says how its weights become safetensors");
}

static dsc_status check_torch(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    char **names = NULL;
    int64_t count = 0;
    dsc_status status = DSC_OK;
    if (has(dir, ".metadata") && has(dir, "__0_0.distcp"))
        return refuse_distcp(dir, err);
    if (dsc_io_list(io, alloc, dir, &names, &count, NULL) != DSC_OK)
        return DSC_OK; /* its reader will say why */
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        if (is_pickle(names[i]) && has(dir, names[i]))
            status = refuse_pickle(dir, names[i], err);
    dsc_io_list_free(alloc, names, count);
    return status;
}

dsc_status dsc_foreign_refuse(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_error *err)
{
    DSC_TRY(check_deepspeed(io, alloc, dir, err));
    DSC_TRY(check_hugging_face(dir, err));
    return check_torch(io, alloc, dir, err);
}
