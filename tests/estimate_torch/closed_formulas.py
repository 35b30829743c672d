"""FLOPs of known architectures, from their papers' tables: each term is named.

A product of (m by k) and (k by n) has 2mkn FLOPs. Backward, each product gives two of the same
size: the gradient of either operand. Where an operand needs no gradient, there is one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Flops:
    forward: int
    backward: int

    @property
    def training(self):
        return self.forward + self.backward


def resnet50(images):
    """Table 1 of the paper, for images of 224 by 224."""
    first = 2 * 112**2 * 64 * 3 * 7**2  # 7x7, 64, stride 2
    products = first
    before, size = 64, 56
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for index in range(depth):
            reduced = size // 2 if stage and not index else size
            products += 2 * size**2 * before * width  # 1x1, before the stride
            products += 2 * reduced**2 * 9 * width * width  # 3x3, with the stride
            products += 2 * reduced**2 * width * 4 * width  # 1x1
            if not index:
                products += 2 * reduced**2 * before * 4 * width  # 1x1 of the shortcut
            before, size = 4 * width, reduced
    products += 2 * 2048 * 1000  # the classifier
    # The image needs no gradient.
    return Flops(images * products, images * (2 * products - first))


def _transformer(batch, length, width, layers, *, recomputed):
    """The products of a transformer's layers, and the backward of those."""
    tokens = batch * length
    projections = 2 * tokens * width * (3 * width + width)  # q, k, v; output
    feed_forward = 2 * tokens * width * 4 * width * 2  # to four times the width and back
    scores = 2 * batch * length**2 * width  # q·kᵀ of all heads; p·v costs as much
    forward = layers * (projections + feed_forward + 2 * scores)
    # A fused backward computes q·kᵀ once more, as it is not kept.
    again = layers * scores if recomputed else 0
    return forward, 2 * forward + again


def gpt2(batch, length, *, width=768, layers=12, words=50257, recomputed=True):
    forward, backward = _transformer(batch, length, width, layers, recomputed=recomputed)
    head = 2 * batch * length * width * words  # the tied embedding as a matrix
    return Flops(forward + head, backward + 2 * head)


def bert(batch, length, *, width=768, layers=12, recomputed=True):
    forward, backward = _transformer(batch, length, width, layers, recomputed=recomputed)
    pooler = 2 * batch * width * width + 2 * batch * width * 2  # of the first token; two classes
    return Flops(forward + pooler, backward + 2 * pooler)


def mixture(batch, length, *, width=256, layers=4, words=1000, recomputed=True):
    """Top-2 of 8: a token meets two feed-forward parts instead of one, and the router."""
    tokens = batch * length
    dense = gpt2(batch, length, width=width, layers=layers, words=words, recomputed=recomputed)
    one_more = layers * 2 * tokens * width * 4 * width * 2
    router = layers * 2 * tokens * width * 8
    more = one_more + router
    return Flops(dense.forward + more, dense.backward + 2 * more)
