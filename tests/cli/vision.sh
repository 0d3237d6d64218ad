# vision.sh - small pictures and the folder "vit" of a small ViT, made in the current folder: read in behind tap.sh.
# SPDX-License-Identifier: Apache-2.0
# Pictures of a bar in noise: the class is the side where it lies. 101 of them, so that no batch divides them.
python3 - <<'PY' || exit 1
import random, struct
def pictures(path, count, seed):
    r, pixels, labels = random.Random(seed), bytearray(), []
    for _ in range(count):
        kind = r.randrange(3)
        labels.append(kind)
        pixels += bytes(r.randrange(60) + (150 if x // 4 == kind else 0) for y in range(12) for x in range(12) for c in range(3))
    open(path, "wb").write(b"DSCPIX01" + struct.pack("<q4i32x", count, 12, 12, 3, 3) + struct.pack(f"<{count}i", *labels) + pixels)
pictures("train.pictures", 101, 1)
pictures("eval.pictures", 37, 2)
PY
mkdir vit
cat >vit/config.json <<'EOF2'
{"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32, "initializer_range": 0.1, "num_hidden_layers": 2,
 "num_attention_heads": 4, "intermediate_size": 64, "image_size": 12, "patch_size": 4,
 "id2label": {"0": "left", "1": "middle", "2": "right"}}
EOF2
