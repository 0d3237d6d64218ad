# Gradients of queries that give a tile of keys back before the product that reads it is done.
# SPDX-License-Identifier: Apache-2.0
/^    wgmma_wait<0>(dq);/{N;N;s/\([^\n]*\)\n\([^\n]*\n[^\n]*give_back[^\n]*\)/\2\n\1/}
