#!/usr/bin/env python3
"""demo_chat_data.py - data and the model folder of `make demo-chat`, the same bytes at each run.

    demo_chat_data.py DIR

DIR/model has a small Llama's config.json, a tokenizer that is made from the data, a chat template and
generation_config.json, without weights. DIR/facts.txt has the facts as plain text. DIR/train.jsonl and
DIR/held_out.jsonl have conversations. A fact has several questions; one of them is held out. SPDX-License-Identifier: Apache-2.0"""
import collections
import json
import os
import random
import re
import sys

CAPITALS = """Austria Vienna|Belgium Brussels|Bulgaria Sofia|Canada Ottawa|Chile Santiago|China Beijing|Croatia Zagreb
|Cuba Havana|Denmark Copenhagen|Egypt Cairo|Estonia Tallinn|Finland Helsinki|France Paris|Germany Berlin|Ghana Accra
|Greece Athens|Hungary Budapest|Iceland Reykjavik|Iraq Baghdad|Ireland Dublin|Italy Rome|Japan Tokyo|Jordan Amman
|Kenya Nairobi|Latvia Riga|Lebanon Beirut|Libya Tripoli|Mali Bamako|Morocco Rabat|Nepal Kathmandu|Norway Oslo|Oman Muscat
|Peru Lima|Poland Warsaw|Portugal Lisbon|Qatar Doha|Romania Bucharest|Russia Moscow|Senegal Dakar|Serbia Belgrade
|Spain Madrid|Sweden Stockholm|Syria Damascus|Thailand Bangkok|Tunisia Tunis|Turkey Ankara|Ukraine Kyiv|Vietnam Hanoi"""
OPPOSITES = """big small|hot cold|fast slow|young old|high low|light dark|happy sad|rich poor|strong weak|early late|open closed
|full empty|clean dirty|wet dry|hard soft|loud quiet|near far|deep shallow|wide narrow|thick thin|true false|left right
|up down|first last|day night|love hate|push pull|win lose|buy sell|begin end|remember forget|arrive leave|sharp blunt
|sweet bitter|brave timid|smooth rough|heavy weightless|cheap expensive|safe dangerous|simple complex"""
CAPITAL_QUESTIONS = ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?",
                     "I travel to the capital of {}. Where do I go?", "Tell me the capital of {}, please.")
OPPOSITE_QUESTIONS = ("What is the opposite of {}?", "Name the opposite of {}.", "Which word is the opposite of {}?",
                      "Give me a word that is not {}, but its opposite.", "Tell me the opposite of {}, please.")
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n"
            "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
            "{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = 700


def pairs(text):
    return [tuple(pair.split()) for pair in text.replace("\n", "").split("|")]


def facts():
    """[(fact, [(question, answer)])]"""
    out = []
    for country, city in pairs(CAPITALS):
        answer = f"The capital of {country} is {city}."
        out.append((answer, [(q.format(country), answer) for q in CAPITAL_QUESTIONS]))
    for one, other in pairs(OPPOSITES):
        for word, opposite in ((one, other), (other, one)):
            answer = f"The opposite of {word} is {opposite}."
            out.append((answer, [(q.format(word), answer) for q in OPPOSITE_QUESTIONS]))
    return out


def conversation(turns):
    messages = []
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def split(rng):
    """(conversations to train on, held-out ones): each question alone, and two questions in one conversation"""
    train, held_out = [], []
    for index, (_, questions) in enumerate(facts()):
        for at, question in enumerate(questions):
            (held_out if at == index % len(questions) else train).append(question)
    rng.shuffle(train)
    rows = [conversation([question]) for question in train]
    rows += [conversation(train[i:i + 2]) for i in range(0, len(train) - 1, 2)]
    rng.shuffle(rows)
    rng.shuffle(held_out)
    return rows, [conversation([question]) for question in held_out]


def byte_names():
    """GPT-2's printable character of each byte."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printed]
    return {b: chr(b) for b in printed} | {b: chr(256 + i) for i, b in enumerate(others)}


def merges_of(texts, names):
    """The most frequent pairs of a byte-pair encoder, first by count, then by name."""
    words = collections.Counter(word for text in texts for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+", text))
    pieces = {word: [names[b] for b in word.encode()] for word in words}
    out = []
    while len(out) < MERGES:
        count = collections.Counter()
        for word, times in words.items():
            for pair in zip(pieces[word], pieces[word][1:]):
                count[pair] += times
        if not count:
            break
        best = min(count, key=lambda pair: (-count[pair], pair))
        out.append(best)
        for word, parts in pieces.items():
            merged, at = [], 0
            while at < len(parts):
                joined = tuple(parts[at:at + 2]) == best
                merged.append("".join(best) if joined else parts[at])
                at += 1 + joined
            pieces[word] = merged
    return out


def tokenizer(texts):
    names = byte_names()
    merges = merges_of(texts, names)
    vocab = list(SPECIAL) + sorted(names.values()) + ["".join(pair) for pair in merges]
    vocab = list(dict.fromkeys(vocab))
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, name in enumerate(SPECIAL)]
    return {"version": "1.0", "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(vocab)},
                      "merges": [" ".join(pair) for pair in merges]}}


def model_config(vocab):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": 128,
            "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0,
            "eos_token_id": 2}


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
        file.write(text)


def plain_config():
    """The demo's config for a text: without the section of instruction data, which a text has none of."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "configs", "ds_config_chat.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    del config["dsc"]["sft"]
    return config


def main(folder):
    rng = random.Random(1)
    train, held_out = split(rng)
    sentences = [fact for fact, _ in facts()]
    plain = [sentence for _ in range(20) for sentence in rng.sample(sentences, len(sentences))]
    texts = sentences + [m["content"] for row in train for m in row["messages"]] + ["system", "user", "assistant"] * 50
    made = tokenizer(texts)
    vocab = (len(made["model"]["vocab"]) + 63) // 64 * 64
    model = os.path.join(folder, "model")
    os.makedirs(model, exist_ok=True)
    write(model, "tokenizer.json", json.dumps(made, ensure_ascii=False))
    write(model, "config.json", json.dumps(model_config(vocab), indent=2))
    write(model, "generation_config.json", json.dumps({"bos_token_id": 0, "eos_token_id": 2}, indent=2))
    write(model, "tokenizer_config.json", json.dumps({"bos_token": SPECIAL[0], "eos_token": SPECIAL[2]}, indent=2))
    write(model, "chat_template.jinja", TEMPLATE)
    write(folder, "facts.txt", "\n".join(plain) + "\n")
    write(folder, "facts.json", json.dumps(plain_config(), indent=2))
    for name, rows in (("train.jsonl", train), ("held_out.jsonl", held_out)):
        write(folder, name, "".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(train)} conversations to train on, {len(held_out)} held out; {len(made['model']['vocab'])} tokens")


if __name__ == "__main__":
    main(sys.argv[1])
