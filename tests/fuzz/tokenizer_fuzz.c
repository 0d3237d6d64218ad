/* tokenizer_fuzz.c - any bytes as a tokenizer.json: no crash, and what opens encodes and decodes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <dsc/text.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_ids(const dsc_tokenizer *tokenizer, const char *text, int64_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_encoder *encoder = NULL;
    const int32_t *ids = NULL;
    const char *back = NULL;
    int64_t count = 0, back_bytes = 0;
    if (dsc_encoder_open(&encoder, tokenizer, &err) != DSC_OK)
        return;
    const dsc_status status = dsc_encode(encoder, text, bytes, DSC_ENCODE_SPECIAL, &ids, &count, &err);
    DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT);
    for (int64_t i = 0; status == DSC_OK && i < count; i++)
        DSC_ASSERT(dsc_tokenizer_token(tokenizer, ids[i]) != NULL);
    if (status == DSC_OK) {
        int32_t copy[64];
        const int64_t some = count < 64 ? count : 64;
        memcpy(copy, ids, (size_t)some * sizeof *copy);
        DSC_ASSERT(dsc_decode(encoder, copy, some, false, &back, &back_bytes, &err) == DSC_OK);
        DSC_ASSERT(back[back_bytes] == 0);
    }
    const int64_t cut = dsc_tokenizer_cut(tokenizer, text, bytes);
    DSC_ASSERT(cut >= 0 && cut < bytes);
    dsc_encoder_close(&encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] = "It's 42\n na\xc3\xafve \xff <s>a\xe2\x96\x81 e\xcc\x81 \xf0\x9f\x99\x82\r\n\t  x";
    dsc_error err = DSC_ERROR_INIT;
    dsc_tokenizer *tokenizer = NULL;
    char path[64];
    const int fd = memfd_create("tokenizer_fuzz", MFD_CLOEXEC);
    if (fd < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, data, bytes) == (ssize_t)bytes) {
        const dsc_status status = dsc_tokenizer_open(&tokenizer, path, &err);
        DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
        DSC_ASSERT(status == DSC_OK || err.message[0] != 0);
        if (status == DSC_OK) {
            check_ids(tokenizer, text, (int64_t)sizeof text - 1);
            check_ids(tokenizer, (const char *)data, bytes < 256 ? (int64_t)bytes : 256);
        }
    }
    dsc_tokenizer_close(&tokenizer);
    close(fd);
    return 0;
}
