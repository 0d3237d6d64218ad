/* cuda_plugin.h - interface of libdsc and libdsc_cuda.so: one exported function that gives a versioned table.
 *
 * Both sides are built from one tree and share structs by layout. So the table carries the layout numbers that both
 * must have in common. The loader compares them before it calls anything else. No CUDA header here.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_PLUGIN_H
#define DSC_KERNELS_CUDA_PLUGIN_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_CUDA_PLUGIN_SYMBOL "dsc_cuda_plugin_get"

typedef struct dsc_cuda_plugin {
    uint32_t table_bytes;     /* sizeof(dsc_cuda_plugin) */
    uint32_t layout[6];       /* DSC_CUDA_PLUGIN_LAYOUT */
    char version[32];         /* DSC_VERSION_TEXT */
    const dsc_device_ops *device;
} dsc_cuda_plugin;

#define DSC_CUDA_PLUGIN_LAYOUT                                                                      \
    {                                                                                               \
        DSC_DEVICE_OPS_VERSION, DSC_KERNEL_COUNT, DSC_TAG_COUNT, (uint32_t)sizeof(dsc_error),       \
            (uint32_t)sizeof(dsc_alloc_stats), (uint32_t)(sizeof(dsc_device_ops) + sizeof(dsc_buf)) \
    }

typedef const dsc_cuda_plugin *(*dsc_cuda_plugin_fn)(void);
DSC_API const dsc_cuda_plugin *dsc_cuda_plugin_get(void);

#ifdef __cplusplus
}
#endif
#endif
