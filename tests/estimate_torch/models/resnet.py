"""Residual networks for images, as in the paper by He and others (2015)."""

import torch
import torch.nn.functional as F
from torch import nn


class Basic(nn.Module):
    grows = 1

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.side = shortcut(before, width, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.side(x))


class Bottleneck(nn.Module):
    grows = 4

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.side = shortcut(before, 4 * width, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.side(x))


def shortcut(before, after, stride):
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


class ResNet(nn.Module):
    def __init__(self, block, depths, classes=1000, first=64):
        """`first`: channels of the first of the four stages."""
        super().__init__()
        self.conv = nn.Conv2d(3, first, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(first)
        before = first
        blocks = []
        for stage, depth in enumerate(depths):
            for index in range(depth):
                width = first * 2**stage
                blocks.append(block(before, width, 2 if stage and not index else 1))
                before = width * block.grows
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.blocks(x), 1), 1))


def resnet18(classes=1000, first=64):
    return ResNet(Basic, (2, 2, 2, 2), classes, first)


def resnet50():
    return ResNet(Bottleneck, (3, 4, 6, 3))
