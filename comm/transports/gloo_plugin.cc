/* gloo_plugin.cc - lib/dsc/libdsc_gloo.so: gloo_api.h in terms of Debian's libgloo.
 *
 * gloo's own TCP transport listens on a port per pair and takes whoever connects first, and Debian builds it without
 * TLS. So gloo gets a transport of ours: its buffers put messages into a queue per peer, and waiting for one of them
 * moves them all. SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/gloo_api.h"

#include <gloo/allgather.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <stdio.h>

#include <deque>
#include <stdexcept>

namespace {

class way_buffer;

/* One message; messages between two ranks keep their order, as gloo's collectives post them. */
struct message {
    way_buffer *buffer;
    char *at;
    int64_t count;
    bool begun;
};

/* gloo only looks whether there is one. */
class no_pair : public gloo::transport::Pair {
  public:
    const gloo::transport::Address &address() const override { throw none(); }
    void connect(const std::vector<char> &) override { throw none(); }
    void close() override {}
    void setSync(bool, bool) override { throw none(); }
    std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void *, size_t) override { throw none(); }
    std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void *, size_t) override { throw none(); }
    void send(gloo::transport::UnboundBuffer *, uint64_t, size_t, size_t) override { throw none(); }
    void recv(gloo::transport::UnboundBuffer *, uint64_t, size_t, size_t) override { throw none(); }

  private:
    static std::logic_error none() { return std::logic_error("gloo uses a pair, and this transport has none"); }
};

class way_context : public gloo::transport::Context {
  public:
    explicit way_context(const dsc_gloo_way &given)
        : gloo::transport::Context(given.rank, given.size), way(given), out((size_t)given.size), in((size_t)given.size)
    {
        for (int r = 0; r < size; r++)
            if (r != rank)
                createPair(r);
    }

    std::unique_ptr<gloo::transport::Pair> &createPair(int peer) final
    {
        pairs_[(size_t)peer].reset(new no_pair);
        return pairs_[(size_t)peer];
    }

    std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void *ptr, size_t bytes) override;

    void turn();
    void clear();

    const dsc_gloo_way way;
    std::vector<std::deque<message>> out, in; /* by peer; the first of each is on its way */
};

class way_buffer : public gloo::transport::UnboundBuffer {
  public:
    way_buffer(way_context *owner, void *memory, size_t bytes)
        : gloo::transport::UnboundBuffer(memory, bytes), context(owner)
    {
    }

    void send(int to, uint64_t, size_t offset, size_t count) override { post(context->out, to, offset, count); }
    void recv(int from, uint64_t, size_t offset, size_t count) override { post(context->in, from, offset, count); }
    void recv(std::vector<int>, uint64_t, size_t, size_t) override
    {
        throw std::logic_error("gloo receives from anybody, and this transport does not");
    }

    /* Each wait is for one more. */
    bool waitSend(int *rank, std::chrono::milliseconds) override { return wait(&sent, rank); }
    bool waitRecv(int *rank, std::chrono::milliseconds) override { return wait(&received, rank); }
    void abortWaitSend() override {}
    void abortWaitRecv() override {}

    std::deque<int> sent, received; /* peers of those that are done */

  private:
    void post(std::vector<std::deque<message>> &queue, int peer, size_t offset, size_t count)
    {
        if (peer < 0 || peer >= context->size || peer == context->rank || offset > size)
            throw std::logic_error("gloo names a rank or a range that there is not");
        const size_t all = count == kUnspecifiedByteCount ? size - offset : count;
        if (all > size - offset)
            throw std::logic_error("gloo names a range that there is not");
        queue[(size_t)peer].push_back({ this, (char *)ptr + offset, (int64_t)all, false });
    }

    bool wait(std::deque<int> *done, int *rank)
    {
        while (done->empty())
            context->turn();
        if (rank != nullptr)
            *rank = done->front();
        done->pop_front();
        return true;
    }

    way_context *const context;
};

std::unique_ptr<gloo::transport::UnboundBuffer> way_context::createUnboundBuffer(void *ptr, size_t bytes)
{
    return std::unique_ptr<gloo::transport::UnboundBuffer>(new way_buffer(this, ptr, bytes));
}

