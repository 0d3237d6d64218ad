/* tree.h - byte strings as a tree of bytes: which of them a text begins with. Only engine/text/ includes it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_TREE_H
#define DSC_ENGINE_TEXT_TREE_H

#include "engine/text/buffer.h"

/* Nodes are numbered from the root, 0. Zeroed: empty, and only asked whether it is. */
typedef struct dsc_tree {
    dsc_keys edges;  /* node << 8 | byte -> a: node, b: the id of the string that ends there, -1: none */
    bool first[256]; /* bytes that some string begins with */
    int32_t node_count; /* without the root */
} dsc_tree;

/* `bytes`: of all strings that will be added. Owned: dsc_tree_free. */
dsc_status dsc_tree_open(dsc_alloc *alloc, int64_t bytes, dsc_tree *out, dsc_error *err);
void dsc_tree_free(dsc_alloc *alloc, dsc_tree *tree);
/* Among equal strings, the first keeps its id. Empty strings are skipped. */
void dsc_tree_add(dsc_tree *tree, const char *text, int64_t bytes, int32_t id);
static inline bool dsc_tree_is_empty(const dsc_tree *tree) { return tree->node_count == 0; }

/* The node behind `node` for one more byte, and the id of the string that ends there; -1: none. */
static inline int32_t dsc_tree_step(const dsc_tree *tree, int32_t node, char byte, int32_t *id)
{
    const dsc_key_slot *edge = dsc_keys_find(&tree->edges, (uint64_t)node << 8 | (unsigned char)byte);
    *id = edge != NULL ? edge->b : -1;
    return edge != NULL ? edge->a : -1;
}
/* The node that this text leads to from the root; -1: none. */
int32_t dsc_tree_walk(const dsc_tree *tree, const char *text, int64_t bytes);
/* The longest string behind a node, of at least a byte, that the text begins with: its id and length; -1: none. */
int32_t dsc_tree_longest(const dsc_tree *tree, int32_t node, const char *text, int64_t bytes, int64_t *length);

#endif
