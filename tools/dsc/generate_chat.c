/* generate_chat.c - `dsc generate --chat`: answers to lines of standard input, or to --prompt.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/generate/conversation.h"
#include "tools/dsc/generate.h"

#define CONTEXT_DEFAULT 4096 /* most tokens for which memory is taken without --context */
#define ANSWER_DEFAULT 128
#define LINE_BYTES_MAX (1 << 20)

typedef struct chat {
    generation *g;
    dsc_chat_folder folder;
    dsc_conversation *conversation;
    int64_t most; /* tokens of the context of an answer */
    dsc_text line;
} chat;

/* ---- Opening ---- */

static dsc_status open_template(chat *c, dsc_error *err)
{
    const generation *g = c->g;
    const char *file = g->chat_template != NULL ? g->chat_template : "";
    char folder[1024];
    DSC_TRY(dsc_chat_folder_of(g->tokenizer_path != NULL ? g->tokenizer_path : g->model, folder, sizeof folder, err));
    DSC_TRY(dsc_chat_folder_open(NULL, g->alloc, folder, file, g->tokenizer, &c->folder, err));
    if (!c->folder.built_in)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, folder, "this model folder has no chat template; expected the file "
                    "chat_template.jinja, or \"chat_template\" in tokenizer_config.json; give one with --chat-template "
                    "FILE, or continue a text without --chat");
}

/* Besides eos_token_id, an answer ends with the tokenizer's end token and with the template's own end of an answer. */
static dsc_status add_ends(chat *c, dsc_error *err)
{
    dsc_generation_settings *s = &c->g->settings;
    int32_t end = -1;
    DSC_TRY(dsc_generation_add_end(s, dsc_tokenizer_find(c->g->tokenizer, c->folder.end_token), err));
    DSC_TRY(dsc_conversation_end(c->conversation, &end, err));
    DSC_TRY(dsc_generation_add_end(s, end, err));
    if (s->end_count == 0)
        fprintf(stderr, "dsc: warning: no token is known to end an answer, so each has --max-new-tokens; expected "
                "eos_token_id in %s/generation_config.json\n", c->g->model);
    return DSC_OK;
}

/* How many tokens a conversation and an answer may have. */
static dsc_status find_room(chat *c, int64_t *context, dsc_error *err)
{
    generation *g = c->g;
    const int64_t positions = dsc_infer_positions(g->infer);
    *context = g->context > 0 ? g->context : dsc_min_i64(positions, CONTEXT_DEFAULT);
    if (*context > positions)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--context", "%lld tokens; the model has %lld positions",
                        (long long)*context, (long long)positions);
    if (g->new_count < 0) {
        const int64_t wanted = g->settings.max_new_tokens > 0 ? g->settings.max_new_tokens : ANSWER_DEFAULT;
        g->new_count = dsc_min_i64(wanted, dsc_max_i64(1, *context / 2));
    }
    c->most = *context - g->new_count;
    if (c->most >= 1)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, "--max-new-tokens", "an answer of %lld tokens leaves no room for a question; "
                    "the conversation has room for %lld (--context, at most the model's %lld positions)",
                    (long long)g->new_count, (long long)*context, (long long)positions);
}

static dsc_status open_chat(chat *c, dsc_error *err)
{
    generation *g = c->g;
    int64_t context = 0;
    DSC_TRY(open_template(c, err));
    const dsc_conversation_options options = { .alloc = g->alloc, .tokenizer = g->tokenizer, .folder = &c->folder,
                                               .system = g->system, .now_s = (int64_t)time(NULL) };
    DSC_TRY(dsc_conversation_open(&options, &c->conversation, err));
    DSC_TRY(add_ends(c, err));
    DSC_TRY(find_room(c, &context, err));
    return generation_start(g, context, err);
}

/* ---- One turn ---- */

/* A JSON object on a line of standard error. */
static void show_context(const dsc_conversation_context *context)
{
    fprintf(stderr, "{\"messages\":%.*s,\"tokens\":[", (int)context->messages_bytes, context->messages);
    for (int64_t i = 0; i < context->count; i++)
        fprintf(stderr, "%s%d", i > 0 ? "," : "", (int)context->ids[i]);
    fprintf(stderr, "]}\n");
}

