"""Trains one adapter of the default model; needs the extra ``reference`` (torch, transformers).

``python -m worker.models.train_adapter mini3 --teacher models --output mini3.safetensors``

A small student sees two targets for each review: how people leaned (the sigmoid of twice their
mean rating) and what the deepest variant answers, which the engine computes from a repository
that has it. Only low-rank factors and the head are trained; the best epoch by validation
accuracy is kept. The file it writes is what ``checkpoint.MergedWeights`` reads.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.func import functional_call

from worker.engine import Session
from worker.models.checkpoint import plain_tokenizer, read_json
from worker.models.dataset import Review, of_split, read_reviews
from worker.models.evaluate import classify, tokenize
from worker.models.packages import CheckpointFiles, PackageCache, cache_folder
from worker.models.progress import Silent
from worker.models.repository import find_model
from worker.models.sentiment import NAME, RECIPES, Recipe

BATCH = 32
EVALUATION_BATCH = 128
HEAD_DROPOUT = 0.1
WEIGHT_DECAY = 0.01
WARM_UP = 0.06
LARGEST_GRADIENT = 1.0
# The product of the factors counts twice: alpha is twice the rank.
ADAPTER_SCALE = 2.0
LEAN_SHARPNESS = 2.0
TEACHER_SHARE = 0.6
TEACHER = "mpnet12"

Tensor = Any
Parameters = dict[str, Tensor]

log = logging.getLogger("train_adapter")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one adapter is trained; ``taught`` means by the answers of the deepest variant."""

    rank: int
    learning_rate: float
    epochs: int
    taught: bool = True


SETTINGS = {
    "mpnet12": Settings(8, 4e-4, 6, taught=False),
    "mpnet8": Settings(8, 5e-4, 7),
    "mpnet6": Settings(8, 6e-4, 8),
    "mpnet4": Settings(8, 8e-4, 8),
    "mini6": Settings(16, 1e-3, 14),
    "mini4": Settings(16, 1e-3, 14),
    "mini3": Settings(16, 2e-3, 14),
}


@dataclass(frozen=True, slots=True)
class Examples:
    """Token ids of reviews with their mean ratings, labels, and the teacher's logits if any."""

    ids: list[list[int]]
    means: Tensor
    labels: Tensor
    teacher: Tensor | None = None


