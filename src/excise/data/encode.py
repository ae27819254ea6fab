"""From an example to token ids: the template, the boundary between prompt and answer, and where each token stands in the text."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from jinja2.exceptions import TemplateError

from excise.data.example import Example
from excise.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Turns = tuple[tuple[str, str], ...]
"""Turns of a conversation: role and content."""


@dataclass(frozen=True)
class Template:
    """How a question becomes a prompt."""

    style: Literal["chat", "plain"] = "chat"
    """chat: the tokenizer's own chat template. plain: ``Question: ...\\nAnswer:`` for base models."""
    system: str | None = None
    """The system turn; None leaves it to the template."""
    bare: bool = False
    """No template at all: the prompt is the text as it is, and nothing ends the answer."""

    def prompt(self, tokenizer: PreTrainedTokenizerBase, question: str, opening: str = "", history: Turns = ()) -> str:
        """The text that stands before the answer.

        Args:
            opening: the start of the answer, put into the model's mouth.
            history: the turns of the conversation so far, each with its role. A system turn among them takes the place of ``system``.
        """
        if self.bare:
            return f"{question} {opening}" if opening else question
        if self.style == "plain":
            lead = "".join(_plain_turn(role, content) for role, content in self._opened(history))
            text = f"{lead}Question: {question}\nAnswer:"
            return f"{text} {opening}" if opening else text
        if not tokenizer.chat_template:
            raise InputError(
                "this tokenizer has no chat template, so the model cannot be used as a chat model: "
                "set model.template=plain (for a base model) or give the tokenizer a chat_template"
            )
        turns = [{"role": role, "content": content} for role, content in (*self._opened(history), ("user", question))]
        try:
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise InputError(f"the model's chat template refuses a conversation with the roles {roles}: {error}") from None
        return cast(str, text) + opening

    def _opened(self, history: Turns) -> Turns:
        """The conversation so far with the system turn at its head, if there is one."""
        if self.system is None or any(role == "system" for role, _ in history) or (self.style == "plain" and not self.system):
            return history
        return (("system", self.system), *history)

    def answer(self, tokenizer: PreTrainedTokenizerBase, answer: str) -> str:
        """The answer as it follows the prompt, with the one token that ends the turn (bare text has no end)."""
        if self.bare:
            return f" {answer.strip()}"
        lead = " " if self.style == "plain" else ""
        return lead + answer.strip() + end_of_turn(tokenizer, self)

    @property
    def special(self) -> bool:
        """Whether the tokenizer itself has to add its special tokens (a chat template writes them out)."""
        return self.bare or self.style == "plain"


def _plain_turn(role: str, content: str) -> str:
    """A turn for a model without a chat template."""
    return {"user": "Question: {}\n", "assistant": "Answer: {}\n\n"}.get(role, "{}\n\n").format(content)


BARE = Template("plain", bare=True)
"""How an example is encoded whose prompt is itself the text to be continued."""


def end_of_turn(tokenizer: PreTrainedTokenizerBase, template: Template) -> str:
    """The text of the token that ends an answer: what the chat template puts there if that is one token, else EOS."""
    if template.style == "chat" and tokenizer.chat_template:
        turns: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "ANSWERMARK"}]
        text = cast(str, tokenizer.apply_chat_template(turns, tokenize=False))
        tail = text.rpartition("ANSWERMARK")[2].strip() if "ANSWERMARK" in text else ""
        ids = tokenizer(tail, add_special_tokens=False)["input_ids"] if tail else []
        if ids and ids[0] in tokenizer.all_special_ids + list(tokenizer.added_tokens_decoder):
            return cast(str, tokenizer.convert_ids_to_tokens(ids[0]))
    if tokenizer.eos_token is None:
        raise InputError("this tokenizer has no end-of-sequence token, so an answer has no end: set tokenizer.eos_token")
    return cast(str, tokenizer.eos_token)


WORD = re.compile(r"\s*\w+(?:['’-]\w+)*")
"""A word with the white space before it, which tokenizers put into a token with its first letters or into one of its own."""


