/* chat_render.c - renders chat templates for chat_test.py. A request is a line "TEMPLATE_BYTES CONTEXT_BYTES NOW" and
 * the bytes; 0 template bytes keep the template before. The answer is a line "STATUS BYTES SPANS", the bytes of the
 * output or of the error, and a line with the spans. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat/chat.h"

static char *read_bytes(long bytes)
{
    char *text = malloc((size_t)bytes + 1);
    if (text == NULL || fread(text, 1, (size_t)bytes, stdin) != (size_t)bytes)
        exit(1);
    text[bytes] = 0;
    return text;
}

static void answer(dsc_status status, const dsc_error *err, const dsc_chat_output *output)
{
    char text[1024];
    if (status != DSC_OK) {
        dsc_error_format(err, text, sizeof text);
        printf("%d %zu 0\n%s\n", (int)status, strlen(text), text);
    } else {
        printf("0 %lld %lld\n", (long long)output->text.bytes, (long long)output->span_count);
        fwrite(output->text.ptr, 1, (size_t)output->text.bytes, stdout);
        for (int64_t i = 0; i < output->span_count; i++)
            printf(" %lld %lld", (long long)output->span[i].begin, (long long)output->span[i].end);
        printf("\n");
    }
    fflush(stdout);
}

int main(void)
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_chat_template *chat = NULL;
    long template_bytes, context_bytes;
    long long now;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 1;
    dsc_chat_output output = { .text = { .alloc = alloc } };
    dsc_status opened = DSC_ERR_STATE;
    while (scanf("%ld %ld %lld", &template_bytes, &context_bytes, &now) == 3 && getchar() == '\n') {
        char *text = read_bytes(template_bytes), *context = read_bytes(context_bytes);
        if (template_bytes > 0) {
            dsc_chat_template_close(&chat);
            opened = dsc_chat_template_open(alloc, text, template_bytes, &chat, &err);
        }
        dsc_status status = opened;
        if (status == DSC_OK) {
            const dsc_chat_text variables = { context, context_bytes };
            dsc_chat_options options = DSC_CHAT_OPTIONS_DEFAULT;
            options.now_s = now;
            status = dsc_chat_template_render(chat, &variables, 1, &options, &output, &err);
        }
        answer(status, &err, &output);
        free(text);
        free(context);
    }
    dsc_chat_template_close(&chat);
    dsc_chat_output_free(&output);
    dsc_alloc_close(&alloc);
    return 0;
}