class Student:
    """A frozen encoder of which low-rank factors and a head are trained."""

    def __init__(self, recipe: Recipe, files: CheckpointFiles, rank: int, seed: int) -> None:
        document = read_json(files.config) | {"num_hidden_layers": recipe.layers}
        kind = document.pop("model_type")
        config = transformers.AutoConfig.for_model(kind, **document)
        self._model = transformers.AutoModel.from_config(config)
        self._model.pooler = None
        found = self._model.load_state_dict(load_file(str(files.weights)), strict=False)
        missing = [name for name in found.missing_keys if not name.endswith("position_ids")]
        if missing:
            raise ValueError(f"expected every encoder weight in {files.weights}, missed {missing}")
        self._model.requires_grad_(False)
        self._padding = int(config.pad_token_id)
        self._modules = [
            name
            for name, module in self._model.named_modules()
            if isinstance(module, torch.nn.Linear) and name.startswith("encoder.layer")
        ]
        self._generator = torch.Generator().manual_seed(seed)
        self.parameters = self._initial(rank, int(config.hidden_size))

    def logits(self, rows: Sequence[Sequence[int]], *, training: bool) -> Tensor:
        """Return the logits [rows, 2] of token sequences."""
        ids, mask = self._padded(rows)
        self._model.train(training)
        merged = dict(self._model.named_parameters())
        for name in self._modules:
            low, high = (self.parameters[f"{name}.lora_{part}"] for part in "AB")
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + ADAPTER_SCALE * (high @ low)
        inputs = {"input_ids": ids, "attention_mask": mask}
        states = functional_call(self._model, merged, kwargs=inputs).last_hidden_state
        column = mask[..., None].to(states.dtype)
        pooled = (states * column).sum(dim=1) / column.sum(dim=1)
        pooled = functional.dropout(pooled, HEAD_DROPOUT, training)
        return functional.linear(
            pooled, self.parameters["head.weight"], self.parameters["head.bias"]
        )

    def saved(self) -> Parameters:
        """Return what an adapter file holds: half-precision factors, B scaled, and the head."""
        scales = {"lora_A": 1.0, "lora_B": ADAPTER_SCALE}
        result: Parameters = {}
        for name, value in self.parameters.items():
            scale = scales.get(name.rpartition(".")[2])
            plain = value.detach()
            result[name] = plain.clone() if scale is None else (plain * scale).half()
        return result

    def _initial(self, rank: int, hidden: int) -> Parameters:
        """Return A normal and B zero, so that training starts at the base model."""
        found: Parameters = {}
        for name in self._modules:
            outputs, inputs = self._model.get_submodule(name).weight.shape
            low = torch.randn(rank, inputs, generator=self._generator) / math.sqrt(inputs)
            found[f"{name}.lora_A"] = low
            found[f"{name}.lora_B"] = torch.zeros(outputs, rank)
        bound = 1 / math.sqrt(hidden)
        uniform = torch.rand(2, hidden, generator=self._generator)
        found["head.weight"] = (2 * uniform - 1) * bound
        found["head.bias"] = torch.zeros(2)
        return {name: value.requires_grad_() for name, value in found.items()}

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        ids = torch.full((len(rows), max(map(len, rows))), self._padding)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        return ids, mask


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the rate of a step: linear warm-up over 6 % of all, linear decay to 0 over all."""
    return peak * min(1.0, step / (WARM_UP * steps)) * max(0.0, (steps - step) / steps)


def loss(logits: Tensor, means: Tensor, teacher: Tensor | None) -> Tensor:
    """Return the cross entropy against how people leaned, mixed with that against the teacher."""
    logs = functional.log_softmax(logits, dim=1)
    positive = torch.sigmoid(LEAN_SHARPNESS * means)
    people = -(torch.stack([1 - positive, positive], dim=1) * logs).sum(dim=1).mean()
    if teacher is None:
        return people
    taught = -(functional.softmax(teacher, dim=1) * logs).sum(dim=1).mean()
    return (1 - TEACHER_SHARE) * people + TEACHER_SHARE * taught


def train(
    student: Student,
    settings: Settings,
    training: Examples,
    validation: Examples,
    generator: np.random.Generator,
) -> float:
    """Train in place, leave the best epoch's parameters, and return its validation accuracy."""
    optimizer = torch.optim.AdamW(
        list(student.parameters.values()), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY
    )
    steps = settings.epochs * math.ceil(len(training.ids) / BATCH)
    step, best, kept = 0, -1.0, {}
    for epoch in range(settings.epochs):
        total, started = 0.0, time.monotonic()
        for rows in _shuffled(len(training.ids), generator):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, settings.learning_rate)
            teacher = None if training.teacher is None else training.teacher[rows]
            logits = student.logits([training.ids[row] for row in rows], training=True)
            value = loss(logits, training.means[rows], teacher)
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(list(student.parameters.values()), LARGEST_GRADIENT)
            optimizer.step()
            total += float(value.detach()) * len(rows)
            step += 1
        reached = accuracy(student, validation)
        log.info(
            "epoch %d of %d: loss %.4f, validation accuracy %.4f, %.0f s",
            epoch + 1,
            settings.epochs,
            total / len(training.ids),
            reached,
            time.monotonic() - started,
        )
        if reached >= best:
            best = reached
            kept = {name: value.detach().clone() for name, value in student.parameters.items()}
    with torch.no_grad():
        for name, value in student.parameters.items():
            value.copy_(kept[name])
    return best


