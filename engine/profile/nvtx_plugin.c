/* nvtx_plugin.c - see nvtx.h. NVTX is headers alone (https://nvidia.github.io/NVTX/): it loads what the tool names in
 * NVTX_INJECTION64_PATH at the first call. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include <nvtx3/nvToolsExt.h>

#include "engine/profile/nvtx.h"

__attribute__((visibility("default"))) const void *dsc_nvtx_plugin(void);

static void *open_domain(const char *name) { return nvtxDomainCreateA(name); }
static void close_domain(void *domain) { nvtxDomainDestroy(domain); }

static void push(void *domain, const char *text)
{
    nvtxEventAttributes_t range = { .version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                    .messageType = NVTX_MESSAGE_TYPE_ASCII, .message.ascii = text };
    nvtxDomainRangePushEx(domain, &range);
}

static void pop(void *domain) { nvtxDomainRangePop(domain); }

const void *dsc_nvtx_plugin(void)
{
    static const dsc_nvtx_api api = { DSC_NVTX_API_VERSION, (uint32_t)sizeof api, DSC_VERSION_TEXT, open_domain,
                                      close_domain, push, pop };
    return &api;
}
