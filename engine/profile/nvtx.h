/* nvtx.h - functions of lib/dsc/libdsc_nvtx.so: ranges of the NVIDIA Tools Extension, which Nsight Systems shows.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PROFILE_NVTX_H
#define DSC_ENGINE_PROFILE_NVTX_H

#include <stdint.h>

#define DSC_NVTX_API_VERSION 1u
#define DSC_NVTX_SYMBOL "dsc_nvtx_plugin"

/* Ranges of the calling thread, one inside another, in a domain of their own. Next to nothing where no tool listens. */
typedef struct dsc_nvtx_api {
    uint32_t version, table_bytes;
    char build[32];
    void *(*open)(const char *domain); /* may be NULL, which the others take */
    void (*close)(void *domain);
    void (*push)(void *domain, const char *text); /* copied */
    void (*pop)(void *domain);
} dsc_nvtx_api;

#endif