void way_context::turn()
{
    bool any = false;
    for (int r = 0; r < size; r++) {
        std::deque<message> &to = out[(size_t)r], &from = in[(size_t)r];
        any = any || !to.empty() || !from.empty();
        if (!to.empty() && !to.front().begun)
            way.send(way.user, r, to.front().at, to.front().count);
        if (!from.empty() && !from.front().begun)
            way.recv(way.user, r, from.front().at, from.front().count);
        if (!to.empty())
            to.front().begun = true;
        if (!from.empty())
            from.front().begun = true;
    }
    if (!any)
        throw std::logic_error("gloo waits, and nothing is on its way");
    if (way.turn(way.user) != 0)
        throw std::runtime_error("the transport failed");
    for (int r = 0; r < size; r++) {
        std::deque<message> &to = out[(size_t)r], &from = in[(size_t)r];
        if (!to.empty() && !way.sending(way.user, r)) {
            to.front().buffer->sent.push_back(r);
            to.pop_front();
        }
        if (!from.empty() && !way.receiving(way.user, r)) {
            from.front().buffer->received.push_back(r);
            from.pop_front();
        }
    }
}

void way_context::clear()
{
    for (int r = 0; r < size; r++) {
        out[(size_t)r].clear();
        in[(size_t)r].clear();
    }
}

class whole_context : public gloo::Context {
  public:
    explicit whole_context(const dsc_gloo_way &way) : gloo::Context(way.rank, way.size)
    {
        own = std::make_shared<way_context>(way);
        transportContext_ = own;
    }

    std::shared_ptr<way_context> own;
};

/* No exception leaves this file. Entries that a failed call left in the queues belong to buffers that are gone. */
template <typename body> int guarded(whole_context *context, char *text, body run)
{
    const char *why = "an exception without a name";
    try {
        run();
        return 0;
    } catch (const std::exception &e) {
        snprintf(text, DSC_GLOO_TEXT, "%s", e.what());
        why = nullptr;
    } catch (...) {
    }
    if (why != nullptr)
        snprintf(text, DSC_GLOO_TEXT, "%s", why);
    if (context != nullptr)
        context->own->clear();
    return 1;
}

} /* namespace */

struct dsc_gloo_context {
    std::shared_ptr<whole_context> whole;
};

static int open_context(const dsc_gloo_way *way, dsc_gloo_context **out, char *text)
{
    return guarded(nullptr, text, [&] {
        std::unique_ptr<dsc_gloo_context> made(new dsc_gloo_context);
        made->whole = std::make_shared<whole_context>(*way);
        *out = made.release();
    });
}

static void close_context(dsc_gloo_context *context) { delete context; }

static int all_gather(dsc_gloo_context *context, void *recv, int64_t bytes, char *text)
{
    return guarded(context->whole.get(), text, [&] {
        gloo::AllgatherOptions options(context->whole);
        options.setOutput((char *)recv, (size_t)(bytes * context->whole->size));
        gloo::allgather(options);
    });
}

static int all_to_all(dsc_gloo_context *context, void *recv, const void *send, int64_t bytes, char *text)
{
    return guarded(context->whole.get(), text, [&] {
        const size_t all = (size_t)(bytes * context->whole->size);
        gloo::AlltoallOptions options(context->whole);
        options.setInput(const_cast<char *>((const char *)send), all); /* gloo reads it only */
        options.setOutput((char *)recv, all);
        gloo::alltoall(options);
    });
}

static int broadcast(dsc_gloo_context *context, void *buf, int64_t bytes, int root, char *text)
{
    return guarded(context->whole.get(), text, [&] {
        gloo::BroadcastOptions options(context->whole);
        options.setOutput((char *)buf, (size_t)bytes);
        options.setRoot(root);
        gloo::broadcast(options);
    });
}

extern "C" __attribute__((visibility("default"))) const dsc_gloo_api *dsc_gloo_api_get(void);
extern "C" const dsc_gloo_api *dsc_gloo_api_get(void)
{
    static const dsc_gloo_api api = { DSC_GLOO_API_VERSION, sizeof api, DSC_VERSION_TEXT, open_context,
                                      close_context,        all_gather, all_to_all,       broadcast };
    return &api;
}
