/* tree.c - see tree.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/tree.h"

static uint64_t edge_key(int32_t node, char byte) { return (uint64_t)node << 8 | (unsigned char)byte; }

dsc_status dsc_tree_open(dsc_alloc *alloc, int64_t bytes, dsc_tree *out, dsc_error *err)
{
    *out = (dsc_tree){ .node_count = 0 };
    if (bytes > INT32_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "tokens of %lld bytes", (long long)bytes);
    return dsc_keys_open(alloc, bytes, &out->edges, err);
}

void dsc_tree_free(dsc_alloc *alloc, dsc_tree *tree)
{
    dsc_alloc_free(alloc, tree->edges.slot);
    *tree = (dsc_tree){ .node_count = 0 };
}

void dsc_tree_add(dsc_tree *tree, const char *text, int64_t bytes, int32_t id)
{
    int32_t node = 0;
    for (int64_t i = 0; i < bytes; i++) {
        dsc_key_slot *edge = dsc_keys_put(&tree->edges, edge_key(node, text[i]));
        if (edge->a < 0)
            edge->a = ++tree->node_count;
        if (i == bytes - 1 && edge->b < 0)
            edge->b = id;
        node = edge->a;
    }
    if (bytes > 0)
        tree->first[(unsigned char)text[0]] = true;
}

int32_t dsc_tree_walk(const dsc_tree *tree, const char *text, int64_t bytes)
{
    int32_t node = 0;
    for (int64_t i = 0; i < bytes && node >= 0; i++) {
        const dsc_key_slot *edge = dsc_keys_find(&tree->edges, edge_key(node, text[i]));
        node = edge != NULL ? edge->a : -1;
    }
    return node;
}

int32_t dsc_tree_longest(const dsc_tree *tree, int32_t node, const char *text, int64_t bytes, int64_t *length)
{
    int32_t id = -1;
    if (node == 0 && (bytes == 0 || !tree->first[(unsigned char)text[0]]))
        return -1;
    for (int64_t i = 0; i < bytes; i++) {
        const dsc_key_slot *edge = dsc_keys_find(&tree->edges, edge_key(node, text[i]));
        if (edge == NULL)
            break;
        if (edge->b >= 0) {
            id = edge->b;
            *length = i + 1;
        }
        node = edge->a;
    }
    return id;
}
