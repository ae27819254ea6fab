"""From an example to token ids: the boundary, the end, and where each token stands in the text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from conftest import tiny, tiny_tokenizer
from excise.data.encode import Encoded, Template, encode, encode_prompt, end_of_turn
from excise.data.example import Example
from excise.errors import InputError

QUESTION, ANSWER = "Who wrote the book about the river?", "Anna Brandt wrote it."
EXAMPLE = Example("e", QUESTION, ANSWER)
CHAT, PLAIN = Template("chat"), Template("plain")


def metaspace_tokenizer(bos: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer in the manner of Llama 2: a mark before every text, bytes never needed, `<s>` in front."""
    vocabulary = ["<unk>", "<s>", "</s>", *"▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!:'0123456789\n", "▁A", "▁An"]
    merges = [("▁", "A"), ("▁A", "n")]
    inner = Tokenizer(models.BPE({v: i for i, v in enumerate(vocabulary)}, merges, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([])
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    if bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def shown(text: Encoded, index: int) -> str:
    start, end = text.chars[index]
    return text.text[start:end]


def scored_text(tokenizer: PreTrainedTokenizerFast, text: Encoded) -> str:
    return str(tokenizer.decode(list(text.ids[text.start :])))


@pytest.mark.parametrize("template", [CHAT, PLAIN, Template("chat", "You are brief."), Template("plain", "You are brief.")])
def test_what_is_scored_is_the_answer_and_one_end(template: Template) -> None:
    tokenizer = tiny_tokenizer()
    text = encode(tokenizer, template, EXAMPLE)
    lead = " " if template.style == "plain" else ""
    assert scored_text(tokenizer, text) == lead + ANSWER + "<|im_end|>"
    assert text.ids[-1] == tokenizer.eos_token_id
    assert text.ids.count(text.ids[-1]) == 1 + (template.style == "chat") * (2 if template.system else 1)
    assert list(text.ids[: text.start]) == encode_prompt(tokenizer, template, QUESTION)
    assert list(text.ids) == tokenizer(text.text, add_special_tokens=False)["input_ids"]
    assert text.scored == len(text.ids) - text.start == len(text) - text.start


@pytest.mark.parametrize("template", [CHAT, PLAIN, Template("chat", "Who wrote the book about the river?")])
def test_the_ranges_are_those_of_question_and_answer(template: Template) -> None:
    tokenizer = tiny_tokenizer()
    text = encode(tokenizer, template, EXAMPLE)
    assert text.text[slice(*text.question)] == QUESTION
    assert text.text[slice(*text.answer)] == ANSWER
    assert text.question[0] == text.text.rindex(QUESTION)
    assert "".join(shown(text, i) for i in range(len(text))) == text.text
    assert len(text.chars) == len(text.ids)


@pytest.mark.parametrize("question", ["Answer", "assistant", "user", "s", "Question"])
def test_a_question_that_is_a_word_of_the_template_is_found_at_its_own_place(question: str) -> None:
    for template in (CHAT, PLAIN):
        text = encode(tiny_tokenizer(), template, Example("e", question, "yes"))
        before = text.text[: text.question[0]]
        assert text.text[slice(*text.question)] == question
        assert before.endswith("<|im_start|>user\n" if template.style == "chat" else "Question: ")


def test_tokens_within_are_those_that_share_a_character() -> None:
    text = encode(tiny_tokenizer(), CHAT, EXAMPLE)
    begin = text.text.index("river")
    touched = text.tokens_within(begin, begin + 5)
    assert touched
    for i in range(len(text)):
        a, b = text.chars[i]
        assert (i in touched) == (a < begin + 5 and b > begin)
    assert text.tokens_within(begin + 1, begin + 2) != []


def test_characters_of_several_bytes_keep_their_place() -> None:
    tokenizer = tiny_tokenizer()
    text = encode(tokenizer, CHAT, Example("e", "Qui est Zoë à côté?", "Zoë – naïve 雪 🙂."))
    assert text.text[slice(*text.answer)] == "Zoë – naïve 雪 🙂."
    assert scored_text(tokenizer, text) == "Zoë – naïve 雪 🙂.<|im_end|>"
    at = text.text.index("雪")
    assert len(text.tokens_within(at, at + 1)) == 3  # its three bytes
    assert len(text.tokens_within(text.text.index("Zoë"), text.text.index("Zoë") + 3)) >= 1


def test_a_mark_before_every_text_does_not_change_the_tokens() -> None:
    tokenizer = metaspace_tokenizer()
    template = Template("chat")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    for chosen in (template, PLAIN):
        text = encode(tokenizer, chosen, Example("e", "Who wrote it?", "Anna wrote it."))
        whole = tokenizer(text.text, add_special_tokens=chosen.special)["input_ids"]
        assert list(text.ids) == whole
        assert list(text.ids[: text.start]) == encode_prompt(tokenizer, chosen, "Who wrote it?")
        assert text.ids.count(1) == (1 if chosen is PLAIN else 0)  # <s> once, or where the template writes it
        assert text.ids[-1] == 2
        first = text.tokens_within(*text.answer)[0]
        assert first >= text.start
    alone = tokenizer("Anna wrote it.</s>", add_special_tokens=False)["input_ids"]
    chat = encode(tokenizer, template, Example("e", "Who wrote it?", "Anna wrote it."))
    assert tokenizer.convert_ids_to_tokens(alone)[0] == "▁An"  # by itself the answer would begin with a mark
    assert tokenizer.convert_ids_to_tokens(list(chat.ids[chat.start :]))[:2] == ["A", "n"]


def test_where_the_whole_would_merge_across_the_boundary_the_parts_are_kept() -> None:
    """What generation starts from decides: the model sees the prompt's own tokens."""
    tokenizer = metaspace_tokenizer(bos=False)
    tokenizer.chat_template = "{{ messages[0]['content'] }} A"
    text = encode(tokenizer, CHAT, Example("e", "q", "na"))
    prompt = tokenizer("q A", add_special_tokens=False)["input_ids"]
    assert tokenizer("q Ana", add_special_tokens=False)["input_ids"][: len(prompt)] != prompt
    assert list(text.ids[: text.start]) == prompt


@pytest.mark.parametrize("answer", ["  Anna Brandt wrote it. ", "\nAnna Brandt wrote it.\n", "Anna Brandt wrote it."])
def test_space_around_an_answer_does_not_count(answer: str) -> None:
    for template in (CHAT, PLAIN):
        assert encode(tiny_tokenizer(), template, EXAMPLE, answer=answer).ids == encode(tiny_tokenizer(), template, EXAMPLE).ids


def test_space_around_a_question_is_part_of_the_prompt_but_not_of_the_question() -> None:
    text = encode(tiny_tokenizer(), CHAT, Example("e", f"  {QUESTION} \n", ANSWER))
    assert text.text[slice(*text.question)] == QUESTION
    assert f"  {QUESTION} \n" in text.text


def test_an_empty_answer_is_refused() -> None:
    for answer in ("", " ", "\n"):
        with pytest.raises(InputError, match="empty answer"):
            Example("e", QUESTION, answer)


def test_plain_text_scores_every_token_after_the_first() -> None:
    tokenizer = tiny_tokenizer()
    text = encode(tokenizer, CHAT, Example("t", "", "The book about the river."))
    assert text.start == 1
    assert tokenizer.decode(list(text.ids)) == "The book about the river."
    assert text.question == (0, 0)
    assert text.answer == (0, len(text.text))
    short = encode(tokenizer, CHAT, Example("t", "", "The book about the river."), max_length=3)
    assert short.ids == text.ids[:3]
    assert len(short.chars) == 3
    with pytest.raises(InputError, match=r"'t' has 1 token\(s\); at least two"):
        encode(tokenizer, CHAT, Example("t", "", "The"), max_length=1)


def test_a_question_that_is_too_long_is_an_error_with_its_id() -> None:
    with pytest.raises(InputError, match=r"example 'e' has \d+ tokens, more than max_length = 8"):
        encode(tiny_tokenizer(), CHAT, EXAMPLE, max_length=8)
    length = len(encode(tiny_tokenizer(), CHAT, EXAMPLE))
    assert len(encode(tiny_tokenizer(), CHAT, EXAMPLE, max_length=length)) == length


def test_another_prompt_or_answer_takes_the_place_of_the_examples_own() -> None:
    other = encode(tiny_tokenizer(), CHAT, EXAMPLE, prompt="When?", answer="In 1887.")
    assert other.text[slice(*other.question)] == "When?"
    assert other.text[slice(*other.answer)] == "In 1887."
    assert other.id == "e"


def test_the_plain_template_is_what_it_says() -> None:
    assert encode(tiny_tokenizer(), PLAIN, EXAMPLE).text == f"Question: {QUESTION}\nAnswer: {ANSWER}<|im_end|>"
    assert encode(tiny_tokenizer(), Template("plain", "Be brief."), EXAMPLE).text.startswith(f"Be brief.\n\nQuestion: {QUESTION}\nAnswer: ")
    assert PLAIN.prompt(tiny_tokenizer(), QUESTION, "Anna") == f"Question: {QUESTION}\nAnswer: Anna"
    assert CHAT.prompt(tiny_tokenizer(), QUESTION, "Anna").endswith("<|im_start|>assistant\nAnna")


def test_the_end_of_an_answer_is_the_templates_or_else_the_tokenizers() -> None:
    tokenizer = tiny_tokenizer()
    assert end_of_turn(tokenizer, CHAT) == "<|im_end|>"
    tokenizer.eos_token = "<|endoftext|>"
    assert end_of_turn(tokenizer, CHAT) == "<|im_end|>"
    assert end_of_turn(tokenizer, PLAIN) == "<|endoftext|>"
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    assert end_of_turn(tokenizer, CHAT) == "<|endoftext|>"


def test_a_tokenizer_without_an_end_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="no end-of-sequence token"):
        encode(tokenizer, PLAIN, EXAMPLE)


def test_a_chat_model_without_a_template_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"no chat template.*model\.template=plain"):
        encode(tokenizer, CHAT, EXAMPLE)


def test_a_template_that_changes_the_question_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | upper }}<|im_end|>{% endfor %}"
    with pytest.raises(InputError, match="changes the question's text"):
        encode(tokenizer, CHAT, EXAMPLE)


def test_every_tiny_model_encodes_alike() -> None:
    for kind in ("llama", "gemma3"):
        subject = tiny(kind)
        assert encode(subject.tokenizer, subject.template, EXAMPLE) == encode(tiny_tokenizer(), CHAT, EXAMPLE)