def accuracy(student: Student, examples: Examples) -> float:
    """Return the share of examples whose larger logit is the label's."""
    order = sorted(range(len(examples.ids)), key=lambda row: len(examples.ids[row]))
    right = 0
    for start in range(0, len(order), EVALUATION_BATCH):
        rows = order[start : start + EVALUATION_BATCH]
        with torch.no_grad():
            logits = student.logits([examples.ids[row] for row in rows], training=False)
        right += int((logits.argmax(dim=1) == examples.labels[rows]).sum())
    return right / len(order)


def teacher_logits(repository: Path, reviews: Sequence[Review]) -> Tensor:
    """Return the deepest variant's logits for reviews, through the engine.

    Raises ManifestError or ValueError when the repository has no such variant.
    """
    manifest = find_model(repository, NAME)
    variant = manifest.variant(TEACHER)
    if variant is None:
        raise ValueError(f"expected variant {TEACHER} in {repository}, got a smaller build")
    path = repository / NAME / manifest.tokenizers[variant.tokenizer].path
    texts = [review.text for review in reviews]
    ids = tokenize(Tokenizer.from_file(str(path)), texts, variant.max_tokens)
    session = Session(repository / NAME / variant.graph, intra_op_threads=torch.get_num_threads())
    return torch.from_numpy(classify(session, ids, manifest.primary_output, lambda done: None))


def examples(tokenizer: Tokenizer, reviews: Sequence[Review], limit: int) -> Examples:
    """Return reviews as a student sees them."""
    return Examples(
        tokenize(tokenizer, [review.text for review in reviews], limit),
        torch.tensor([review.mean for review in reviews]),
        torch.tensor([review.label for review in reviews]),
    )


def _shuffled(count: int, generator: np.random.Generator) -> Iterator[list[int]]:
    order = generator.permutation(count).tolist()
    for start in range(0, count, BATCH):
        yield order[start : start + BATCH]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one adapter of the sentiment model.")
    parser.add_argument("name", choices=sorted(SETTINGS))
    parser.add_argument("--output", type=Path, required=True, help="safetensors file to write")
    parser.add_argument(
        "--teacher", type=Path, help=f"repository with variant {TEACHER}; all but it need one"
    )
    parser.add_argument("--epochs", type=int, help="default: the adapter's own setting")
    parser.add_argument("--items", type=int, help="train on so many items, drawn at random")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train the adapter that the command line names, write it, and log its test accuracy."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = _arguments()
    settings = SETTINGS[arguments.name]
    if settings.taught and arguments.teacher is None:
        raise SystemExit(f"{arguments.name} needs --teacher, a repository with {TEACHER}")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    recipe = next(recipe for recipe in RECIPES if recipe.name == arguments.name)
    packages = PackageCache(cache_folder(), Silent())
    files = packages.checkpoint(recipe.base)
    reviews = read_reviews(packages.reviews())
    tokenizer = Tokenizer.from_str(plain_tokenizer(files.tokenizer).decode())
    student = Student(recipe, files, settings.rank, arguments.seed)
    parts: Mapping[str, Examples] = {
        split: examples(tokenizer, of_split(reviews, split), 512)
        for split in ("validation", "test")
    }
    generator = np.random.default_rng(arguments.seed)
    chosen = of_split(reviews, "train")
    if arguments.items:
        # The file has all positive texts first.
        chosen = tuple(chosen[row] for row in generator.permutation(len(chosen))[: arguments.items])
    training = examples(tokenizer, chosen, 512)
    if settings.taught:
        log.info("asking %s about %d reviews", TEACHER, len(training.ids))
        answers = teacher_logits(arguments.teacher, chosen)
        training = Examples(training.ids, training.means, training.labels, answers)
    if arguments.epochs:
        settings = Settings(
            settings.rank, settings.learning_rate, arguments.epochs, settings.taught
        )
    validation = train(student, settings, training, parts["validation"], generator)
    save_file(student.saved(), str(arguments.output))
    result = {
        "name": arguments.name,
        "validation": round(validation, 4),
        "test": round(accuracy(student, parts["test"]), 4),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    log.info("%s", json.dumps(result))


if __name__ == "__main__":
    main()
