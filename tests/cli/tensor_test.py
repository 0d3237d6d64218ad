"""tensor_test.py - tensor ranks beside transformers: a folder that it saved, 20 AdamW steps, the export, a continuation.

argv: the folder of the programs; "llama" or "gpt2". The vocabulary of 97 tokens is odd, and Llama has fewer heads of
keys than tensor ranks. SPDX-License-Identifier: Apache-2.0"""
import sys
import tempfile

from hf_runs import VOCAB, compare, make_folder
import torch
import transformers

CASES = {
    "llama": (4, transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, intermediate_size=80, max_position_embeddings=64)),
    "gpt2": (2, transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=48, n_layer=2, n_head=4)),
}

ranks, config = CASES[sys.argv[2]]
with tempfile.TemporaryDirectory() as folder:
    theirs = make_folder(config, torch.float32, "5GB", folder + "/hf")
    compare(theirs, folder + "/hf", folder, ranks=ranks, grid={"tensor": ranks}, device="cpu", threads=1)
