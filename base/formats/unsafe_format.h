/* unsafe_format.h - weights of other programs in formats that can run code when they are read: told by their names,
 * never
 * opened, and refused with the command that turns them into safetensors. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FORMATS_UNSAFE_FORMAT_H
#define DSC_BASE_FORMATS_UNSAFE_FORMAT_H

#include "base/io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DSC_ERR_UNSUPPORTED when `dir` is a DeepSpeed checkpoint (the folder with `latest`, or its global_stepN) or one of
 * torch.distributed.checkpoint. Also when `dir` holds PyTorch's, TensorFlow's or Flax's weights of a Hugging Face
 * model, or any *.pt, *.pth or *.ckpt. DSC_OK when it has none of these. */
DSC_MUST_USE dsc_status dsc_foreign_refuse(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_error *err);
/* As above for a file: *.pt, *.pth, *.ckpt or pytorch_model*.bin. */
DSC_MUST_USE dsc_status dsc_foreign_refuse_file(const char *path, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
