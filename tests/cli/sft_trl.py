"""sft_trl.py - prints the losses of TRL's SFTTrainer on the padded examples of tests/golden/sft_case.py, for the test beside it.

The trainer collates, counts targets, accumulates, clips and updates by itself; examples keep their order.
SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import datasets  # noqa: E402
import make_sft  # noqa: E402
import sft_case as case  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402

MICRO = 4


class Recorded(trl.SFTTrainer):
    """Adds the losses of each step's micro-batches, which training_step has divided by the counted targets of the step."""

    def training_step(self, *args, **more):
        loss = super().training_step(*args, **more)
        self.micro_losses.append(loss.item())
        return loss


def train(folder):
    examples = case.examples()
    rows = [examples[k % len(examples)] for k in range(case.STEPS * case.BATCH)]
    data = datasets.Dataset.from_dict({"input_ids": [r[0] for r in rows], "labels": [r[1] for r in rows]})
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(os.path.dirname(case.__file__), "tokenizer_gpt2.json"))
    tokenizer.pad_token = tokenizer.eos_token = "<|endoftext|>"
    o = case.OPTIMIZER
    settings = trl.SFTConfig(output_dir=folder, max_steps=case.STEPS, per_device_train_batch_size=MICRO, use_cpu=True, max_length=case.SEQ,
                             gradient_accumulation_steps=case.BATCH // MICRO, learning_rate=o["lr"], adam_beta1=o["betas"][0],
                             adam_beta2=o["betas"][1], adam_epsilon=o["eps"], weight_decay=o["weight_decay"], lr_scheduler_type="constant",
                             optim="adamw_torch", max_grad_norm=1.0, bf16=False, gradient_checkpointing=False, report_to=[],
                             train_sampling_strategy="sequential", save_strategy="no", disable_tqdm=True, packing=False,
                             dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False)
    model = make_sft.make_model(case.CONFIGS["llama"])
    groups = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=tuple(o["betas"]), eps=o["eps"], weight_decay=o["weight_decay"])
    trainer = Recorded(model=model, args=settings, train_dataset=data, processing_class=tokenizer, optimizers=(groups, None))
    trainer.micro_losses = []
    trainer.train()
    count, losses = case.BATCH // MICRO, trainer.micro_losses
    return [sum(losses[i:i + count]) for i in range(0, len(losses), count)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"llama padded": train(folder)}))