static dsc_status take_context(chat *c, dsc_error *err)
{
    generation *g = c->g;
    dsc_conversation_context context;
    DSC_TRY(dsc_conversation_render(c->conversation, c->most, &context, err));
    if (context.dropped > 0)
        fprintf(stderr, "dsc: note: the conversation is longer than %lld tokens; its %lld oldest questions and answers "
                "are left out from now on (--context, --max-new-tokens)\n", (long long)c->most,
                (long long)context.dropped);
    if (g->show_context)
        show_context(&context);
    if (context.count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, c->folder.source, "the template renders the conversation as an empty text");
    g->ids.count = 0;
    DSC_TRY(dsc_ids_reserve(&g->ids, context.count, err));
    memcpy(g->ids.ptr, context.ids, (size_t)context.count * sizeof *context.ids);
    g->ids.count = g->first = context.count;
    g->printed = 0;
    return DSC_OK;
}

static dsc_status answer(chat *c, const char *question, int64_t bytes, dsc_error *err)
{
    generation *g = c->g;
    const char *text = NULL;
    bool ended = false;
    DSC_TRY(dsc_conversation_ask(c->conversation, question, bytes, err));
    DSC_TRY(take_context(c, err));
    DSC_TRY(generation_go_on(g, &ended, err));
    if (printf("\n") < 0 || fflush(stdout) != 0)
        return DSC_FAIL(err, DSC_ERR_IO, "stdout", "the text cannot be written");
    if (!ended)
        fprintf(stderr, "dsc: note: the answer has %lld tokens without an end token and stops there "
                "(--max-new-tokens)\n", (long long)g->new_count);
    DSC_TRY(generation_text(g, &text, &bytes, err));
    return dsc_conversation_answer(c->conversation, text, bytes, err);
}

/* ---- Standard input ---- */

/* The next line without its end; *found = false at the end of the input. */
static dsc_status read_line(chat *c, bool *found, dsc_error *err)
{
    int byte = 0;
    c->line.bytes = 0;
    *found = false;
    while ((byte = getc(stdin)) != EOF && byte != '\n') {
        const char as_char = (char)byte;
        if (c->line.bytes == LINE_BYTES_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, "stdin", "a line has more than %d bytes; a question is one line",
                            LINE_BYTES_MAX);
        DSC_TRY(dsc_text_add(&c->line, &as_char, 1, err));
    }
    if (ferror(stdin))
        return DSC_FAIL(err, DSC_ERR_IO, "stdin", "the next question cannot be read");
    *found = byte != EOF || c->line.bytes > 0;
    if (c->line.bytes > 0 && c->line.ptr[c->line.bytes - 1] == '\r')
        c->line.bytes--;
    return DSC_OK;
}

/* Empty lines are not questions. */
static dsc_status converse(chat *c, dsc_error *err)
{
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    bool found = true;
    if (terminal)
        fprintf(stderr, "template %s; a question is one line; Ctrl-D ends\n", c->folder.source);
    for (;;) {
        if (terminal)
            fprintf(stderr, "> ");
        DSC_TRY(read_line(c, &found, err));
        if (!found)
            break;
        if (c->line.bytes > 0)
            DSC_TRY(answer(c, c->line.ptr, c->line.bytes, err));
    }
    if (terminal)
        fprintf(stderr, "\n");
    return DSC_OK;
}

dsc_status generation_chat(generation *g, dsc_error *err)
{
    chat c = { .g = g, .folder = { .alloc = g->alloc, .special = { .alloc = g->alloc } },
               .line = { .alloc = g->alloc } };
    dsc_status status = open_chat(&c, err);
    if (status == DSC_OK && g->prompt != NULL)
        status = answer(&c, g->prompt, (int64_t)strlen(g->prompt), err);
    else if (status == DSC_OK)
        status = converse(&c, err);
    dsc_conversation_close(&c.conversation);
    dsc_chat_folder_close(&c.folder);
    dsc_text_free(&c.line);
    return status;
}
