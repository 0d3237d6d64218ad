/* chat_template_fuzz.c - any bytes as a chat template: no crash, and each render ends within its limits.
 *
 * Bytes after a NUL are the context. Without a NUL or a JSON object there, the context is a fixed conversation.
 * Promises checked: an error has a place and a message, a failed render leaves no output, and spans lie inside of it
 * in order. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/chat/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\\u00e9\"}, {\"role\": \"user\", \"content\": \" hi \"}, "
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
    "{\"a\": 1.0, \"b\": [true, -5]}}}]}, {\"role\": \"tool\", \"content\": \"4\"}], \"bos_token\": \"<s>\", "
    "\"eos_token\": \"</s>\", \"add_generation_prompt\": true}";

static void check_render(const dsc_chat_template *chat, const dsc_chat_text *context, dsc_chat_output *output)
{
    const dsc_chat_options options = { { 20000, 1 << 16, 4 << 20, 200 }, 1764201600 };
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = dsc_chat_template_render(chat, context, 1, &options, output, &err);
    DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
    DSC_ASSERT(status == DSC_OK || (err.message[0] != 0 && strncmp(err.where, "chat ", 5) == 0));
    DSC_ASSERT(status == DSC_OK || (output->text.bytes == 0 && output->span_count == 0));
    DSC_ASSERT(output->text.bytes <= options.limits.output_bytes);
    for (int64_t i = 0; i < output->span_count; i++)
        DSC_ASSERT(output->span[i].begin >= 0 && output->span[i].begin <= output->span[i].end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data, *nul = bytes > 0 ? memchr(text, 0, bytes) : NULL;
    const int64_t template_bytes = nul != NULL ? nul - text : (int64_t)bytes;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_chat_template *chat = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    dsc_chat_output output = { .text = { .alloc = alloc } };
    const dsc_status status = dsc_chat_template_open(alloc, bytes > 0 ? text : "", template_bytes, &chat, &err);
    DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
    DSC_ASSERT(status == DSC_OK || (err.message[0] != 0 && strncmp(err.where, "chat template:", 14) == 0));
    if (status == DSC_OK) {
        const dsc_chat_text fixed = { conversation, (int64_t)sizeof conversation - 1 };
        const dsc_chat_text own = { nul != NULL ? nul + 1 : "", nul != NULL ? text + bytes - nul - 1 : 0 };
        check_render(chat, &fixed, &output);
        check_render(chat, &own, &output);
    }
    dsc_chat_template_close(&chat);
    dsc_chat_output_free(&output);
    dsc_alloc_close(&alloc);
    return 0;
}
