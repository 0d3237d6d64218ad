# Gradients of keys that give queries back before the product that reads them is done.
# SPDX-License-Identifier: Apache-2.0
/wgmma_wait<0>(dk\[0\]);/{N;s/\(.*\)\n\(.*\)/\2\n\1/}
