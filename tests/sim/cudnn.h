/* cudnn.h - shared by the files of the simulator's libdsc_cudnn.so. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_CUDNN_H
#define TESTS_SIM_CUDNN_H

#include "kernels/cuda/cudnn/cudnn_plugin.h"
#include "tests/sim/runtime.h"

namespace cusim
{

/* A plan counts among the things that a program must release. */
struct cudnn_plan {
    int64_t workspace_bytes = 0;
    int runs = 0;
    cudnn_plan() { things++; }
    virtual ~cudnn_plan() { things--; }
};

/* `p` is an aligned address of the device's memory. The simulation's lock is held. */
void cudnn_check(device_state &d, const char *what, const void *p, size_t bytes);
/* Enqueues a kernel. */
void cudnn_enqueue(guard &held, cudaStream_t stream, const char *name, std::function<void()> run);

dsc_status cudnn_conv2d_plan_open(void *library, const dsc_conv2d_args *shape, void **out, dsc_cudnn_plan_info *info,
                                  dsc_error *err);
dsc_status cudnn_conv2d_run(void *opened, void *stream, void *workspace, const dsc_conv2d_args *a, dsc_error *err);

} // namespace cusim

#endif
