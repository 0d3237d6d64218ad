# Gradients of keys that give queries back before the product that reads them is done.
# SPDX-License-Identifier: Apache-2.0
/wgmma_wait<1>(r.ds\[0\]);/{N;N;s/\(.*\)\n\( *if (!first[^\n]*)\n.*give_back.*\)/\2\n\1/}
