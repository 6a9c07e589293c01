"""Every document and paper that Equipoise cites, with what we correct in it.

Docstrings, findings, the ledger of claims and the docs cite by key and place: "[kosson2024] Table 1" is Table 1 of the
source `kosson2024` below. `docs/sources.md` is made from this module: `python -m equipoise.sources > docs/sources.md`.

Imports nothing but the standard library, so that any other module may import it.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass

__all__ = ["SOURCES", "Source", "cited", "markdown", "source"]

KEY = re.compile(r"(?<![\w\])}.`\"'\[])\[([a-z]+\d{4}[a-z]?|[a-z]{2,}(?:-[a-z]{2,})+|theory|notepad)\](?![\w(\[:])")
"""What a citation looks like: a key in square brackets that is neither an index nor the text of a link. A key is an
author with a year, or words with a hyphen, or one of the two short ones."""


@dataclass(frozen=True)
class Source:
    """A document that is cited.

    Attributes:
        key: what citations name it by.
        title: its full title.
        authors: who wrote it, as far as it says.
        year: when it was published, or dated.
        where: its address, or where it is to be had.
        corrected: what we found to be wrong or approximate in it, and what we do instead; "" for nothing.

    Example:
        >>> source("kosson2024").authors
        'Atli Kosson, Bettina Messmer, Martin Jaggi'
    """

    key: str
    title: str
    authors: str
    year: int
    where: str
    corrected: str = ""


def _arxiv(number: str) -> str:
    return f"https://arxiv.org/abs/{number}"


_UNPUBLISHED = "unpublished draft"

_LISTED = (
    # Documents that the project started from.
    Source(
        "theory",
        "Theory: the corrected formulas",
        "The Equipoise authors",
        2026,
        "docs/theory.md, by section",
    ),
    Source(
        "kosson2024",
        "Rotational Equilibrium: How Weight Decay Balances Learning Across Neural Networks",
        "Atli Kosson, Bettina Messmer, Martin Jaggi",
        2024,
        _arxiv("2305.17212"),
        "Table 1 is the limit of small ηλ: at ηλ = 0.05 and β1 = 0.9 its norm of AdamW is 20 % too large; ours is "
        "exact at any ηλ. Eq. 64 replaces sign by its linear part, which makes SignSGDM's rotation 5 % too large even "
        "for ηλ → 0; we use the orthant law. Eq. 76 takes one v for all weights under Adam + L2; we take classes of "
        "weights by size. Eq. 80–82 are misprinted; Eq. 84 is right. Algorithm 1 centres after its tracker (rows with "
        "a mean gradient turn too slowly), rotates weights at lr = 0, gives NaN for zero rows, and is off by 20–40 % "
        "in the first 100 steps: `Rotate` says how each is mended.",
    ),
    Source(
        "jennison1989",
        "Interim Analyses: The Repeated Confidence Interval Approach",
        "Christopher Jennison, Bruce W. Turnbull",
        1989,
        "Journal of the Royal Statistical Society, Series B, volume 51",
    ),
    Source(
        "abramowitz1964",
        "Handbook of Mathematical Functions",
        "Milton Abramowitz, Irene A. Stegun",
        1964,
        "National Bureau of Standards, Applied Mathematics Series 55",
    ),
    Source(
        "norm-note",
        "Untitled note: weight decay controls the weight norm and the effective learning rate",
        "not named in the draft",
        2025,
        f"{_UNPUBLISHED}; [wen2026] follows it up",
        "It has no momentum: with it updates are not orthogonal to the weights, and √(2ηλ) needs a factor "
        "(`forecast`). AdamW's update of root mean square 0.2 is a habit of language models, not a constant "
        "(`equipoise lab run norms`).",
    ),
    Source(
        "notepad",
        "Thesis Notepad of Ideas and Progress etc",
        "not named in the draft",
        2025,
        _UNPUBLISHED,
        "The indices of the closed form are wrong (`unroll`). E‖w_0‖ is not 0, only E[w_0] is, so the bound keeps its "
        'first term (`travel_bound`). The sums for 1 − β^t start at j = 0. Bias correction for (0.9, 0.999) is not "a '
        'very steady warmup": it falls until step 12 and then rises (`bias_factor`). W* has d + 1 rows, not d.',
    ),
    Source(
        "memory-article",
        "Weight Decay and Learning Rate from a Moving Average Perspective",
        "Vuk Rosić, translated and adapted from Jianlin Su",
        2025,
        "after https://kexue.fm/archives/11459",
        "Eq. 9 replaces products by e^κ, which overflows; we use the products. Eq. 16 is exact as printed. Eq. 17 is "
        "approximate: 0.23 % of spread at λη = 0.01 over 1000 steps; we have the exact recursion. Eq. 18 drops bias "
        "correction, by which the first gradients weigh up to 3 times the median.",
    ),
    Source(
        "muon-appendix",
        "Muon Appendix: norms, dual norms, steepest descent and the modular norm",
        "not named in the draft",
        2025,
        f"{_UNPUBLISHED}; its proposition 1 is that of [bernstein2024]",
        "In B.1 the minimisation is an argmin and the dual norm a max: two signs are misprinted.",
    ),
    # Rules for learning rate, weight decay, batch and width.
    Source(
        "wang2024",
        "How to set AdamW's weight decay as you scale model and dataset size",
        "Xi Wang, Laurence Aitchison",
        2024,
        _arxiv("2405.13698"),
    ),
    Source(
        "power-lines",
        "Power Lines: Scaling Laws for Weight Decay and Batch Size in LLM Pre-training",
        "Shane Bergsma, Nolan Dey, Gurpreet Gosal, Gavia Gray, Daria Soboleva, Joel Hestness",
        2025,
        _arxiv("2505.13738"),
    ),
    Source(
        "defazio2024",
        "The Road Less Scheduled",
        "Aaron Defazio, Xingyu Yang, Harsh Mehta, Konstantin Mishchenko, Ahmed Khaled, Ashok Cutkosky",
        2024,
        _arxiv("2405.15682"),
    ),
    Source(
        "defazio2025",
        "Why Gradients Rapidly Increase Near the End of Training",
        "Aaron Defazio",
        2025,
        _arxiv("2506.02285"),
    ),
    Source(
        "kosson2025",
        "Weight Decay may matter more than muP for Learning Rate Transfer in Practice",
        "Atli Kosson, Jeremy Welborn, Yang Liu, Martin Jaggi, Xi Chen",
        2025,
        _arxiv("2510.19093"),
    ),
    Source(
        "fan2025",
        "Robust Layerwise Scaling Rules by Proper Weight Decay Tuning",
        "Zhiyuan Fan, Yifeng Liu, Qingyue Zhao, Angela Yuan, Quanquan Gu",
        2025,
        _arxiv("2510.15262"),
    ),
    Source(
        "mlodozeniec2025",
        "Completed Hyperparameter Transfer across Modules, Width, Depth, Batch and Duration",
        "Bruno Mlodozeniec, Pierre Ablin, Louis Béthune and others",
        2025,
        _arxiv("2512.22382"),
    ),
    Source(
        "marek2025",
        "Small Batch Size Training for Language Models: When Vanilla SGD Works, and Why Gradient Accumulation Is "
        "Wasteful",
        "Martin Marek, Sanae Lotfi, Aditya Somasundaram, Andrew Gordon Wilson, Micah Goldblum",
        2025,
        _arxiv("2507.07101"),
    ),
    Source(
        "kim2025",
        "Pre-training under infinite compute",
        "Konwoo Kim, Suhas Kotha, Percy Liang, Tatsunori Hashimoto",
        2025,
        _arxiv("2509.14786"),
    ),
    Source(
        "qiu2025",
        "Hyperparameter Transfer Enables Consistent Gains of Matrix-Preconditioned Optimizers Across Scales",
        "Shikai Qiu, Zixi Chen, Hoang Phan, Qi Lei, Andrew Gordon Wilson",
        2025,
        _arxiv("2512.05620"),
    ),
    Source(
        "ren2026",
        "Rethinking Language Model Scaling under Transferable Hypersphere Optimization",
        "Liliang Ren, Yang Liu, Yelong Shen, Weizhu Chen",
        2026,
        _arxiv("2603.28743"),
    ),
    Source(
        "ferbach2026",
        "Logarithmic-time Schedules for Scaling Language Models with Momentum",
        "Damien Ferbach, Courtney Paquette, Gauthier Gidel, Katie Everett, Elliot Paquette",
        2026,
        _arxiv("2602.05298"),
    ),
    Source(
        "li2026",
        "Optimal Learning-Rate Schedules under Functional Scaling Laws: Power Decay and Warmup-Stable-Decay",
        "Binghui Li, Zilin Wang, Fengling Chen, Shiyang Zhao, Ruiheng Zheng, Lei Wu",
        2026,
        _arxiv("2602.06797"),
    ),
    Source(
        "li2020",
        "An Exponential Learning Rate Schedule for Deep Learning",
        "Zhiyuan Li, Sanjeev Arora",
        2020,
        _arxiv("1910.07454"),
    ),
    Source(
        "tian2025",
        "WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM Pre-training",
        "Changxin Tian, Jiapeng Wang, Qian Zhao, Kunlong Chen, Jia Liu, Ziqi Liu, Jiaxin Mao, Wayne Xin Zhao, "
        "Zhiqiang Zhang, Jun Zhou",
        2025,
        _arxiv("2507.17634"),
    ),
    Source(
        "luo2025",
        "A Multi-Power Law for Loss Curve Prediction Across Learning Rate Schedules",
        "Kairong Luo, Haodong Wen, Shengding Hu, Zhenbo Sun, Zhiyuan Liu, Maosong Sun, Kaifeng Lyu, Wenguang Chen",
        2025,
        _arxiv("2503.12811"),
    ),
    Source(
        "bai2025",
        "Adaptive Preconditioners Trigger Loss Spikes in Adam",
        "Zhiwei Bai, Zhangchen Zhou, Jiajie Zhao, Xiaolong Li, Zhiyu Li, Feiyu Xiong, Hongkang Yang, Yaoyu Zhang, "
        "Zhi-Qin John Xu",
        2025,
        _arxiv("2506.04805"),
    ),
    # Optimizers.
    Source(
        "kingma2015",
        "Adam: A Method for Stochastic Optimization",
        "Diederik P. Kingma, Jimmy Ba",
        2015,
        _arxiv("1412.6980"),
    ),
    Source(
        "loshchilov2019",
        "Decoupled Weight Decay Regularization",
        "Ilya Loshchilov, Frank Hutter",
        2019,
        _arxiv("1711.05101"),
    ),
    Source(
        "bernstein2018",
        "signSGD: Compressed Optimisation for Non-Convex Problems",
        "Jeremy Bernstein, Yu-Xiang Wang, Kamyar Azizzadenesheli, Anima Anandkumar",
        2018,
        _arxiv("1802.04434"),
    ),
    Source(
        "chen2023",
        "Symbolic Discovery of Optimization Algorithms",
        "Xiangning Chen, Chen Liang, Da Huang and others",
        2023,
        _arxiv("2302.06675"),
    ),
    Source(
        "chen2025",
        "Cautious Weight Decay",
        "Lizhang Chen, Jonathan Li, Kaizhao Liang, Baiyu Su, Cong Xie, Nuo Wang Pierse, Chen Liang, Ni Lao, Qiang Liu",
        2025,
        _arxiv("2510.12402"),
    ),
    Source(
        "zhuang2020",
        "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients",
        "Juntang Zhuang, Tommy Tang, Yifan Ding and others",
        2020,
        _arxiv("2010.07468"),
    ),
    Source(
        "franke2024",
        "Improving Deep Learning Optimization through Constrained Parameter Regularization",
        "Jörg K. H. Franke, Michael Hefenbrock, Gregor Koehler, Frank Hutter",
        2024,
        _arxiv("2311.09058"),
    ),
    Source(
        "jordan2024",
        "Muon: An optimizer for hidden layers in neural networks",
        "Keller Jordan, Yuchen Jin, Vlado Boza, Jiacheng You, Franz Cesista, Laker Newhouse, Jeremy Bernstein",
        2024,
        "https://kellerjordan.github.io/posts/muon/",
    ),
    Source(
        "liu2025",
        "Muon is Scalable for LLM Training",
        "Jingyuan Liu, Jianlin Su, Xingcheng Yao and others",
        2025,
        _arxiv("2502.16982"),
    ),
    Source(
        "li2025",
        "NorMuon: Making Muon more efficient and scalable",
        "Zichong Li, Liming Liu, Chen Liang, Weizhu Chen, Tuo Zhao",
        2025,
        _arxiv("2510.05491"),
    ),
    Source(
        "wen2026",
        "Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball Optimization",
        "Kaiyue Wen, Xingyu Dang, Kaifeng Lyu, Tengyu Ma, Percy Liang",
        2026,
        _arxiv("2606.16899"),
        "The conversion lr = √(ηλ) that it was published with is 3 to 4 times too large at β1 = 0.9 to 0.95: "
        "momentum's factor is missing. `theory.stationary` has the exact rotation.",
    ),
    Source(
        "hagele2026",
        "Improving Neural Network Training by Decoupling the Magnitude and Direction of Weight Vectors",
        "Alexander Hägele, Alejandro Hernández-Cano, Atli Kosson, Martin Jaggi",
        2026,
        _arxiv("2606.25971"),
    ),
    Source(
        "hubler2026",
        "Muown Implicitly Performs Angular Step-size Decay",
        "Florian Hübler, Kai Lion, Antonio Orvieto, Niao He",
        2026,
        _arxiv("2606.23637"),
    ),
    Source("kimi2025", "Kimi K2: Open Agentic Intelligence", "Kimi Team", 2025, _arxiv("2507.20534")),
    Source(
        "you2017",
        "Large Batch Training of Convolutional Networks",
        "Yang You, Igor Gitman, Boris Ginsburg",
        2017,
        _arxiv("1708.03888"),
    ),
    Source(
        "you2020",
        "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
        "Yang You, Jing Li, Sashank Reddi and others",
        2020,
        _arxiv("1904.00962"),
    ),
    Source(
        "liu2021",
        "Learning by Turning: Neural Architecture Aware Optimisation",
        "Yang Liu, Jeremy Bernstein, Markus Meister, Yisong Yue",
        2021,
        _arxiv("2102.07227"),
    ),
    Source(
        "heo2021",
        "AdamP: Slowing Down the Slowdown for Momentum Optimizers on Scale-invariant Weights",
        "Byeongho Heo, Sanghyuk Chun, Seong Joon Oh and others",
        2021,
        _arxiv("2006.08217"),
    ),
    Source(
        "brock2021b",
        "High-Performance Large-Scale Image Recognition Without Normalization",
        "Andrew Brock, Soham De, Samuel L. Smith, Karen Simonyan",
        2021,
        _arxiv("2102.06171"),
    ),
    Source(
        "modded-nanogpt",
        "Modded-NanoGPT, a speedrun of training GPT-2; its optimizer track",
        "Keller Jordan and contributors",
        2024,
        "https://github.com/KellerJordan/modded-nanogpt",
    ),
    Source(
        "emerging-optimizers",
        "Emerging-Optimizers",
        "NVIDIA",
        2025,
        "https://github.com/NVIDIA-NeMo/Emerging-Optimizers",
    ),
    # Schedules.
    Source(
        "loshchilov2017",
        "SGDR: Stochastic Gradient Descent with Warm Restarts",
        "Ilya Loshchilov, Frank Hutter",
        2017,
        _arxiv("1608.03983"),
        "We count steps from 1, so that the last step of a cycle has the final value.",
    ),
    Source(
        "smith2018",
        "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates",
        "Leslie N. Smith, Nicholay Topin",
        2018,
        _arxiv("1708.07120"),
    ),
    Source(
        "hu2024",
        "MiniCPM: Unveiling the Potential of Small Language Models with Scalable Training Strategies",
        "Shengding Hu, Yuge Tu, Xu Han and others",
        2024,
        _arxiv("2404.06395"),
    ),
    Source(
        "hagele2024",
        "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations",
        "Alexander Hägele, Elie Bakouch, Atli Kosson, Loubna Ben Allal, Leandro Von Werra, Martin Jaggi",
        2024,
        _arxiv("2405.18392"),
    ),
    Source(
        "vaswani2017",
        "Attention Is All You Need",
        "Ashish Vaswani, Noam Shazeer, Niki Parmar and others",
        2017,
        _arxiv("1706.03762"),
    ),
    # Geometry.
    Source(
        "bernstein2024",
        "Old Optimizer, New Norm: An Anthology",
        "Jeremy Bernstein, Laker Newhouse",
        2024,
        _arxiv("2409.20325"),
    ),
    Source(
        "amsel2025",
        "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm",
        "Noah Amsel, David Persson, Christopher Musco, Robert M. Gower",
        2025,
        _arxiv("2505.16932"),
    ),
    Source("boyd1974", "The power method for ℓp norms", "David W. Boyd", 1974, "Linear Algebra and its Applications 9"),
    Source("higham1992", "Estimating the matrix p-norm", "Nicholas J. Higham", 1992, "Numerische Mathematik 62"),
    Source(
        "duchi2008",
        "Efficient Projections onto the ℓ1-Ball for Learning in High Dimensions",
        "John Duchi, Shai Shalev-Shwartz, Yoram Singer, Tushar Chandra",
        2008,
        "ICML 2008",
    ),
    # Networks and measures of the lab.
    Source(
        "hu2022",
        "LoRA: Low-Rank Adaptation of Large Language Models",
        "Edward J. Hu, Yelong Shen, Phillip Wallis and others",
        2022,
        _arxiv("2106.09685"),
    ),
    Source(
        "salimans2016",
        "Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep Neural Networks",
        "Tim Salimans, Diederik P. Kingma",
        2016,
        _arxiv("1602.07868"),
    ),
    Source(
        "qiao2019",
        "Micro-Batch Training with Batch-Channel Normalization and Weight Standardization",
        "Siyuan Qiao, Huiyu Wang, Chenxi Liu, Wei Shen, Alan Yuille",
        2019,
        _arxiv("1903.10520"),
    ),
    Source(
        "brock2021",
        "Characterizing signal propagation to close the performance gap in unnormalized ResNets",
        "Andrew Brock, Soham De, Samuel L. Smith",
        2021,
        _arxiv("2101.08692"),
    ),
    Source(
        "he2016",
        "Deep Residual Learning for Image Recognition",
        "Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun",
        2016,
        _arxiv("1512.03385"),
    ),
    Source(
        "simonyan2015",
        "Very Deep Convolutional Networks for Large-Scale Image Recognition",
        "Karen Simonyan, Andrew Zisserman",
        2015,
        _arxiv("1409.1556"),
    ),
    Source(
        "dosovitskiy2021",
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        "Alexey Dosovitskiy, Lucas Beyer, Alexander Kolesnikov and others",
        2021,
        _arxiv("2010.11929"),
    ),
    Source(
        "touvron2021",
        "Training data-efficient image transformers & distillation through attention",
        "Hugo Touvron, Matthieu Cord, Matthijs Douze and others",
        2021,
        _arxiv("2012.12877"),
    ),
    Source(
        "papineni2002",
        "BLEU: a Method for Automatic Evaluation of Machine Translation",
        "Kishore Papineni, Salim Roukos, Todd Ward, Wei-Jing Zhu",
        2002,
        "https://aclanthology.org/P02-1040",
    ),
    Source("post2018", "A Call for Clarity in Reporting BLEU Scores", "Matt Post", 2018, _arxiv("1804.08771")),
    Source(
        "ney1994",
        "On structuring probabilistic dependences in stochastic language modelling",
        "Hermann Ney, Ute Essen, Reinhard Kneser",
        1994,
        "Computer Speech & Language 8",
    ),
)

SOURCES: dict[str, Source] = {s.key: s for s in _LISTED}
"""Every source, by its key."""


def source(key: str) -> Source:
    """The source of this key.

    Example:
        >>> source("power-lines").year
        2025
    """
    if key not in SOURCES:
        raise ValueError(f"no source has the key {key!r}; allowed are: {', '.join(sorted(SOURCES))}")
    return SOURCES[key]


def cited(text: str) -> list[str]:
    """The keys that a text cites, in their order, whether or not there is such a source.

    Example:
        >>> cited("[kosson2024] Fig. 3, made exact: [theory] 1; see [here](there.md), weights[j] and equipoise[lab]")
        ['kosson2024', 'theory']
    """
    return KEY.findall(text)


_OPENING = """# Sources

Docstrings, findings, the ledger of claims and these pages cite by key and place: "[kosson2024] Table 1" is Table 1 of
the entry `kosson2024` below. Where we correct a source, the entry says what we found and what Equipoise does instead.

This page is made from `equipoise/sources.py`: `python -m equipoise.sources > docs/sources.md`.
"""


def markdown() -> str:
    """The page `docs/sources.md`."""
    blocks = [_OPENING]
    for s in sorted(SOURCES.values(), key=lambda s: s.key):
        place = re.sub(r"https://\S+", r"<\g<0>>", s.where).replace("docs/theory.md", "[Theory](theory.md)")
        blocks.append(f"## {s.key}\n\n" + _wrapped(f"{s.authors}: *{s.title}*, {s.year}. {place}."))
        if s.corrected:
            blocks.append(_wrapped(f"Corrected here: {s.corrected}"))
    return "\n".join(blocks)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
