"""What counts about a model's architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes."""

    depth: int
    width: int
    inner: int
    """Width inside the MLP."""
    vocab: int
    query: int
    """Width of all query heads together."""
    key: int
    """Width of all key heads together."""
    gated: bool = True
    tied: bool = True

    @staticmethod
    def of(config: Any) -> Shape:
        """From a Transformers configuration."""
        config = config.get_text_config()
        width, heads = config.hidden_size, config.num_attention_heads
        head = getattr(config, "head_dim", None) or width // heads
        return Shape(
            depth=config.num_hidden_layers,
            width=width,
            inner=getattr(config, "intermediate_size", None) or 4 * width,
            vocab=config.vocab_size,
            query=heads * head,
            key=(getattr(config, "num_key_value_heads", None) or heads) * head,
            gated=config.model_type not in ("phi", "gpt2", "gpt_neox", "opt", "falcon", "bloom"),
            tied=bool(getattr(config, "tie_word_embeddings", False)),
        )

    @property
    def layer(self) -> int:
        """Parameters of the matrices of one layer."""
        return self.width * (2 * self.query + 2 * self.key) + (3 if self.gated else 2) * self.width * self.inner

    @property
    def head(self) -> int:
        """Parameters of the output head."""
        return self.vocab * self.width

    @property
    def parameters(self) -> int:
        """All parameters, but for norms and biases."""
        return self.depth * self.layer + self.head * (1 if self.tied else 2)

    def kept(self, half: bool, wide: bool) -> float:
        """Bytes per token that a layer keeps for the backward pass, as the training stage computes it (``excise.stages.fused``).

        The inputs of the two norms are float32; matrices that read the same input share its copy; of a gated MLP the two factors are kept.

        Args:
            half: bf16 matrix products.
            wide: attention in float32 all the same, as on CPUs.
        """
        size = 2 if half else 4
        stream = 2 * self.width * 4
        inputs = (2 * self.width + self.query + self.inner) * size
        attention = 2 * (self.query + self.key) * (4 if wide else size)  # queries, keys and values, the result
        mlp = (2 if self.gated else 1) * self.inner * size
        return float(stream + inputs + attention + mlp)