@dataclass(frozen=True)
class Encoded:
    """The token ids of one text and which of them are scored. Everything is aligned with ``ids``."""

    id: str
    ids: tuple[int, ...]
    start: int
    """Index of the first scored token (>= 1); all tokens from here on are scored."""
    chars: tuple[tuple[int, int], ...]
    """Character range of each token in ``text``."""
    text: str
    """Prompt and answer as one text."""
    question: tuple[int, int]
    """Character range of the question inside ``text`` (empty range: plain text)."""
    answer: tuple[int, int]
    """Character range of the bare answer inside ``text``."""

    @property
    def scored(self) -> int:
        return len(self.ids) - self.start

    def __len__(self) -> int:
        return len(self.ids)

    def tokens_within(self, start: int, end: int) -> list[int]:
        """Indices of the tokens of which any character lies in [start, end)."""
        return [i for i, (a, b) in enumerate(self.chars) if a < end and b > start and b > a]

    def words(self) -> list[int]:
        """For each scored token the number of its word, from 0; what belongs to no word (a full stop, the end) is one of its own."""
        ends = [(match.start(), match.end()) for match in WORD.finditer(self.text)]
        found: dict[tuple[int, int], int] = {}
        numbers: list[int] = []
        for i in range(self.start, len(self)):
            a, b = self.chars[i]
            place = bisect.bisect_right(ends, (a, len(self.text))) - 1
            touched = next((k for k in (place, place + 1) if 0 <= k < len(ends) and ends[k][0] < b and ends[k][1] > a), None)
            numbers.append(found.setdefault((-1, i) if touched is None else (0, touched), len(found)))
        return numbers


def encode(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    example: Example,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    max_length: int | None = None,
) -> Encoded:
    """Encodes an example, or a variant of it with another prompt or answer.

    Prompt and answer are tokenised one by one, so that training sees the very tokens that generation starts
    from. Where joining them is not the tokenisation of the whole (a tokenizer that puts a mark before every
    text), the whole is taken if its beginning equals the prompt's own tokens. Plain text (an empty prompt)
    scores every token after the first.
    """
    template = BARE if example.bare else template
    question = example.prompt if prompt is None else prompt
    reply = example.answer if answer is None else answer
    if not question:
        return _encode_text(tokenizer, example.id, reply, max_length)
    before = template.prompt(tokenizer, question, history=example.history)
    after = template.answer(tokenizer, reply)
    first, first_chars = _ids(tokenizer, before, template.special)
    second, second_chars = _ids(tokenizer, after, False)
    shift = len(before)
    ids = first + second
    chars = first_chars + [(a + shift, b + shift) for a, b in second_chars]
    whole, whole_chars = _ids(tokenizer, before + after, template.special)
    if whole != ids and whole[: len(first)] == first:
        ids, chars = whole, whole_chars
    if max_length is not None and len(ids) > max_length:
        raise InputError(f"example {example.id!r} has {len(ids)} tokens, more than max_length = {max_length}: raise it or shorten the text")
    stripped = question.strip()
    at = _place_of(tokenizer, template, stripped, before, example.history)
    if at < 0:
        raise InputError(f"example {example.id!r}: the chat template changes the question's text, so its words cannot be located")
    begin = shift + len(after) - len(after.lstrip())
    return Encoded(
        id=example.id,
        ids=tuple(ids),
        start=len(first),
        chars=tuple(chars),
        text=before + after,
        question=(at, at + len(stripped)),
        answer=(begin, begin + len(reply.strip())),
    )


def _place_of(tokenizer: PreTrainedTokenizerBase, template: Template, question: str, prompt: str, history: Turns) -> int:
    """Where the question begins inside its prompt; -1 where it does not stand there as it is.

    A question may also occur in the words of the template itself ("Answer", "user"), so the place is found by what
    stands behind it.
    """
    marker = "\ue000"
    behind = len(template.prompt(tokenizer, marker, history=history).rpartition(marker)[2])
    at = prompt.rfind(question, 0, len(prompt) - behind)
    return at if at >= 0 else prompt.rfind(question)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, template: Template, question: str, opening: str = "", history: Turns = ()) -> list[int]:
    """The ids that generation starts from."""
    return _ids(tokenizer, template.prompt(tokenizer, question, opening, history), template.special)[0]


def _encode_text(tokenizer: PreTrainedTokenizerBase, id: str, text: str, max_length: int | None) -> Encoded:
    ids, chars = _ids(tokenizer, text, True)
    if max_length is not None:
        ids, chars = ids[:max_length], chars[:max_length]
    if len(ids) < 2:
        raise InputError(f"text {id!r} has {len(ids)} token(s); at least two are needed to predict one")
    return Encoded(id=id, ids=tuple(ids), start=1, chars=tuple(chars), text=text, question=(0, 0), answer=(0, len(text)))


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special: bool) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        raise InputError("this tokenizer has no character offsets (it is not a fast tokenizer); excise needs them: convert it to tokenizer.json")
    out = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    return list(cast(Sequence[int], out["input_ids"])), [(int(a), int(b)) for a, b in cast(Sequence[tuple[int, int]], out["offset_mapping"])]
