/* nvtx_tool.c - a tool that NVTX loads (NVTX_INJECTION64_PATH): writes each range that begins and ends to NVTX_LOG.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <nvtx3/nvToolsExt.h>

static FILE *to;

static nvtxDomainHandle_t NVTX_API domain_create(const char *name)
{
    fprintf(to, "domain %s\n", name);
    return (nvtxDomainHandle_t)(void *)&to;
}

static void NVTX_API domain_destroy(nvtxDomainHandle_t domain)
{
    fprintf(to, "end %d\n", (void *)domain == (void *)&to);
    fclose(to);
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range)
{
    fprintf(to, "push %s\n", range->messageType == NVTX_MESSAGE_TYPE_ASCII ? range->message.ascii : "?");
    return 0;
}

static int NVTX_API pop(nvtxDomainHandle_t domain)
{
    fprintf(to, "pop\n");
    return 0;
}

__attribute__((visibility("default"))) int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned int count = 0;
    const char *path = getenv("NVTX_LOG");
    to = path != NULL ? fopen(path, "w") : NULL;
    if (to == NULL || callbacks == NULL ||
        callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &count) == 0 ||
        count <= NVTX_CBID_CORE2_DomainDestroy)
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainDestroy] = (NvtxFunctionPointer)domain_destroy;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
