"""Small models of every common kind, for tests of what is read off a model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.norm1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = norm(outside)
        self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, bias=False), norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.short(x))


class ChannelNorm(nn.Module):
    """LayerNorm over channels, rows and columns, with a gain for each channel: a name of its own, as libraries have."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[1:]) * self.weight + self.bias


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "layer": ChannelNorm,
    "group": lambda n: nn.GroupNorm(4, n),
}


class ResNet(nn.Module):
    def __init__(self, norm: str):
        super().__init__()
        make = NORMS[norm]
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = make(8)
        self.layers = nn.Sequential(Block(8, 8, make), Block(8, 16, make))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(functional.relu(self.norm(self.stem(x)))).mean((2, 3)))


def vgg() -> nn.Module:
    """Convolutions and ReLUs without any norm."""
    net = nn.Sequential()
    features = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
    )
    net.add_module("features", features)
    net.add_module("flatten", nn.Flatten())
    net.add_module("classifier", nn.Sequential(nn.Linear(16 * 16, 16), nn.ReLU(), nn.Linear(16, 5)))
    return net


class LayerScale(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class ViTBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.scale = LayerScale(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.scale(self.attn(y, y, y, need_weights=False)[0])
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, stride=4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.blocks = nn.ModuleList(ViTBlock(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).mT
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class GPT(nn.Module):
    """Tied: the table of tokens is the output layer."""

    def __init__(self, words: int = 20, width: int = 16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(8, width)
        self.h = nn.ModuleList(ViTBlock(width) for _ in range(2))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Translator(nn.Module):
    """Encoder and decoder, by torch's own layers."""

    def __init__(self, words: int = 20, width: int = 16):
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        layer: dict[str, Any] = {
            "d_model": width,
            "nhead": 2,
            "dim_feedforward": 32,
            "batch_first": True,
            "dropout": 0.0,
        }
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2)
        self.generator = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.generator(self.decoder(self.target(tokens), self.encoder(self.source(tokens.flip(1)))))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 20, "n_positions": 8}
    quiet: dict[str, Any] = {
        "bos_token_id": 0,
        "eos_token_id": 0,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, **quiet))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    quiet: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=20, max_position_embeddings=8, **sizes, **quiet)
    return BertForSequenceClassification(config)


ZOO: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "resnet-batch": lambda: ResNet("batch"),
    "resnet-layer": lambda: ResNet("layer"),
    "resnet-group": lambda: ResNet("group"),
    "vgg": vgg,
    "vit": ViT,
    "gpt": GPT,
    "translator": Translator,
    "gpt2": gpt2,
    "bert": bert,
}


def make(name: str, *, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model of the zoo and a closure that gives its output on a fixed batch."""
    torch.manual_seed(0)
    model = ZOO[name]().to(dtype).train()
    generator = torch.Generator().manual_seed(1)
    if name == "mlp":
        batch = torch.randn(32, 12, generator=generator, dtype=dtype)
    elif name in ("gpt", "translator", "gpt2", "bert"):
        batch = torch.randint(0, 20, (16, 8), generator=generator)
    else:
        batch = torch.randn(16, 3, 8, 8, generator=generator, dtype=dtype)

    def run() -> Tensor:
        out = model(batch)
        return out if torch.is_tensor(out) else out.logits

    return model, run


def loss_of(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Cross-entropy of the output with fixed labels."""

    def closure() -> Tensor:
        out = run().flatten(0, -2)
        return functional.cross_entropy(out, torch.arange(len(out)) % out.shape[-1])

    return closure
